"""Who holds a lock of the cache, and whether that process still makes progress.

A holder touches the lock's file while it works. Who waits sees a stopped process (Ctrl-Z, a frozen container, a
machine that swaps) by a file that is not touched any more, however long the holder may work in total.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inductor_plugin.cache import Store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.task import Task

logger = logging.getLogger(__name__)

TOUCH_S = 1.0
"""Least seconds between two touches of a file."""
NOTICE_S = 10.0
"""A wait is logged after so many seconds, once for each lock."""
_PROC_LOCKS = Path("/proc/locks")


def silence_s(config: Config) -> float:
    """Return the seconds without progress after which a process that measures a problem is given up.

    They are those of the longest step and of one more measurement.
    """
    compile_s = config.compile_timeout_s or math.inf
    return compile_s + 2 * (config.bench_timeout_s or math.inf)


def wait_s(config: Config) -> float:
    """Return how long a compile waits for tuning without any progress.

    A batch of eight kernels may take 2.75 times the limit of one without a word.
    """
    return 60.0 + 4 * (config.compile_timeout_s or math.inf) + silence_s(config)


def touch(path: Path) -> None:
    """Say that the holder of a lock makes progress: set the access time of the lock's file.

    The modification time stays: older versions of filelock change it whenever somebody tries the lock.
    """
    with suppress(OSError):
        status = path.stat()
        os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))


def holder_pid(path: Path, table: Path = _PROC_LOCKS) -> int | None:
    """Return the number of the process on this machine that holds a lock; None if that is not known.

    A line of the table: ``1: FLOCK  ADVISORY  WRITE 708 08:01:1234 0 EOF`` (proc_locks(5)).
    """
    try:
        status = path.stat()
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    name = f"{device}:{status.st_ino}"
    pids = [row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == name]
    return int(pids[0]) if pids and pids[0].isdecimal() and pids[0] != "0" else None


class HolderWatch:
    """How long the holder of a lock has been silent, by this process's clock."""

    def __init__(self, path: Path) -> None:
        """Watch the file of a lock."""
        self.path = path
        self.started = self._changed = time.monotonic()
        self._seen = self._stamp()
        self._noticed = False

    def silent_s(self) -> float:
        """Return the seconds since the file was touched last, as far as this object has seen."""
        stamp, now = self._stamp(), time.monotonic()
        if stamp != self._seen:
            self._seen, self._changed = stamp, now
        return now - self._changed

    def notice(self, what: str) -> None:
        """Log once which process is waited for, after `NOTICE_S`."""
        if not self._noticed and time.monotonic() - self.started > NOTICE_S:
            self._noticed = True
            logger.info("inductor-plugin: %s waits for %s", what, self.holder)

    @property
    def holder(self) -> str:
        """The holder in words."""
        pid = holder_pid(self.path)
        return f"process {pid}" if pid else "another process"

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_atime_ns


class ProblemLocks:
    """The locks of problems: one process measures each at a time."""

    def __init__(self, store: Store, silence_s: float) -> None:
        """Lock in a cache, and wait for a holder that is silent for at most ``silence_s`` seconds."""
        self._store = store
        self._silence_s = silence_s
        self._watches: dict[str, HolderWatch] = {}
        self._touched: dict[str, float] = {}

    def __call__(self, task: Task) -> Callable[[], None] | None:
        """Take a problem's lock and return its release; None while another process measures it.

        If that process has been silent for too long, the problem is measured here without the lock.
        """
        lock = self._store.lock_kernel(_name(task), timeout_s=0)
        try:
            lock.__enter__()
        except CacheError:
            return self._waits(task)
        self._watches.pop(task.digest, None)

        def release() -> None:
            lock.__exit__(None, None, None)

        return release

    def touch(self, task: Task) -> None:
        """Say that a problem whose lock is held here makes progress."""
        now = time.monotonic()
        if now - self._touched.get(task.digest, -math.inf) >= TOUCH_S:
            self._touched[task.digest] = now
            touch(self._store.layout.lock(_name(task)))

    def _waits(self, task: Task) -> Callable[[], None] | None:
        path = self._store.layout.lock(_name(task))
        watch = self._watches.setdefault(task.digest, HolderWatch(path))
        describe = task.problem.describe()
        watch.notice(describe)
        if watch.silent_s() <= self._silence_s:
            return None
        logger.warning(
            "inductor-plugin: %s measures %s and has been silent for %.0f s; it is measured here, too",
            watch.holder,
            describe,
            watch.silent_s(),
        )
        del self._watches[task.digest]
        return lambda: None


class Holds:
    """The problems whose locks a pipeline holds, and the tasks that measure them. Its caller locks it."""

    def __init__(self, locks: ProblemLocks) -> None:
        """Hold nothing yet."""
        self._locks = locks
        self._held: dict[str, tuple[Task, Callable[[], None]]] = {}
        self._kept_at = -math.inf

    def has(self, task: Task) -> bool | None:
        """Return whether a task measures its problem; None if no task of this pipeline does."""
        held = self._held.get(task.digest)
        return None if held is None else held[0] is task

    def add(self, task: Task, release: Callable[[], None]) -> None:
        """Store that a task holds its problem's lock, with what releases it."""
        self._held[task.digest] = (task, release)

    def remove(self, task: Task) -> Callable[[], None]:
        """Forget a task's hold, and return what releases the lock: nothing where it held none."""
        if not self.has(task):
            return _nothing
        return self._held.pop(task.digest)[1]

    def keep_or_give_back(self, *, waiting: bool) -> None:
        """Say that held problems make progress, or release them.

        A task that waits for a thread to wait for it (``exclusive``) makes none where that thread was
        interrupted; other processes must not wait for this one then.
        """
        now = time.monotonic()
        if waiting and now - self._kept_at < TOUCH_S:  # it is called at each news, for all problems
            return
        self._kept_at = now
        for digest, (task, release) in list(self._held.items()):
            if waiting or not task.exclusive:
                self._locks.touch(task)
            else:
                del self._held[digest]
                release()


def _nothing() -> None:
    pass


def _name(task: Task) -> str:
    return f"measure-{task.digest}"
