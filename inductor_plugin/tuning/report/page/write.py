"""Writes a page: whole or not at all, since a browser may read it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def write_page(file: Path, text: str) -> int:
    """Write a page to a file, and return its bytes.

    Raises:
        OSError: It cannot be written.
    """
    data = text.encode()
    private = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        private.write_bytes(data)
        private.replace(file)
    finally:
        private.unlink(missing_ok=True)
    return len(data)
