"""A cache directory as the shelves use it: locks, atomic writes, and the fallback to memory."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.lock import Held, LockTable
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

TOUCH_S = 60.0
"""Least interval between updates of an entry's time of use, in seconds."""

MISSING = (FileNotFoundError, NotADirectoryError)
"""Errors of opening a missing file; the second is raised if a parent is not a folder."""

Signature = tuple[int, int, int]


@dataclass
class Folder:
    """A cache directory, or the memory that replaces it.

    Attributes:
        layout: Its paths.
        degraded: Why nothing is written to disk, or None.
    """

    layout: Layout
    degraded: str | None = None
    _untold: str | None = None
    _locks: LockTable = field(default_factory=LockTable)
    _reported: set[str] = field(default_factory=set[str])
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def lock(self, name: str, timeout_s: float) -> Held:
        """Return the lock of a key, to be used in a `with` statement.

        Entering raises CacheError if the lock is not free within ``timeout_s`` seconds.
        """
        return _FolderLock(self, self._locks, name, timeout_s)

    def degrade(self, reason: str, *, quietly: bool = False) -> None:
        """Write nothing to disk from now on, and warn: ``quietly``, not before `tell_of_memory`."""
        with self._guard:
            if self.degraded is not None:
                return
            self.degraded = self._untold = reason
        if not quietly:
            self.tell_of_memory()

    def tell_of_memory(self) -> None:
        """Warn, once, that nothing is written; called when there is something to write.

        Where everything is found in a read-only directory there is nothing to warn of.
        """
        with self._guard:
            reason, self._untold = self._untold, None
        if reason is None:
            return
        logger.warning(
            "inductor-plugin: the cache directory %s is not written to: %s; "
            "what is tuned now is kept in memory only",
            self.layout.root,
            reason,
        )

    def write(self, path: Path, fields: dict[str, Any]) -> bool:
        """Write a document with a checksum; if that fails, degrade and return False."""
        if self.degraded is not None:
            return False
        try:
            atomic.write(path, document.dump(fields), self.layout.private)
        except OSError as error:
            self.degrade(str(error))
            return False
        return True

    def touch(self, path: str) -> None:
        """Update an entry's access time, for the LRU. The modification time stays."""
        if self.degraded is not None:
            return
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116 - a Path costs 3 us, a warm lookup has 50
            now = time.time()
            if now - status.st_atime > TOUCH_S:
                os.utime(path, ns=(int(now * 1e9), status.st_mtime_ns))

    def report_damage(self, path: Path, reason: str) -> None:
        """Warn of a damaged entry, once for each path."""
        with self._guard:
            if str(path) in self._reported:
                return
            self._reported.add(str(path))
        logger.warning(
            "inductor-plugin: damaged cache entry %s: %s; it is ignored and will be made again",
            path,
            reason,
        )
        self.add_counters({"corrupt": 1})

    def forget_damage(self, path: Path) -> None:
        """Report the next damage of a path again, after it has been replaced."""
        with self._guard:
            self._reported.discard(str(path))

    def add_counters(self, sums: dict[str, int]) -> None:
        """Add to the sums over all processes; they are dropped if writing fails."""
        if self.degraded is not None or not any(sums.values()):
            return
        try:
            with self.lock("counters", 5.0):
                before = self.counters()
                total = {n: before.get(n, 0) + sums.get(n, 0) for n in sorted({*before, *sums})}
                self.write(self.layout.counters, {"format": SCHEMA, **total})
        except CacheError as error:
            logger.debug("counters were not written: %s", error)

    def counters(self) -> dict[str, int]:
        """Return the sums over all processes; empty if there are none or they are damaged."""
        try:
            fields = document.load(self.layout.counters.read_bytes())
        except (OSError, ValueError):
            return {}
        return {n: v for n, v in fields.items() if isinstance(v, int) and n != "format"}


class _FolderLock(Held):
    """A key's lock; without a lock file on disk, it only synchronizes threads."""

    def __init__(self, folder: Folder, table: LockTable, name: str, timeout_s: float) -> None:
        super().__init__(table, name, None, timeout_s)
        self._folder = folder

    def __enter__(self) -> None:
        folder = self._folder
        path = None if folder.degraded is not None else folder.layout.lock(self._name)
        try:
            if path is not None:
                atomic.make_folder(path.parent)
            self._table.acquire(self._name, path, self._timeout_s)
        except OSError as error:
            folder.degrade(f"no lock file: {error}")
            self._table.acquire(self._name, None, self._timeout_s)


def signature(path: str) -> Signature | None:
    """Return facts that change when a file is replaced, or None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path costs 3 us, a warm lookup has 50
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
