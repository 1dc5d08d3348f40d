"""Whose turn it is to measure on a GPU: one process of the machine at a time, by a lock named after the GPU.

Two processes that compute on a GPU at once get slices of some two milliseconds in turns, so that either measures the
other, too. The lock is the operating system's and ends with its process, however that ends. Its folder is this user's own,
in memory that containers share where they share anything: another user could hold a lock for ever, and what others compute
on the GPU is seen by NVML (worker/nvml.py).

A process that measures job after job frees its lock for microseconds only, so that another that polls for it hardly ever
finds it free (0.6 to 9 s were seen). So the locks are a queue of two: the next process holds the second while it waits for
the first, and a process that has just had its turn waits for the second, too.

The process that holds a GPU says so at each step (`Turn.touch`), and is waited for as long as it does: its parent ends it where a step
takes too long. A process that gives up measures all the same, and leaves a mark, so that the holder knows what was disturbed.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache.guard import why_not_trusted
from inductor_plugin.cache.lock import HeldLock, LockTable
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

WAIT_S = 150.0
"""Longest wait for a process that shows no life: more than a step of its job may take, which is 60 s to build operands, and 30 s
for a candidate (`bench_timeout_s`)."""
_MOST_S = 900.0
"""Longest wait in all, where the caller says no other."""
_LOOK_S = 2.0
"""Seconds between two looks whether the holder shows life."""
_SHARED = Path("/dev/shm")
_TABLE = LockTable()
_shown_ns: dict[Path, int] = {}
"""When this process has last shown life, by the file that says so: another time there is that of another process."""
_taken_over_ns: dict[str, int] = {}
"""When this process has last got a GPU that another had before, by UUID."""


@dataclass(frozen=True)
class Turn:
    """A GPU that this process holds, or was to hold; true while no other process has measured there since it began.

    Attributes:
        alone: False if another process holds the GPU.
        alive: The file that says when its holder has last shown life; None where nothing is locked.
        mark: The file that a process locks and touches which measures without holding the GPU.
        began_ns: When this turn began, in nanoseconds since 1970.
    """

    alone: bool = True
    alive: Path | None = None
    mark: Path | None = None
    began_ns: int = 0

    def __bool__(self) -> bool:
        """Return False if what was measured so far is provisional."""
        return self.alone and (self.mark is None or not _is_marked(self.mark, self.began_ns))

    def touch(self) -> None:
        """Say that this process, which holds the GPU, makes progress."""
        if self.alone and self.alive is not None:
            _show(self.alive)


def taken_over_us(uuid: str) -> int | None:
    """Return when this process took a GPU over from another, in microseconds since 1970; None where it is not locked.

    Jobs of this process that follow each other are no reason to forget what others did on it meanwhile.
    """
    taken_ns = _taken_over_ns.get(uuid)
    return None if taken_ns is None else taken_ns // 1000


@contextmanager
def turn(
    uuid: str,
    wait_s: float = WAIT_S,
    parent: Path | None = None,
    waiting: Callable[[], None] | None = None,
    most_s: float = _MOST_S,
) -> Generator[Turn]:
    """Hold a GPU for this process inside the block.

    Args:
        uuid: The GPU's UUID; empty if it is not known, or for no GPU: nothing is held then.
        wait_s: Seconds for which another process is waited for that shows no life.
        parent: Where the folder of the locks is.
        waiting: Called every few seconds of a wait.
        most_s: Seconds of the longest wait in all, whether that process shows life or not.

    Yields:
        The turn; false if another process measures there, too: what is measured is provisional.
    """
    folder = folder_in(parent or (_SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())))
    if not uuid or folder is None:
        yield Turn()
        return
    alive, mark = folder / f"alive-{uuid}", folder / f"besides-{uuid}.lock"
    try:
        held = _queued(uuid, folder, _Patience(alive, wait_s, most_s, time.time()), waiting)
    except CacheError:
        with _marked(mark):
            yield Turn(alone=False)
        return
    except OSError as error:
        logger.debug("the GPU is not locked: %s", error)
        yield Turn()
        return
    try:
        if not _is_own(alive):
            _taken_over_ns[uuid] = time.time_ns()
        _show(alive)
        yield Turn(alive=alive, mark=mark, began_ns=time.time_ns())
    finally:
        held.__exit__(None, None, None)


def _queued(
    uuid: str, folder: Path, patience: _Patience, waiting: Callable[[], None] | None
) -> HeldLock:
    """Return the acquired lock of a GPU.

    Raises:
        CacheError: It was not free, and there is no patience left.
        OSError: A lock file cannot be created.
    """
    name = f"gpu-{uuid}"
    nested = _TABLE.is_mine(name)  # the next process waits for this very thread
    following = None if nested else _acquired(f"next-{uuid}", folder, patience, waiting)
    try:
        return _acquired(name, folder, patience, waiting)
    finally:
        if following is not None:
            following.__exit__(None, None, None)


@dataclass(frozen=True)
class _Patience:
    """How long is waited: since when, and for what."""

    alive: Path
    wait_s: float
    most_s: float
    began_s: float

    def left_s(self) -> float:
        """Return the seconds that remain if the holder shows no life."""
        shown_s = self.began_s
        with suppress(OSError):
            shown_s = max(shown_s, self.alive.stat().st_mtime)
        now_s = time.time()
        return min(shown_s + self.wait_s, self.began_s + self.most_s) - now_s


def _acquired(
    name: str, folder: Path, patience: _Patience, waiting: Callable[[], None] | None
) -> HeldLock:
    """Return an acquired lock; errors as of `_queued`."""
    while True:
        left_s = max(0.0, patience.left_s())
        held = HeldLock(_TABLE, name, folder / f"{name}.lock", min(_LOOK_S, left_s))
        try:
            held.__enter__()
        except CacheError:
            if patience.left_s() <= 0:
                raise
            if waiting is not None:
                waiting()
            continue
        return held


def _is_own(alive: Path) -> bool:
    """Return True if no other process has shown life there since this one did."""
    with suppress(OSError):
        return alive.stat().st_mtime_ns == _shown_ns.get(alive)
    return False


def _show(alive: Path) -> None:
    _shown_ns[alive] = _touch(alive)


def _touch(file: Path) -> int:
    """Give a file the time of now, and return that in nanoseconds."""
    # Without a time of its own, a file has that of the kernel's last tick, up to 10 ms before.
    now_ns = time.time_ns()
    with suppress(OSError):
        file.touch(mode=0o600)
        os.utime(file, ns=(now_ns, now_ns))
    return now_ns


@contextmanager
def _marked(mark: Path) -> Generator[None]:
    """Lock and touch a file inside the block: others that look at it see that this process measures."""
    try:
        opened = mark.open("ab")
    except OSError:
        yield
        return
    with opened:
        _touch(mark)
        fcntl.flock(opened, fcntl.LOCK_SH)
        try:
            yield
        finally:
            _touch(mark)


def _is_marked(mark: Path, since_ns: int) -> bool:
    """Return True if a process has measured without a turn since then, or does so now."""
    try:
        if mark.stat().st_mtime_ns >= since_ns:
            return True
        with mark.open("ab") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@functools.cache
def folder_in(parent: Path) -> Path | None:
    """Return this user's folder of locks, created if need be; None where it cannot be trusted.

    Another user's could hold a lock for ever.
    """
    folder = parent / f"inductor-plugin-{os.geteuid()}"
    with suppress(FileExistsError):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            logger.debug("GPUs are not locked: %s", error)
            return None
    status = folder.lstat()
    is_folder = stat.S_ISDIR(status.st_mode)
    refusal = why_not_trusted(folder, above=False) if is_folder else "it is no folder"
    if refusal is not None:
        logger.warning(
            "inductor-plugin: GPUs are not locked while kernels are measured: %s", refusal
        )
        return None
    return folder
