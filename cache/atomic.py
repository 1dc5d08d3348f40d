"""Files and folders that appear whole or not at all.

A file is written under a private name and renamed. There is no `fsync`: a killed process loses
nothing, and what a power failure tears is found by its checksum.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def private_path(private: Path) -> Path:
    """Return a name nobody else uses, in a folder that is made if it is not there."""
    make_folder(private)
    return private / f"{os.getpid()}-{secrets.token_hex(8)}"


def write(path: Path, data: bytes, private: Path) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Raises:
        OSError: The disk is full, read-only, or not there.
    """
    draft = private_path(private)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        try:
            draft.replace(path)
        except FileNotFoundError:
            make_folder(path.parent)
            draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def publish_folder(draft: Path, target: Path) -> bool:
    """Rename a finished folder to its public name; return False if that name is taken.

    Raises:
        OSError: The disk is full, read-only, or not there.
    """
    make_folder(target.parent)
    try:
        draft.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def remove_folder(path: Path, private: Path) -> bool:
    """Make a folder disappear at once, then delete what was in it; return False if it was gone.

    Raises:
        OSError: The disk is read-only, or not there.
    """
    doomed = private_path(private)
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def make_folder(path: Path) -> None:
    """Make a folder and those above it, closed to others.

    Raises:
        OSError: It cannot be made.
    """
    if path.is_dir():
        return
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
