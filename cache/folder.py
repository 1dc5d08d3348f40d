"""A cache directory as the shelves use it: locks, atomic writes, and the fallback to memory."""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.guard import MISSING, read
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.lock import HeldLock, LockTable
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

TOUCH_S = 60.0
"""Least interval between updates of an entry's time of use, in seconds."""

RETRY_S = 60.0
"""Seconds for which nothing is written after an error that may pass."""

SETTLED_S = 3.0
"""Age of a folder's last change from which its time tells of every later one: file systems round times, FAT to 2 s, so
two changes within one step look like one."""

ALLOWANCE_PREFIX = "graph_allowance_ms_"
"""Beginning of the names of sums that are balances, not counts: the time that compiles of an environment have saved up to compare graphs."""

_PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors that pass when a disk has room again, or a process has closed files."""

Signature = tuple[int, int, int]
Entry = TypeVar("Entry")


class Folder:
    """A cache directory, or the memory that replaces it.

    Attributes:
        layout: Its paths.
        trust: Whose kernels from elsewhere may be loaded.
        unwritten: Number of entries so far that were to be written and are kept in memory only.
    """

    def __init__(self, layout: Layout, trust: Trust | None = None) -> None:
        """Use the directory of ``layout``."""
        self.layout = layout
        self.trust = trust or Trust()
        self._read_only = False
        self.unwritten = 0
        self._reason: str | None = None
        self._retry_at = math.inf
        self._warned = False
        self._untold: str | None = None
        self._locks = LockTable()
        self._reported: set[tuple[str, str]] = set()
        self._guard = threading.Lock()

    @property
    def degraded(self) -> str | None:
        """Why nothing is written to disk, or None."""
        if self._reason is not None and time.monotonic() >= self._retry_at:
            with self._guard:
                self._reason, self._retry_at = None, math.inf
        return self._reason

    def lock(self, name: str, timeout_s: float) -> HeldLock:
        """Return the lock of a key, to be used in a `with` statement.

        Entering raises CacheError if the lock is not free within ``timeout_s`` seconds.
        """
        return _FolderLock(self, self._locks, name, timeout_s)

    def close(self, reason: str) -> None:
        """Write nothing to disk for the life of this object, without a warning."""
        with self._guard:
            self._reason, self._retry_at, self._warned = reason, math.inf, True

    def open_read_only(self) -> None:
        """Change nothing on disk for the life of this object, neither write nor remove."""
        self._read_only = True
        self.close("it is only read")

    def check_may_change(self) -> None:
        """Raise CacheError if the directory is only read. Where writing failed, files may be removed: a full disk needs it."""
        if self._read_only:
            raise CacheError(
                f"nothing is changed in {self.layout.root}: it was opened read-only; open it without read_only=True"
            )

    def degrade(self, cause: str | Exception, *, quietly: bool = False) -> None:
        """Write nothing to disk from now on, and warn the first time: ``quietly``, not before `tell_of_memory`.

        After an error that may pass, writing is tried again `RETRY_S` later.
        """
        passing = isinstance(cause, OSError) and cause.errno in _PASSING
        with self._guard:
            if self._reason is not None:
                return
            self._reason = str(cause)
            self._retry_at = time.monotonic() + RETRY_S if passing else math.inf
            if self._warned:
                return
            self._warned = True
            again = f", and writing is tried again in {RETRY_S:.0f} s" if passing else ""
            self._untold = f"{cause}; what is tuned now is kept in memory only{again}"
        if not quietly:
            self.tell_of_memory()

    def tell_of_memory(self) -> None:
        """Warn, once, that nothing is written; called when there is something to write.

        Where everything is found in a read-only directory there is nothing to warn of.
        """
        with self._guard:
            reason, self._untold = self._untold, None
        if reason is not None:
            logger.warning(
                "inductor-plugin: the cache directory %s is not written to: %s",
                self.layout.root,
                reason,
            )

    def count_unwritten(self) -> None:
        """Count an entry that is kept in memory only."""
        with self._guard:
            self.unwritten += 1

    def write(self, path: Path, fields: dict[str, Any]) -> bool:
        """Write a document with a checksum; if that fails, degrade and return False."""
        if self.degraded is not None:
            return False
        try:
            atomic.write(path, document.dump(fields), self.layout.private)
        except IsADirectoryError as error:  # a folder in the place of this one file
            self.report(path, error)
            return False
        except OSError as error:
            self.degrade(error)
            return False
        return True

    def touch(self, path: str) -> None:
        """Update an entry's access time, for the LRU. The modification time stays."""
        if self.degraded is not None:
            return
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116 - a Path costs 3 us, a warm lookup has 50
            now = time.time()
            if abs(now - status.st_atime) > TOUCH_S:  # the clock may have been ahead
                os.utime(path, ns=(int(now * 1e9), status.st_mtime_ns))

    def parsed(self, path: Path, parse: Callable[[bytes, Path], Entry]) -> Entry | None:
        """Return what ``parse`` makes of an entry's file; None if it is missing, or damaged, which is reported."""
        try:
            return parse(read(path), path)
        except MISSING:
            return None
        except (OSError, ValueError) as error:
            self.report(path, error)
            return None

    def report(self, path: Path, error: OSError | ValueError) -> None:
        """Log why an entry is not used, once for each path and kind of reason.

        Only damage is counted: a file that cannot be read, and one of another version, may be sound.
        """
        if isinstance(error, OSError):
            if self._is_new("unreadable", path):
                logger.warning(
                    "inductor-plugin: the cache entry %s cannot be read: %s; "
                    "it counts as missing until it can be, and is not removed",
                    path,
                    error,
                )
        elif not is_damage(error):
            if self._is_new("foreign", path):
                logger.info("%s is another version's: %s; it is left alone", path, error)
        elif self._is_new("damaged", path):
            logger.warning(
                "inductor-plugin: damaged cache entry %s: %s; it is ignored and will be made again",
                path,
                error,
            )
            self.add_counters({"corrupt": 1})

    def _is_new(self, kind: str, path: Path) -> bool:
        with self._guard:
            known = (kind, str(path)) in self._reported
            self._reported.add((kind, str(path)))
        return not known

    def forget_damage(self, path: Path) -> None:
        """Report the next damage of a path again, after it has been replaced."""
        with self._guard:
            self._reported.discard(("damaged", str(path)))

    def add_counters(self, sums: dict[str, int]) -> None:
        """Add to the sums over all processes; they are dropped if writing fails."""
        if self.degraded is not None or not any(sums.values()):
            return
        try:
            with self.lock("counters", 5.0):
                before = self._counters()
                if before is None:
                    return
                counts = _counts(before)
                total = {n: counts.get(n, 0) + sums.get(n, 0) for n in sorted({*counts, *sums})}
                self.write(self.layout.counters, {**before, "format": SCHEMA, **total})
        except CacheError as error:
            logger.debug("counters were not written: %s", error)

    def zero_counters(self) -> None:
        """Begin to count anew; sums that are balances stay.

        Raises:
            CacheError: The lock was not free within five seconds, writing failed, or the cache is only read.
        """
        self.check_may_change()
        with self.lock("counters", 5.0):
            saved = {
                name: ms
                for name, ms in self.counters().items()
                if name.startswith(ALLOWANCE_PREFIX)
            }
            if not saved:
                self.layout.counters.unlink(missing_ok=True)
            elif not self.write(self.layout.counters, {"format": SCHEMA, **saved}):
                raise CacheError(f"the counters stay as they are: {self.degraded}")

    def counters(self) -> dict[str, int]:
        """Return the sums over all processes; empty if there are none or they are damaged."""
        return _counts(self._counters() or {})

    def _counters(self) -> dict[str, Any] | None:
        """Return the fields of the sums, None if they are not to be replaced; damaged ones are lost."""
        try:
            fields = document.load(read(self.layout.counters))
            document.check_format(fields, SCHEMA)
        except MISSING:
            return {}
        except (OSError, document.ForeignError):
            return None
        except ValueError:
            return {}
        return fields


