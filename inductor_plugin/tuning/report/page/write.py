"""Writes a page: whole or not at all, since a browser may read it meanwhile."""

from __future__ import annotations

from pathlib import Path

from inductor_plugin.cache.transfer.draft import draft_of


def write_page(file: Path, text: str) -> int:
    """Write a page to a file, and return its bytes. A link in the place of the file is replaced, not followed.

    Raises:
        OSError: It cannot be written.
    """
    data = text.encode()
    with draft_of(file) as draft:
        draft.write_bytes(data)
    return len(data)
