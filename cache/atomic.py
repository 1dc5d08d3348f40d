"""Atomic writes of files and folders.

A file is written under a private name and renamed. There is no `fsync`: a killed process loses
nothing, and damage by a power failure is detected by the checksum.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from inductor_plugin.cache import owner

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def private_path(private: Path) -> Path:
    """Return an unused path in a folder, which is created if needed; its name identifies this process."""
    make_folder(private)
    return private / f"{owner.prefix()}{secrets.token_hex(8)}"


def write(path: Path, data: bytes, private: Path) -> None:
    """Write a file so that readers see either the old or the new content, never a part.

    Raises:
        OSError: The disk is full, read-only, or missing.
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
        OSError: The disk is full, read-only, or missing.
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
    """Rename a folder away, then delete its content; return False if it did not exist.

    Raises:
        OSError: The disk is read-only or missing.
    """
    doomed = private_path(private)
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def make_folder(path: Path) -> None:
    """Create a folder and its parents with mode 0700.

    Raises:
        OSError: A folder cannot be created.
    """
    if path.is_dir():
        return
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
