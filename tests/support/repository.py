"""The checkout: its path, and how many modules its folders may have."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_MODULES = 20
"""Modules of a folder, of the package or of its tests, beside ``__init__.py``."""


def modules_in(folder: Path) -> list[Path]:
    """Return the modules of a folder that count: all but ``__init__.py``, which says what the folder is for."""
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]
