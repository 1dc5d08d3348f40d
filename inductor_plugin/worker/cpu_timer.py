"""The timer of the CPU: the wall clock around a call, behind a read that evicts the last-level cache."""

from __future__ import annotations

import functools
import re
import statistics
import time
from pathlib import Path

import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.disturbance import (
    Crowd,
    is_disturbed,
    switches,
    waits_ns,
    was_idle,
    was_switched,
)

_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_CACHE_BYTES = (32 << 20, 256 << 20)


class CpuTimer:
    """Wall-clock timer; reading a buffer as large as the last-level cache evicts the cache."""

    host_bound, host_ms = False, 0.0
    """The call's own time counts: it is computed by the host."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self.disturbed = False
        self._crowd = Crowd()

    def conditions(self) -> dict[str, object]:
        """Return nothing: a record says what a CPU is."""
        return {}

    def warm(self, call: BoundCall) -> None:
        """Do nothing: its clock is not known."""

    def prepare(self) -> None:
        """Allocate the buffer that evicts the cache."""
        if self._buffer is None:
            self._buffer = torch.ones(last_level_cache_bytes() // 8, dtype=torch.int64)

    def release(self) -> None:
        """Free it."""
        self._buffer = None

    def synchronize(self) -> None:
        """Do nothing: a CPU kernel has finished when its call returns."""

    def sample(self, call: BoundCall, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call: of ``repeats`` calls the median of those that were not disturbed.

        Other work only prolongs a call: if it has disturbed all of them, the shortest counts.
        """
        if cold:
            spans = [self._span(call, 1, cold=True) for _ in range(repeats)]
        else:
            elapsed_ns, disturbed = self._span(call, repeats, cold=False)
            spans = [(elapsed_ns / repeats, disturbed)]
        calm = [elapsed_ns for elapsed_ns, disturbed in spans if not disturbed]
        self.disturbed = not calm
        return (statistics.median(calm) if calm else min(spans)[0]) / 1e6

    def _span(self, call: BoundCall, repeats: int, *, cold: bool) -> tuple[float, bool]:
        """Return nanoseconds that calls took, and whether a thread waited for a core, all for something else, or others had the cores.

        With more threads than cores they wait for each other: that is how fast the call is here.
        """
        if cold:
            self._evict()
        threads, cores = torch.get_num_threads(), own_cores()
        alone = threads <= len(cores)
        before, switched, cpu = waits_ns() if alone else {}, switches(), time.process_time_ns()
        started = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        elapsed_ns = time.perf_counter_ns() - started
        disturbed = was_idle(elapsed_ns, time.process_time_ns() - cpu)
        if before:
            disturbed |= is_disturbed(elapsed_ns, before, waits_ns())
        elif alone:
            disturbed |= was_switched(elapsed_ns, switches() - switched)
        uncounted = alone and not before
        return elapsed_ns, self._crowd.is_there(cores, threads, with_others=uncounted) or disturbed

    def _evict(self) -> None:
        self.prepare()
        assert self._buffer is not None
        self._buffer.sum()


@functools.cache
def last_level_cache_bytes() -> int:
    """Return the size of the largest CPU cache, clamped to a size that is practical to overwrite."""
    sizes = [
        int(match[1]) << {"K": 10, "M": 20}[match[2]]
        for path in _CPU_CACHES.glob("index*/size")
        if (match := re.fullmatch(r"(\d+)([KM])\s*", path.read_text()))
    ]
    low, high = _CPU_CACHE_BYTES
    return min(max([low, *sizes]), high)
