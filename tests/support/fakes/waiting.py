"""A clock that a test moves, locks that a test holds, and waiting for what other threads do."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.farm.pool import Pool

LIMIT_S = 10.0
"""Longest wait of a test; an event that has not happened by then is assumed never to happen."""


class FakeClock:
    """A clock that moves only when a test advances it; replaces ``time``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return int(self.now * 1e9)


class FakeLocks:
    """Locks among processes, of which a test may hold some."""

    def __init__(self) -> None:
        self.elsewhere: set[str] = set()
        self.held: list[str] = []
        self.touched: list[str] = []
        self.tried = 0

    def __call__(self, task: Task) -> Callable[[], None] | None:
        self.tried += 1
        if task.digest in self.elsewhere:
            return None
        self.held.append(task.digest)
        return lambda: self.held.remove(task.digest)

    def touch(self, task: Task) -> None:
        self.touched.append(task.digest)


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for a condition that another thread is about to fulfil; fail after a limit."""
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.002)


def unfinished(pool: Pool) -> int:
    """Return how many jobs are queued or running."""
    local: Any = getattr(pool, "_local", None)
    return pool._active + (local._active if local is not None else 0)


def wait_idle(pool: Pool, limit_s: float) -> bool:
    """Wait until nothing is queued or running; False if that took too long."""
    ends = time.monotonic() + limit_s
    while unfinished(pool) and time.monotonic() < ends:
        time.sleep(0.002)
    return not unfinished(pool)
