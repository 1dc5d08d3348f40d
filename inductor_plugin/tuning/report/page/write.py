"""Writes a page: whole or not at all, since a browser may read it meanwhile."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_page(file: Path, text: str) -> int:
    """Write a page to a file, and return its bytes.

    It is written to a new file of a name that nobody can know before, so that no link of another user leads elsewhere; a
    link in the place of the page itself is replaced.

    Raises:
        OSError: It cannot be written.
    """
    data = text.encode()
    # O_EXCL and O_NOFOLLOW, as of tempfile; readable by others as other output is.
    number, name = tempfile.mkstemp(prefix=f".{file.name[:_NAME]}.", dir=file.parent)
    private = Path(name)
    try:
        with os.fdopen(number, "wb") as opened:
            os.fchmod(number, _PAGE_MODE & ~_umask())
            opened.write(data)
        private.replace(file)
    finally:
        private.unlink(missing_ok=True)
    return len(data)
