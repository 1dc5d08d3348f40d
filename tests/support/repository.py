"""The checkout: its path, and how many modules its folders may have."""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_MODULES = 20
"""Modules of a folder, of the package or of its tests, as `modules_in` counts them."""


def modules_in(folder: Path) -> list[Path]:
    """Return the modules of a folder that count.

    An ``__init__.py`` that says what the folder is for, and at most exports what its modules define, is not among them;
    one with a function or a class of its own is.
    """
    return [path for path in folder.glob("*.py") if path.name != "__init__.py" or _has_code(path)]


def _has_code(path: Path) -> bool:
    """Return True if a module has a function or a class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
