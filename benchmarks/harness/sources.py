"""A digest of the sources that results were measured with; it does not need git."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness.repository import REPOSITORY

PLUGIN = ("inductor_plugin", "templates", "cache")
_SUFFIXES = (".py", ".jinja", ".h", ".cuh")


def sources_digest(places: Iterable[str], repository: Path = REPOSITORY) -> str:
    """Return 16 hexadecimal digits that change with any source in these folders and files.

    Only the content counts, so that figures stay valid when files are moved or renamed.
    """
    contents: list[bytes] = []
    for place in places:
        root = repository / place
        for path in [root] if root.is_file() else root.rglob("*"):
            if path.is_file() and path.suffix in _SUFFIXES:
                contents.append(path.read_bytes())  # noqa: PERF401 - two loops and a condition
    digests = sorted(hashlib.sha256(content).digest() for content in contents)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]
