"""Whose turn it is to measure on a GPU: one process of the machine at a time, by a lock named after the GPU.

Two processes that compute on a GPU at once get slices of some two milliseconds in turns, so that either measures the
other, too. The lock is the operating system's and ends with its process, however that ends. Its folder is this user's own,
in memory that containers share where they share anything: another user could hold a lock for ever, and what others compute
on the GPU is seen by NVML (worker/nvml.py).

A process that measures job after job frees its lock for microseconds only, so that another that polls for it hardly ever
finds it free (0.6 to 9 s were seen). So the locks are a queue of two: the next process holds the second while it waits for
the first, and a process that has just had its turn waits for the second, too.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from inductor_plugin.cache.guard import reason_to_refuse
from inductor_plugin.cache.lock import Held, LockTable
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

WAIT_S = 30.0
"""Longest wait for another process; a job takes a second or so."""
_SHARED = Path("/dev/shm")
_TABLE = LockTable()


@contextmanager
def turn(uuid: str, wait_s: float = WAIT_S, parent: Path | None = None) -> Generator[bool]:
    """Hold a GPU for this process inside the block.

    Args:
        uuid: The GPU's UUID; empty if it is not known, or for no GPU: nothing is held then.
        wait_s: Seconds for which another process is waited for.
        parent: Where the folder of the locks is.

    Yields:
        False if another process has held it all the time: what is measured is provisional.
    """
    folder = folder_in(parent or (_SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())))
    if not uuid or folder is None:
        yield True
        return
    try:
        held = _queued(uuid, folder, wait_s)
    except CacheError:
        yield False
        return
    except OSError as error:
        logger.debug("the GPU is not locked: %s", error)
        yield True
        return
    try:
        yield True
    finally:
        held.__exit__(None, None, None)


def _queued(uuid: str, folder: Path, wait_s: float) -> Held:
    """Return the acquired lock of a GPU.

    Raises:
        CacheError: It was not free within ``wait_s`` seconds.
        OSError: A lock file cannot be created.
    """
    deadline = time.monotonic() + wait_s
    name = f"gpu-{uuid}"
    nested = _TABLE.is_mine(name)  # who is next waits for this very thread
    following = Held(_TABLE, f"next-{uuid}", folder / f"next-{uuid}.lock", wait_s)
    with nullcontext() if nested else following:
        remaining_s = max(0.0, deadline - time.monotonic())
        held = Held(_TABLE, name, folder / f"{name}.lock", remaining_s)
        held.__enter__()
    return held


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
    refusal = reason_to_refuse(folder) if stat.S_ISDIR(status.st_mode) else "it is no folder"
    if refusal is not None:
        logger.warning(
            "inductor-plugin: GPUs are not locked while kernels are measured: %s", refusal
        )
        return None
    return folder
