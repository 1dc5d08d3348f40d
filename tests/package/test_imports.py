"""Which of tests and benchmarks may import which: shared things have one home each.

And the layers of the emulator. That the product imports none of it is a contract of import-linter.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import MOST_MODULES, modules_in

ALLOWED = {
    "benchmarks": ("tests.support",),
    "tests.benchmarks": ("benchmarks",),
    "tests.gpu": ("benchmarks.harness",),
    "tests": (),
}
"""What the modules of a package may import of the other tree; the longest matching name counts."""


def imported(text: str) -> Iterator[str]:
    """Yield the names of all that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def forbidden(module: str, text: str) -> list[str]:
    """Return what a module may not import, one line each."""
    mine = max((prefix for prefix in ALLOWED if inside(module, prefix)), key=len)
    other = "benchmarks" if inside(module, "tests") else "tests"
    return [
        f"{module} imports {name}"
        for name in imported(text)
        if inside(name, other) and not any(inside(name, package) for package in ALLOWED[mine])
    ]


def test_tests_and_benchmarks_share_what_is_there_for_both(repository: Path) -> None:
    wrong: list[str] = []
    for path in sorted([*repository.glob("tests/**/*.py"), *repository.glob("benchmarks/**/*.py")]):
        module = ".".join(path.relative_to(repository).with_suffix("").parts)
        wrong += forbidden(module, path.read_text(encoding="utf-8"))
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "text", "allowed"),
    [
        ("benchmarks.gemm.arm", "from tests.support import gpu", True),
        ("benchmarks.gemm.arm", "from tests.gpu.harness import check", False),
        ("benchmarks.gemm.arm", "def f():\n    import tests.gpu", False),
        ("tests.support.fakes.workers", "from benchmarks.harness import resume", False),
        ("tests.gpu.conftest", "from benchmarks.harness.resume import Rows", True),
        ("tests.gpu.conftest", "from benchmarks import gemm", False),
        ("tests.benchmarks.test_gemm", "from benchmarks import gemm", True),
        ("tests.package.test_config", "import benchmarks", False),
        ("tests.package.test_config", "import tests.support", True),
    ],
)
def test_the_rule_is_held(module: str, text: str, allowed: bool) -> None:
    assert (forbidden(module, text) == []) == allowed


TESTED_TESTS = "tests.gpu.harness"
"""What is tested there is the tests that need a GPU, without one."""


_MAY_NAME_TEST_FILE = re.compile(
    r"\b(?:from|import) tests[\w.]*\.test_|\bfrom tests[\w.]* import (?:\([^)]*|[^\n]*)\btest_"
)
"""To parse all files takes 5 s."""


def of_test_files(module: str, text: str) -> list[str]:
    """Return what a module imports of files of tests, one line each."""
    if inside(module, TESTED_TESTS) or not _MAY_NAME_TEST_FILE.search(text):
        return []
    return [
        f"{module} imports {name}"
        for name in imported(text)
        if inside(name, "tests") and any(part.startswith("test_") for part in name.split("."))
    ]


def test_what_tests_share_is_in_no_file_of_tests(repository: Path) -> None:
    wrong: list[str] = []
    for path in sorted(repository.glob("tests/**/*.py")):
        module = ".".join(path.relative_to(repository).with_suffix("").parts)
        wrong += of_test_files(module, path.read_text(encoding="utf-8"))
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "text", "allowed"),
    [
        ("tests.worker.test_turn", "from tests.worker.test_timer import sampling", False),
        ("tests.worker.test_turn", "def f():\n    from tests.worker import test_timer", False),
        ("tests.worker.test_turn", "from tests.worker import (\n    a,\n    test_timer)", False),
        ("tests.worker.test_turn", "import tests.worker.test_timer", False),
        ("tests.worker.test_turn", "from tests.support.worker.sampling import sampling", True),
        ("tests.worker.test_turn", "import torch.testing._internal.test_module", True),
        ("tests.gpu.harness.test_fused", "from tests.gpu.test_fused import root", True),
    ],
)
def test_an_import_of_a_test_file_is_seen(module: str, text: str, allowed: bool) -> None:
    assert (of_test_files(module, text) == []) == allowed


EMULATOR = (
    "ptx",
    "arithmetic",
    "threads",
    "races",
    "memory",
    "machine",
    "tensor",
    "codegen",
    "runtime",
    "kernels",
    "suite",
    "recorded",
    "held_out",
)
"""Folders of tests/emulator, each of which may import the ones before it."""
MOST_LINES = 400


def upwards(folder: str, text: str) -> list[str]:
    """Return the folders of the emulator that a module of one folder may not import, and does."""
    above = EMULATOR[EMULATOR.index(folder) + 1 :]
    names = {f"tests.emulator.{layer}": layer for layer in above}
    return [key for name in imported(text) for prefix, key in names.items() if inside(name, prefix)]


def test_the_emulator_has_layers(repository: Path) -> None:
    emulator = repository / "tests" / "emulator"
    modules = [path.relative_to(emulator) for path in sorted(emulator.glob("*/**/*.py"))]
    assert {path.parts[0] for path in modules} == set(EMULATOR)
    wrong: list[str] = []
    for path in modules:
        if path.name.startswith("test_"):
            continue
        above = upwards(path.parts[0], (emulator / path).read_text(encoding="utf-8"))
        wrong += [f"{path} imports {folder}" for folder in above]
    assert wrong == []


def test_a_layer_of_the_emulator_may_not_look_up() -> None:
    assert upwards("memory", "from tests.emulator.machine.wave import Wave") == ["machine"]
    assert upwards("machine", "from tests.emulator.memory.allowed import Allowed") == []


def test_no_folder_of_tests_has_more_modules_than_a_reader_takes_in(repository: Path) -> None:
    for folder in (repository / "tests").glob("**/"):
        assert len(modules_in(folder)) <= MOST_MODULES, folder


def test_no_file_of_tests_or_benchmarks_is_longer_than_a_file_of_the_package(
    repository: Path,
) -> None:
    lines = {
        str(path.relative_to(repository)): path.read_text(encoding="utf-8").count("\n")
        for root in ("tests", "benchmarks")
        for path in (repository / root).glob("**/*.py")
    }
    assert {path.partition("/")[0] for path in lines} == {"tests", "benchmarks"}
    assert len(lines) > 400
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


BY_NAME = {
    "cryptography": {"cache/trust/keys.py"},
    "fsspec": {"inductor_plugin/config/value.py", "cache/remote/files.py"},
    "nvMatmulHeuristics": {"inductor_plugin/cost/nvidia.py"},
    "pynvml": {"inductor_plugin/worker/nvml.py"},
    "triton": {
        "inductor_plugin/aot/fake_device.py",
        "inductor_plugin/inductor/facts/toolchain.py",
        "inductor_plugin/worker/child/inductor.py",
    },
}
"""Optional packages that are imported by their names, which import-linter does not see, and by which modules.

Those that are imported by a statement have a contract in pyproject.toml."""


def named(text: str) -> Iterator[str]:
    """Yield the packages that a module imports by their names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield str(name.value).partition(".")[0]


def test_an_optional_package_is_imported_by_its_name_in_the_modules_that_own_it(
    repository: Path,
) -> None:
    importers: dict[str, set[str]] = {}
    for root in ("inductor_plugin", "cache", "templates"):
        for path in (repository / root).rglob("*.py"):
            for name in named(path.read_text(encoding="utf-8")):
                if name not in (*sys.stdlib_module_names, "inductor_plugin", "torch"):
                    importers.setdefault(name, set()).add(str(path.relative_to(repository)))
    assert importers == BY_NAME
