"""Whether what lies in a cache can be trusted with code that this process will load. Pure but for `stat`.

The directory and the folders in it are checked when a cache is opened, a kernel's folders and files
again when it is loaded: whoever may rename a folder above the cache can put another one in its place,
but not one of this user. So the folders above are not checked.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_OWN = ("kernels", "locks", "packs", "packs-installed", "private", "quarantine", "records")
"""The folders in a cache directory. Others, as in ``/``, are none of its business."""


@dataclass(frozen=True)
class Refusal:
    """Why a directory cannot be trusted.

    Attributes:
        what: The folder, and which users could change its content.
        remedy: How to fix it.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        """Return both, as in error messages."""
        return f"{self.what}; {self.remedy}"


def reason_to_refuse(path: Path) -> Refusal | None:
    """Return why a directory, or one of a cache's folders in it, cannot be trusted.

    None if it can be, if it does not exist, or if it is no directory and so can hold no kernels.

    Raises:
        OSError: The directory cannot be read.
    """
    if path == path.parent:
        return Refusal(f"{path} is the root of the file system", "name a folder of its own")
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    refusal = _refusal(path, status)
    if refusal is not None:
        return refusal
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in _OWN and entry.is_dir(follow_symlinks=True):
                refusal = _refusal(Path(entry.path), entry.stat())
                if refusal is not None:
                    return refusal
    return None


def kernel_refusal(root: Path, folder: Path, names: Iterable[str]) -> Refusal | None:
    """Return why a kernel's folder, one above it, or one of its files cannot be trusted.

    In a folder that only its owner may enter, as a new cache is, the modes of what lies below do not
    matter: under a umask of 002 files are writable by the group.

    Args:
        root: The cache directory.
        folder: The kernel's folder in it.
        names: Its files.

    Raises:
        OSError: One of them does not exist or cannot be read.
    """
    is_open = True
    for path in (root, folder.parent, folder, *(folder / name for name in names)):
        status = path.stat() if path == root else path.lstat()
        refusal = _refusal(path, status, is_open=is_open)
        if refusal is not None:
            return refusal
        if stat.S_ISDIR(status.st_mode):
            is_open = is_open and bool(status.st_mode & 0o011)
    return None


def _refusal(path: Path, status: os.stat_result, *, is_open: bool = True) -> Refusal | None:
    """Return why a file or folder cannot be trusted, which others may reach if ``is_open``."""
    user = os.geteuid()
    if status.st_uid not in (user, 0):  # root could replace this program as well
        return Refusal(
            f"{path} belongs to user {status.st_uid}, not to user {user}, who could replace the "
            "kernels in it",
            "choose another cache directory, or copy it and own the copy",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and is_open and not stat.S_ISLNK(status.st_mode):
        writers = "everyone" if mode & 0o002 else "its group"
        shared = status.st_uid != user or mode & stat.S_ISVTX  # /tmp: others need its mode
        return Refusal(
            f"{path} may be written by {writers} (mode {mode:04o}), who could replace the kernels in it",
            "choose another cache directory"
            if shared
            else f"if you trust its content, run: chmod go-w {shlex.quote(str(path))}",
        )
    return None
