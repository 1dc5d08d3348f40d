"""Whether a directory can be trusted with code that this process will load. Pure but for `stat`."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


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


def reason_to_refuse(path: Path, owners: Collection[int] | None = None) -> Refusal | None:
    """Return why the directory, or a folder directly in it, cannot be trusted.

    None if it can be, or if it does not exist.

    Args:
        path: The directory.
        owners: The users who may own it; by default the one of this process.

    Raises:
        OSError: The directory cannot be read.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    refusal = _refusal(path, status, owners)
    if refusal is not None or not stat.S_ISDIR(status.st_mode):
        return refusal
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=True):
                refusal = _refusal(Path(entry.path), entry.stat(), owners)
                if refusal is not None:
                    return refusal
    return None


def _refusal(path: Path, status: os.stat_result, owners: Collection[int] | None) -> Refusal | None:
    user = os.geteuid()
    if status.st_uid not in (owners or {user}):
        return Refusal(
            f"{path} belongs to user {status.st_uid}, not to user {user}, who could replace the "
            "kernels in it",
            "choose another cache directory, or copy it and own the copy",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022:
        writers = "everyone" if mode & 0o002 else "its group"
        return Refusal(
            f"{path} may be written by {writers} (mode {mode:04o}), who could replace the kernels in it",
            f"if you trust its content, run: chmod go-w {path}",
        )
    return None
