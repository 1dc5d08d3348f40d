from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import inductor_plugin
from docs.generate import results_table, with_options, with_results
from inductor_plugin.version import installed_version
from tests.support.distribution import FOLDERS, build, check_bill, check_provenance, copy_sources

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
KNOWS_INDUCTOR = re.compile(
    r"inductor_plugin/(inductor|aot)/.*|inductor_plugin/worker/child/inductor\.py"
)
DATA = (".py", ".jinja", ".h", ".cpp", ".cuh", ".typed", ".js", ".css", ".html")


def texts(repository: Path) -> Iterator[tuple[str, Path]]:
    """Yield the path of each file of the package from the root of the repository, and where it is."""
    for folder in ("inductor_plugin", *FOLDERS):
        for path in sorted((repository / folder).rglob("*")):
            inside = path.relative_to(repository)
            linked = inside.parts[:2] in {("inductor_plugin", name) for name in FOLDERS}
            if path.suffix in DATA and not linked and "__pycache__" not in inside.parts:
                yield str(inside), path


def shipped(repository: Path) -> set[str]:
    """Return the files that belong into a wheel, by their path in it."""
    files = {name.removeprefix("inductor_plugin/") for name, _ in texts(repository)}
    return {f"inductor_plugin/{name}" for name in files}


