"""Which of tests and benchmarks may import which: shared things have one home each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def forbidden(module: str, text: str) -> list[str]:
    """Return what a module may not import, one line each."""
    mine = max((one for one in ALLOWED if inside(module, one)), key=len)
    other = "benchmarks" if inside(module, "tests") else "tests"
    return [
        f"{module} imports {name}"
        for name in imported(text)
        if inside(name, other) and not any(inside(name, one) for one in ALLOWED[mine])
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
        ("tests.support.fakes", "from benchmarks.harness import resume", False),
        ("tests.gpu.conftest", "from benchmarks.harness.resume import Rows", True),
        ("tests.gpu.conftest", "from benchmarks import gemm", False),
        ("tests.benchmarks.test_gemm", "from benchmarks import gemm", True),
        ("tests.package.test_config", "import benchmarks", False),
        ("tests.package.test_config", "import tests.support", True),
    ],
)
def test_the_rule_is_held(module: str, text: str, allowed: bool) -> None:
    assert (forbidden(module, text) == []) == allowed
