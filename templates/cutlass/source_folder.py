"""The C++ files of a family of kernels: their digest, and their text with placeholders replaced."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

_PLACE = re.compile(r"@(\w+)@")


KEPT = Path(__file__).resolve().parent / "source" / "kept.h"
"""What a kernel keeps from call to call; of products and attention."""


def digest_of(folder: Path, *more: Path) -> str:
    """Return a digest of all files of a folder, and of further files."""
    digest = hashlib.sha256()
    for path in (*sorted(folder.iterdir()), *more):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def filled(path: Path, words: Mapping[str, str]) -> str:
    """Return the text of a file, with a word for each ``@placeholder@``."""
    return _PLACE.sub(lambda match: words[match[1]], path.read_text(encoding="utf-8"))
