"""ARCHITECTURE.md and the folders against the files there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.architecture import renewed
from tests.support.repository import MOST_MODULES, modules_in

MOST_ENTRIES = 25
SHORT = {
    "candidates": "inductor/candidates",
    "child": "worker/child",
    "offers.py": "inductor/candidates/offers.py",
    "visitors.py": "inductor/fusion/visitors.py",
    "visitors_split.py": "inductor/fusion/visitors_split.py",
    "evt_source.py": "templates/cutlass/evt_source.py",
}
"""Names that the text shortens where it has just given the folder."""


def exists(repository: Path, name: str) -> bool:
    """Return whether a path of the text is a file or folder, in the repository or the package."""
    first, _, rest = name.partition("/")
    names = (name, SHORT.get(name, name), f"{SHORT.get(first, first)}/{rest}")
    roots = (repository, repository / "inductor_plugin")
    return any(list(root.glob(key)) for root in roots for key in names)


def test_the_generated_parts_are_current(repository: Path):
    text = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert renewed(text, repository) == text, "run `make docs`"


def test_every_file_of_the_text_exists(repository: Path):
    text = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"(?<![\w./<])((?:[\w*]+/)*[\w*]+\.(?:py|h|md|toml))\b", text))
    assert len(paths) > 40
    assert [path for path in sorted(paths) if not exists(repository, path)] == []


@pytest.mark.parametrize("root", ["inductor_plugin", "templates", "cache"])
def test_folders_are_small_and_say_what_lives_in_them(root: str, repository: Path):
    for folder in (repository / root, *(repository / root).rglob("*/")):
        modules = modules_in(folder)
        if modules:
            assert len(modules) <= MOST_MODULES, folder
            package = (folder / "__init__.py").read_text(encoding="utf-8")
            assert ast.get_docstring(ast.parse(package)), folder


def test_a_package_that_only_exports_is_no_module_of_its_folder(tmp_path: Path):
    (tmp_path / "a.py").write_text("")
    package = tmp_path / "__init__.py"
    package.write_text('"""What is here."""\n\nfrom os import sep\n\n__all__ = ["sep"]\n')
    assert modules_in(tmp_path) == [tmp_path / "a.py"]
    package.write_text("def f() -> None: ...\n")
    assert set(modules_in(tmp_path)) == {tmp_path / "a.py", package}


def test_the_package_fits_a_screen(repository: Path):
    entries = [
        path for path in (repository / "inductor_plugin").iterdir() if path.name != "__pycache__"
    ]
    assert len(entries) <= MOST_ENTRIES
