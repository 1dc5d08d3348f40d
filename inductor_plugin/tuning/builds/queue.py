"""Builds that wait for their turn, and the threads that run them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from inductor_plugin.tuning.builds.item import BuildItem, urgency

if TYPE_CHECKING:
    from inductor_plugin.worker.farm.pool import Pool

LEAD, SPARE = 2, 16
"""Builds in progress: twice as many as compile at once, so that no worker waits for the next one, and some that wait for
kernels of other processes."""
MOST = 1024
"""Builds in progress at most, however many CPUs a cluster has: each is a thread, and containers limit their number."""

Work: TypeAlias = "tuple[Sequence[BuildItem], Callable[[], None]]"
"""Kernels that are built together, and what builds them."""


class BuildQueue:
    """Runs builds in the order of their ranks, no more at once than the compile workers need.

    A build in progress is a thread that holds the locks of its kernels and touches them each second. If a process began all
    of 12,500 builds at once, other processes that need the same kernels would wait for it instead of building some of them.
    """

    def __init__(
        self, pool: Pool, run: Callable[[Sequence[BuildItem], Callable[[], None]], None]
    ) -> None:
        """Run each build by ``run``, which must not raise, for the workers of ``pool``."""
        self._pool = pool
        self._run = run
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._threads = 0

    def add(self, works: Sequence[Work]) -> None:
        """Queue builds; returns immediately.

        Raises:
            RuntimeError: No thread can be started, and none runs: nothing is queued.
        """
        with self._lock:
            for work in works:
                heapq.heappush(self._waiting, (-urgency(work[0])[0], next(self._numbers), work))
            self._hire()

    def _hire(self) -> None:
        """Start threads for what is queued; the lock is held.

        Raises:
            RuntimeError: As of `add`.
        """
        most = min(LEAD * self._pool.workers + SPARE, MOST)
        for _ in range(min(len(self._waiting), most - self._threads)):
            try:
                threading.Thread(
                    target=self._serve, name="inductor-plugin-build", daemon=True
                ).start()
            except RuntimeError:  # the system's limit: those that run take all, one after the other
                if self._threads == 0:
                    self._waiting.clear()
                    raise
                return
            self._threads += 1

    def _serve(self) -> None:
        """Run builds until none is queued."""
        while (work := self._next()) is not None:
            self._run(*work)
            del work  # not to be kept while the next is waited for

    def _next(self) -> Work | None:
        with self._lock:
            if not self._waiting:
                # Under the lock of `add`, which counts on the threads that are there.
                self._threads -= 1
                return None
            return heapq.heappop(self._waiting)[2]