class _FolderLock(HeldLock):
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
        except (OSError, NotImplementedError) as error:
            if path is not None and not _may_be_locked(path):
                raise CacheError(f"the lock {path} is not a file; remove it") from error
            folder.degrade(error)
            self._table.acquire(self._name, None, self._timeout_s)


def _may_be_locked(path: Path) -> bool:
    """Return False if something that is not a file lies in the place of this one lock file."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return True


def is_damage(error: OSError | ValueError) -> bool:
    """Return True if an error in reading an entry says that its content is damaged."""
    return isinstance(error, ValueError) and not isinstance(error, document.ForeignError)


def _counts(fields: dict[str, Any]) -> dict[str, int]:
    return {
        name: value
        for name, value in fields.items()
        if isinstance(value, int) and not isinstance(value, bool) and name != "format"
    }


def signature(path: str) -> Signature | None:
    """Return facts that change when a file is replaced, or None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path costs 3 us, a warm lookup has 50
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class Listing:
    """Names in folders of a cache. A call costs one `stat` (1 us); opening a missing file costs 8 us."""

    def __init__(self) -> None:
        """Know no folder yet."""
        self._known: dict[Path, tuple[tuple[int, int, int], frozenset[str]]] = {}

    def names(self, folder: Path) -> frozenset[str] | None:
        """Return the names in a folder, none if it does not exist; None if it cannot be listed.

        Any process may have changed the folder: that changes its time, so its names are read again. While
        its time is younger than `SETTLED_S`, they are read at each call.
        """
        try:
            status = os.stat(folder)  # noqa: PTH116 - a Path costs 3 us
            signature = (status.st_mtime_ns, status.st_ino, status.st_dev)
            known = self._known.get(folder)
            if known is not None and known[0] == signature:
                return known[1]
            names = frozenset(os.listdir(folder))  # noqa: PTH208 - only names are needed
        except MISSING:
            return frozenset()
        except OSError:
            return None
        if time.time() - status.st_mtime > SETTLED_S:
            self._known[folder] = (signature, names)
        return names