def sources(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each module of the package."""
    for name, path in texts(repository):
        if path.suffix == ".py":
            yield name, path.read_text(encoding="utf-8")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names of all modules a module imports, inside functions and by their names too.

    Of a name that is put together (``import_module(f"torch._inductor.{name}")``) its beginning counts.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = node.args[0]
            first = named.values[0] if isinstance(named, ast.JoinedStr) else named
            if isinstance(first, ast.Constant):
                yield str(first.value)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy that is no checkout of git."""
    return build(copy_sources(tmp_path_factory.mktemp("repository")))


def test_the_wheel_holds_every_module_and_no_other_package(wheel: Path, repository: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped(repository)


def test_the_wheel_announces_the_command_and_the_entry_points(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (member for member in archive.namelist() if member.endswith("entry_points.txt"))
        text = archive.read(name).decode()
        assert any(member.endswith("licenses/LICENSE") for member in archive.namelist())
    assert "inductor-plugin = inductor_plugin.cli:main" in text
    assert "[torch_dynamo_backends]\ninductor_plugin = inductor_plugin.backend:induct" in text
    assert "[torch.backends]\ninductor_plugin = inductor_plugin.autoload:autoload" in text


def test_the_wheel_holds_a_bill_of_materials_that_its_record_lists(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (member for member in archive.namelist() if "/sboms/" in member)
        text = archive.read(name).decode()
        (record,) = (member for member in archive.namelist() if member.endswith("dist-info/RECORD"))
        assert f"\n{name},sha256=" in archive.read(record).decode()
    assert name.endswith(".dist-info/sboms/inductor-plugin.cdx.json")
    check_bill(text)
    content = json.loads(text)
    assert content["metadata"]["component"]["version"] == inductor_plugin.__version__
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    scopes = {each["name"]: each["scope"] for each in content["components"]}
    assert {name for name, scope in scopes.items() if scope == "required"} == {
        "filelock",
        "rich",
        "torch",
    }
    assert scopes["cryptography"] == "optional"


def test_a_wheel_of_unknown_sources_names_no_commit(wheel: Path) -> None:
    predicate = check_provenance(wheel)
    assert "resolvedDependencies" not in predicate["buildDefinition"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (member for member in archive.namelist() if "/sboms/" in member)
        component = json.loads(archive.read(name))["metadata"]["component"]
    assert {"pedigree", "properties"} & component.keys() == set()


def test_the_version_is_the_same_in_code_and_metadata(repository: Path):
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{inductor_plugin.__version__}"\n' in text


def test_the_version_of_a_package_is_that_of_its_first_name_that_is_installed() -> None:
    assert installed_version("no-package-of-this-name", "pytest", "ruff") == pytest.__version__
    assert installed_version("no-package-of-this-name") is None


def test_one_module_asks_for_the_versions_of_packages(repository: Path) -> None:
    asking = {name for name, text in sources(repository) if "PackageNotFoundError" in text}
    of_a_file = "inductor_plugin/cli/output/versions.py"  # the commit in the plugin's own wheel
    assert asking == {"inductor_plugin/version.py", of_a_file}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_folder_is_linked_into_the_package(folder: str, repository: Path):
    link = repository / "inductor_plugin" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..", folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_folder_refuses_another_name(folder: str, repository: Path):
    spec = importlib.util.spec_from_file_location(folder, repository / folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=rf"inductor_plugin\.{folder}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _docstring_lines(node: ast.FunctionDef) -> int:
    """Return how long a function's docstring is: what is public tells shapes, units and sources."""
    first = node.body[0]
    if ast.get_docstring(node) is None or first.end_lineno is None:
        return 0
    return first.end_lineno - first.lineno + 1


def test_files_and_functions_are_small(repository: Path):
    large: list[str] = []
    for name, text in sources(repository):
        lines = text.count("\n")
        if lines > MAX_FILE_LINES:
            large.append(f"{name} has {lines} lines, {MAX_FILE_LINES} are allowed")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1 - _docstring_lines(node)
                if length > MAX_FUNCTION_LINES:
                    large.append(f"{name}: {node.name} has {length} lines")
    assert large == []


def test_only_two_packages_and_a_module_of_the_workers_know_inductor(repository: Path):
    knowing = [
        f"{name} imports {module}"
        for name, text in sources(repository)
        if not KNOWS_INDUCTOR.fullmatch(name)
        for module in imported(ast.parse(text))
        if f"{module}.".startswith("torch._inductor.")
    ]
    assert knowing == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch._inductor.config",
        "from torch import _inductor",
        "def f():\n    from torch._inductor import ir",
        "x = importlib.import_module('torch._inductor.codecache').PyCodeCache",
        "import_module(f'torch._inductor.{name}')",
    ],
)
def test_every_way_to_import_inductor_is_seen(text: str):
    assert any(f"{name}.".startswith("torch._inductor.") for name in imported(ast.parse(text)))


def test_nothing_reads_the_environment_but_the_options(repository: Path):
    reading = {
        name for name, text in sources(repository) if re.search(r"os\.(environ|getenv)", text)
    }
    assert reading <= {
        "inductor_plugin/config/options.py",
        "inductor_plugin/config/variables.py",
        "inductor_plugin/autoload.py",
    }


def test_the_table_of_options_in_the_readme_is_current(repository: Path):
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert with_options(text) == text, "run `make docs`"


def test_the_table_of_results_in_the_readme_is_current(repository: Path):
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert with_results(text) == text, "run `make docs`"
    assert results_table().count("benchmarks/results/") == 11


def test_a_readme_without_markers_is_an_error():
    with pytest.raises(ValueError, match="put them back"):
        with_options("no table here")


def test_importing_the_package_loads_no_torch_and_makes_no_folder(tmp_path: Path):
    code = (
        "import sys, inductor_plugin\n"
        "assert 'register' in dir(inductor_plugin)\n"
        "assert inductor_plugin.Registry().names() == ()\n"
        "assert inductor_plugin.stats().problems == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there():
    for name in inductor_plugin.__all__:
        assert getattr(inductor_plugin, name) is not None
    assert callable(inductor_plugin.stats)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = inductor_plugin.nothing  # type: ignore[attr-defined]


MODULE = re.compile(r"[\"'`]((?:inductor_plugin|tests|benchmarks)(?:\.\w+)+(?::\w+)?)[\"'`]")
NO_MODULES = {
    "inductor_plugin.attention_library",  # records have these two by their older paths
    "inductor_plugin.gemm_op",
    "inductor_plugin.devices",  # groups of entry points
    "inductor_plugin.packs",
    "inductor_plugin.fmha_backward",  # operators; that of `fmha` has the name of a public function
    "inductor_plugin.flash_wheel",
    "inductor_plugin.ops.native.Site",  # what the library of call sites defines, in C++
    "inductor_plugin.ops.native.site",
}
"""Names with dots that are no paths of modules."""


def defined(text: str) -> set[str]:
    """Return the functions, classes and variables that a module defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def exists(repository: Path, name: str) -> bool:
    """Return whether a name is a public one, or that of a module, of a package, or of what a module defines.

    Nothing is imported. A package defines nothing but its public names: else any name that a package has lost
    would pass, since the package is still there.
    """
    if name.removeprefix("inductor_plugin.") in inductor_plugin.__all__:
        return True
    path = repository.joinpath(*re.split(r"[.:]", name))
    if path.with_suffix(".py").is_file() or any(path.glob("*.py")):
        return True
    module = path.parent.with_suffix(".py")
    return module.is_file() and path.name in defined(module.read_text(encoding="utf-8"))


def test_every_module_named_in_a_string_exists(repository: Path):
    """A string that names a module goes stale in silence when the module is moved."""
    named = {
        (name, file)
        for file, path in texts(repository)
        for name in MODULE.findall(path.read_text(encoding="utf-8"))
    }
    missing = [
        f"{file} names {name}"
        for name, file in sorted(named)
        if name not in NO_MODULES and not exists(repository, name)
    ]
    assert len(named) > 50
    assert missing == []


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("inductor_plugin.ops.copied", True),
        ("inductor_plugin.ops.copied.how", True),
        ("inductor_plugin.attention.library.FUNCTIONS", True),
        ("inductor_plugin.aot.decoder:tiny", True),
        ("inductor_plugin.templates.triton", True),
        ("inductor_plugin.verify_ranks", True),
        ("benchmarks.fusion", True),
        ("inductor_plugin.gemm_rules", False),  # before it was moved to `ops/`
        ("inductor_plugin.attention_library", False),
        ("inductor_plugin.ops.rules", False),
        ("inductor_plugin.ops.copied.nothing", False),
        ("inductor_plugin.aot.decoder:nothing", False),
        ("benchmarks.fusions", False),
    ],
)
def test_a_name_that_a_module_had_before_it_was_moved_is_none(
    name: str, there: bool, repository: Path
):
    assert MODULE.findall(f'"{name}"') == [name]
    assert exists(repository, name) is there


def test_no_module_hides_a_public_name(repository: Path):
    """Importing a submodule binds it on the package, over the function of the same name."""
    public = {name for name in inductor_plugin.__all__ if name.islower()}
    modules = {path.stem for path in (repository / "inductor_plugin").iterdir()}
    assert public & modules == set()
