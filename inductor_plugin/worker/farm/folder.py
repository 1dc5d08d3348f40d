"""A folder of a process on a node. A process that is killed leaves its own; the next one on that machine removes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from pathlib import Path
from typing import Literal

from inductor_plugin.cache.owner import belongs_to_user

_PREFIX, _LOCK = "inductor-plugin", "lock"
_YOUNG_S = 60.0
"""A folder without an owner may be one whose owner is about to lock it, for so long."""


class NodeFolder:
    """A folder that goes with its process.

    Its owner holds a lock on a file in it, which the system gives up when the process ends, however it ends.

    Attributes:
        path: The folder.
    """

    def __init__(self, kind: Literal["farm", "node"]) -> None:
        """Create it, and remove those of processes that were killed.

        Args:
            kind: What it is of, for people: of what compiles, or of what measures.

        Raises:
            OSError: It cannot be created.
        """
        root = Path(tempfile.gettempdir())
        sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{kind}-", dir=root))
        lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)

    def remove(self) -> None:
        """Remove it; again, nothing happens."""
        self._finalizer()


def sweep(root: Path) -> None:
    """Remove the folders of this user whose processes have ended."""
    for folder in root.glob(f"{_PREFIX}-*-*"):
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder is one of this user's, and its process has ended."""
    try:
        state, lock = folder.lstat(), folder / _LOCK
        if not stat.S_ISDIR(state.st_mode) or not belongs_to_user(state):
            return False
        if time.time() - lock.lstat().st_mtime < _YOUNG_S:
            return False
        handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # it has just been removed, or was never one
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
