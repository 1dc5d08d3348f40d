"""One lock per key: between threads by a table, between processes by a lock file, always limited."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from inductor_plugin.errors import CacheError

_POLL_S = 0.01


@dataclass
class _Hold:
    thread: threading.Thread  # not its ident, which a later thread may reuse
    depth: int
    file: FileLock | None = None


class LockTable:
    """The locks that a process holds.

    The thread that took a lock may take it again; any thread may release it.
    """

    def __init__(self) -> None:
        """Hold nothing."""
        self._changed = threading.Condition()
        self._holds: dict[str, _Hold] = {}

    def acquire(self, name: str, path: Path | None, timeout_s: float) -> None:
        """Take a lock; its file is ``path``, None to lock between the threads of this process only.

        Raises:
            CacheError: The lock was not free within ``timeout_s`` seconds; 0 tries once.
            OSError: The lock file cannot be created.
        """
        deadline = time.monotonic() + timeout_s
        if not self._reserve(name, deadline):
            raise _busy(name, timeout_s, "a thread of this process")
        hold = self._holds[name]
        if hold.depth > 1 or path is None:
            return
        try:
            hold.file = _lock_file(path, deadline)
        except Timeout:
            self.release(name)
            raise _busy(name, timeout_s, "another process") from None
        except BaseException:
            self.release(name)
            raise

    def release(self, name: str) -> None:
        """Release a lock; call it as often as `acquire`."""
        with self._changed:
            hold = self._holds.get(name)
            if hold is None:
                return
            hold.depth -= 1
            if hold.depth:
                return
            if hold.file is not None:
                hold.file.release()
            del self._holds[name]
            self._changed.notify_all()

    def is_mine(self, name: str) -> bool:
        """Return True if the calling thread holds a lock."""
        with self._changed:
            hold = self._holds.get(name)
            return hold is not None and hold.thread is threading.current_thread()

    def _reserve(self, name: str, deadline: float) -> bool:
        thread = threading.current_thread()
        with self._changed:
            while True:
                hold = self._holds.get(name)
                if hold is None:
                    self._holds[name] = _Hold(thread, 1)
                    return True
                if hold.thread is thread:
                    hold.depth += 1
                    return True
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._changed.wait(remaining_s)


class HeldLock:
    """A lock as a context manager: acquired on entry, released on exit, by any thread."""

    def __init__(self, table: LockTable, name: str, path: Path | None, timeout_s: float) -> None:
        """Lock ``name`` by the file ``path`` within ``timeout_s`` seconds."""
        self._table = table
        self._name = name
        self._path = path
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            CacheError: The lock was not free in time.
            OSError: The lock file cannot be created, or the file system has no locks.
        """
        self._table.acquire(self._name, self._path, self._timeout_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._table.release(self._name)


def remove_unused(path: Path) -> bool:
    """Delete a lock file if no process holds it; return True if it is gone.

    Acquiring a lock checks that its file still has a name, so that a lock on a file that was deleted
    meanwhile is not mistaken for a lock on the file that replaced it.
    """
    lock = _native(path)
    try:
        lock.acquire(timeout=0)  # pyright: ignore[reportUnknownMemberType] - a generic proxy
    except (Timeout, OSError, NotImplementedError):
        return False
    try:
        with suppress(FileNotFoundError):
            path.unlink()
    finally:
        lock.release()
    return True


def _native(path: Path) -> FileLock:
    """Return a lock of the operating system, which ends with its process.

    Where a file system has none, filelock would tell by the existence of a file, which a killed process
    leaves behind.
    """
    return FileLock(path, thread_local=False, fallback_to_soft=False)


def _lock_file(path: Path, deadline: float) -> FileLock:
    """Return the acquired lock of a file that still exists."""
    while True:
        lock = _native(path)
        remaining_s = max(0.0, deadline - time.monotonic())
        lock.acquire(remaining_s, _POLL_S)  # pyright: ignore[reportUnknownMemberType] - a generic proxy
        if path.exists():
            return lock
        lock.release()


def _busy(name: str, timeout_s: float, holder: str) -> CacheError:
    return CacheError(
        f"the lock of {name} is held by {holder} and was not free within {timeout_s:g} s; "
        "try again when that one has ended, or use another cache directory"
    )
