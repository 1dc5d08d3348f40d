"""A digest of the files that figures or tests were made with; a checkout without git has one, too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PLUGIN = ("inductor_plugin", "templates", "cache")
_SUFFIXES = (".py", ".jinja", ".h", ".cuh")


def sources_digest(places: Iterable[str], repository: Path = REPOSITORY) -> str:
    """Return 16 hexadecimal digits that change with any source in these folders and files."""
    digest = hashlib.sha256()
    for place in places:
        root = repository / place
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and path.suffix in _SUFFIXES:
                digest.update(str(path.relative_to(repository)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
