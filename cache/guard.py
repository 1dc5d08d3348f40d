"""Whether a directory can be trusted with code that this process will load. Pure but for `stat`."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def reason_to_refuse(path: Path) -> str | None:
    """Return why the directory, or a folder directly in it, cannot be trusted, with the remedy.

    None if it can be, or if it does not exist.

    Raises:
        OSError: The directory cannot be looked at.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    reason = _reason(path, found)
    if reason is not None or not stat.S_ISDIR(found.st_mode):
        return reason
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=True):
                reason = _reason(Path(entry.path), entry.stat())
                if reason is not None:
                    return reason
    return None


def _reason(path: Path, found: os.stat_result) -> str | None:
    user = os.geteuid()
    if found.st_uid != user:
        return (
            f"{path} belongs to user {found.st_uid}, not to user {user}, who could replace the "
            "kernels in it; choose another cache directory, or copy it and own the copy"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        who = "everyone" if mode & 0o002 else "its group"
        return (
            f"{path} may be written by {who} (mode {mode:04o}), who could replace the kernels in "
            f"it; if you trust its content, run: chmod go-w {path}"
        )
    return None
