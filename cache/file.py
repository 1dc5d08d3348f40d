"""Reading a file of the cache: a regular file of a limited size, never a pipe or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_DOCUMENT_BYTES = 16 << 20
"""Size up to which a document is read: 30,000 candidates; parsing it takes 0.3 s."""

MISSING = (FileNotFoundError, NotADirectoryError)
"""Errors of opening a missing file; the second is raised if a parent is not a folder."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe would wait for a writer
_LIMIT = "it has more than {} bytes, which no file of its kind has"


def read(path: Path | str, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: The file does not exist, cannot be read, or is a folder.
        ValueError: It is a pipe or a device, or larger than ``limit_bytes``.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit_bytes:
            raise ValueError(_LIMIT.format(limit_bytes))
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ValueError(_LIMIT.format(limit_bytes))
    return data


def open_regular(path: Path | str, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: The file.
        follow: Whether the path may be a link to the file.

    Raises:
        OSError: The file does not exist, cannot be read, or is a folder.
        ValueError: It is a pipe or a device, or a link that is not to be followed.
    """
    try:
        descriptor = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link" if not follow else "it is a link to itself") from None
        if error.errno == errno.ENXIO:  # a socket
            raise ValueError("it is a socket, not a file") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise ValueError("it is a pipe or a device, not a file")


def exists(path: Path | str) -> bool:
    """Return True if there is something at a path; False also where this process may not look."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises PermissionError


def is_folder(path: Path | str) -> bool:
    """Return True if there is a folder at a path; False also where this process may not look."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises PermissionError
