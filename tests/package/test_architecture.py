"""ARCHITECTURE.md, the pages it leads to, and the folders against the files there are."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from docs.architecture import layer_rows, renewed
from tests.support.repository import MOST_MODULES, modules_in

MOST_ENTRIES = 25
MOST_LAYERS = 25
CONTRACTS = ("arrows go down only", "inside inductor/", "the process border")
"""The contracts with layers, as the text names them: of the package, of `inductor/` and of `worker/`."""
SHORT = {
    "candidates": "inductor/candidates",
    "child": "worker/child",
    "offers.py": "inductor/candidates/offers.py",
    "visitors.py": "inductor/fusion/visitors.py",
    "visitors_split.py": "inductor/fusion/visitors_split.py",
    "evt_source.py": "templates/cutlass/evt_source.py",
}
"""Names that the text shortens where it has just given the folder."""
PAGES = ("ARCHITECTURE.md", "docs/decisions.md", "docs/ranks.md", "docs/scale.md")


def text_of(repository: Path) -> str:
    """Return the pages that name files and what is in them, one after the other."""
    return "".join((repository / page).read_text(encoding="utf-8") for page in PAGES)


def exists(repository: Path, name: str) -> bool:
    """Return whether a path of the text is a file or folder, in the repository, the package or docs/."""
    first, _, rest = name.partition("/")
    names = (name, SHORT.get(name, name), f"{SHORT.get(first, first)}/{rest}")
    roots = (repository, repository / "inductor_plugin", repository / "docs")
    return any(list(root.glob(key)) for root in roots for key in names)


def test_the_generated_parts_are_current(repository: Path):
    text = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert renewed(text, repository) == text, "run `make docs`"


def test_layers_are_few_and_counted_in_the_text(repository: Path):
    rows = {name: len(layer_rows(repository, name)) for name in CONTRACTS}
    package, inductor, worker = rows.values()
    configured = (repository / "pyproject.toml").read_text(encoding="utf-8")
    assert configured.count('type = "layers"') == len(CONTRACTS)
    assert sum(rows.values()) <= MOST_LAYERS
    counts = f"have {sum(rows.values())} layers: the package {package} (above), `inductor/` {inductor}, `worker/` {worker}."
    text = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert counts in text


def test_every_file_of_the_text_exists(repository: Path):
    text = text_of(repository)
    paths = set(re.findall(r"(?<![\w./<])((?:[\w*]+/)*[\w*]+\.(?:py|h|md|toml))\b", text))
    assert len(paths) > 40
    assert [path for path in sorted(paths) if not exists(repository, path)] == []


_NAMED = (
    r"`(?P<name>\w+)`(?: in its row)?,? (?:in|of|and the functions of) `(?P<file>(?:\w+/)+\w+\.py)`",
    r"`(?P<file>(?:\w+/)+\w+\.py)`: (?:one )?`(?:\w+\.)?(?P<name>\w+)`",
)
"""How the text names what is in a file: `BUILTIN` in `templates/__init__.py`, or `tuning/runtime.py`: `DeviceContext.submit`."""


def test_every_name_of_a_file_is_in_that_file(repository: Path):
    text = text_of(repository)
    named = [(match["name"], match["file"]) for form in _NAMED for match in re.finditer(form, text)]
    assert len(named) >= 24
    roots = (repository, repository / "inductor_plugin")
    missing: list[str] = []
    for name, file in named:
        path = next(root / file for root in roots if (root / file).is_file())
        if not re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")):
            missing.append(f"{name} in {file}")
    assert missing == []


def test_each_row_of_where_to_add_has_one_place_to_begin_and_a_list_where_many_follow(
    repository: Path,
):
    """A row was longer than a screen once, with nine places in it."""
    text = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Where do I add ...\n")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in re.findall(r"^\| (?!what \|).*", section, re.MULTILINE)
    ]
    assert len(rows) >= 31
    for what, begin, then in rows:
        assert len(re.findall(r"`[\w./]*[./][\w./]*`", begin)) == (what != "a module"), what
        assert len(then) <= 320, what
        assert len(re.findall(r"`[\w./]*[./][\w./]*`", then)) <= 3, what
    listed = {what for what, _, then in rows if then.endswith("the list below.")}
    headings = re.findall(r"^### (.*)\n\n1\. ", section, re.MULTILINE)
    assert {heading[0].lower() + heading[1:] for heading in headings} == listed


def test_the_steps_and_tables_of_a_dtype_are_counted_in_the_decision(repository: Path):
    text = text_of(repository)
    steps = text.partition("\n### A dtype\n\n")[2].partition("\n\n")[0]
    tables = re.findall(r"`(?:_?[A-Z]\w+|_rates)`", steps)
    counted = re.search(r"A dtype takes (\d+) steps\s+in (\d+) tables", text)
    assert counted is not None
    assert [int(number) for number in counted.groups()] == [
        len(re.findall(r"^\d+\. ", steps, re.MULTILINE)),
        len(tables),
    ]


@pytest.mark.parametrize("root", ["inductor_plugin", "templates", "cache"])
def test_folders_are_small_and_say_what_lives_in_them(root: str, repository: Path):
    for folder in (repository / root, *(repository / root).rglob("*/")):
        modules = modules_in(folder)
        if modules:
            assert len(modules) <= MOST_MODULES, folder
            package = (folder / "__init__.py").read_text(encoding="utf-8")
            first = (ast.get_docstring(ast.parse(package)) or "").partition("\n")[0]
            assert first.endswith("."), f"{folder}: `make docs` copies its first line"


def test_a_package_that_only_exports_is_no_module_of_its_folder(tmp_path: Path):
    (tmp_path / "a.py").write_text("")
    package = tmp_path / "__init__.py"
    package.write_text('"""What is here."""\n\nfrom os import sep\n\n__all__ = ["sep"]\n')
    assert modules_in(tmp_path) == [tmp_path / "a.py"]
    package.write_text("def f() -> None: ...\n")
    assert set(modules_in(tmp_path)) == {tmp_path / "a.py", package}


def test_every_module_at_the_root_is_named_with_what_it_is(repository: Path):
    text = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^The modules directly in .+?\. No submodule", text, re.M | re.S)
    modules = {path.stem for path in (repository / "inductor_plugin").glob("*.py")}
    assert modules - set(re.findall(r"`(\w+)`", sentence)) == set()


def test_the_package_fits_a_screen(repository: Path):
    entries = [
        path for path in (repository / "inductor_plugin").iterdir() if path.name != "__pycache__"
    ]
    assert len(entries) <= MOST_ENTRIES


def test_no_module_imports_one_that_imports_it() -> None:
    """The contract compares neighbours: it misses a package that imports a module of its own which imports the package."""
    graph = grimp.build_graph("inductor_plugin", exclude_type_checking_imports=True)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises CycleError with the modules of a cycle
