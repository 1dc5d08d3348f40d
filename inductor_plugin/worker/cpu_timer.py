"""The timer of the CPU: the wall clock around a call, with operands in memory and in the caches."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.worker.affinity import own_cores, quotas, throttling
from inductor_plugin.worker.disturbance import (
    Crowd,
    is_disturbed,
    switches,
    waits_ns,
    was_idle,
    was_switched,
)
from inductor_plugin.worker.echo import Echoed

_CPUS = Path("/sys/devices/system/cpu")
_CPU_CACHE_BYTES = (32 << 20, 512 << 20)
_WARM_CALLS, _LONG_NS = 2, 5_000_000
"""Calls with operands in the caches that a sample has, and nanoseconds. Before them the kernel is called once more, which wakes threads. A kernel
that takes longer than 5 ms is called a single time: waking threads takes little of that, and more calls would take the time of all turns."""


@dataclass(frozen=True)
class CpuCache:
    """A cache of some cores; equal ones are the same cache.

    Attributes:
        level: Its level.
        size_bytes: Its size.
        cores: The cores that share it, as Linux writes them.
    """

    level: int
    size_bytes: int
    cores: str


class CpuTimer:
    """Wall-clock timer.

    Where a network's weights are when a product reads them depends on the network and on what else runs: in memory, or in the
    caches, where a small product takes a tenth of the time. So a sample is the geometric mean of both: the ratio of two kernels is the
    mean of their ratios, and what wins by little in one place does not win if it loses much in the other (docs/decisions.md).
    """

    host_bound, host_ms = False, 0.0
    """The call's own time counts: it is computed by the host."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self.disturbed = False
        self._crowd, self._groups = Crowd(), quotas()

    def conditions(self) -> dict[str, object]:
        """Return nothing: a record says what a CPU is."""
        return {}

    def warm(self, call: BoundCall) -> None:
        """Do nothing: its clock is not known."""

    def prepare(self) -> None:
        """Allocate the buffer that evicts the cache."""
        if self._buffer is None:
            self._buffer = torch.ones(evicting_bytes(caches(own_cores())) // 8, dtype=torch.int64)

    def release(self) -> None:
        """Free it."""
        self._buffer = None

    def synchronize(self) -> None:
        """Do nothing: a CPU kernel has finished when its call returns."""

    def sample(self, call: BoundCall, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call.

        Other work only prolongs a call: of several the shortest counts that was not disturbed, if any was not.

        Args:
            call: The call.
            repeats: How often it is timed.
            cold: Whether each time is the geometric mean of a call behind a read that evicts the caches, and of calls with operands
                in the caches; else calls follow each other, and the mean counts.
        """
        if cold:
            times = [self._of_both(call) for _ in range(repeats)]
        else:
            calls_ns, disturbed = self._timed(call, repeats)
            times = [(sum(calls_ns) / repeats, disturbed)]
        calm = [time_ns for time_ns, disturbed in times if not disturbed]
        self.disturbed = not calm
        return min(calm or [time_ns for time_ns, _ in times]) / 1e6

    def _of_both(self, call: BoundCall) -> tuple[float, bool]:
        """Return nanoseconds of a call, the geometric mean of both places of its operands, and whether one was disturbed."""
        self._evict()
        (cold_ns,), disturbed = self._timed(
            call, 1, first=call.echo if isinstance(call, Echoed) else None
        )
        is_long = cold_ns > _LONG_NS
        warm_ns, disturbed_again = self._timed(
            call, 1 if is_long else _WARM_CALLS, first=None if is_long else call
        )
        return math.sqrt(cold_ns * min(warm_ns)), disturbed or disturbed_again

    def _timed(
        self, call: BoundCall, repeats: int, first: BoundCall | None = None
    ) -> tuple[list[int], bool]:
        """Return nanoseconds of each of several calls, and whether a thread waited for a core, all for something else, or others had the cores.

        With more threads than cores they wait for each other, and are switched for each other: that is how fast the call is
        here. What others take of the cores tells then.

        Args:
            call: The call.
            repeats: How many calls.
            first: Called before them, and not timed: what is read of the system between two samples takes longer than a short
                call, and its threads may sleep by then. Where it returns new memory, that is free for the next call at once, as in
                a graph: with that memory kept, 8 x 256 x 256 took 0.76 of oneMKL's time in a generated kernel instead of 1.00, and
                takes 1.05 of it in a graph.
        """
        threads, cores = torch.get_num_threads(), own_cores()
        alone = threads <= len(cores)
        kept = throttling(self._groups)
        before, switched, cpu = waits_ns() if alone else {}, switches(), time.process_time_ns()
        begun = time.perf_counter_ns()
        if first is not None:
            first()
        ends = [time.perf_counter_ns()]
        for _ in range(repeats):
            call()
            ends.append(time.perf_counter_ns())
        elapsed_ns = ends[-1] - begun
        cpu_ns, switched = time.process_time_ns() - cpu, switches() - switched
        after = waits_ns() if before else {}
        kept = throttling(self._groups).since(kept)
        disturbed = was_idle(elapsed_ns, cpu_ns, kept.kept_ns)
        if before:
            disturbed |= is_disturbed(elapsed_ns, before, after, kept.kept_ns)
        elif alone:  # each thread gives up its core when a quota is used up
            disturbed |= was_switched(elapsed_ns, switched - threads * kept.periods)
        crowded = self._crowd.is_there(cores, threads, with_others=not before)
        return [end - start for start, end in pairwise(ends)], crowded or disturbed

    def _evict(self) -> None:
        self.prepare()
        assert self._buffer is not None
        self._buffer.sum()


def evicting_bytes(known: Iterable[CpuCache]) -> int:
    """Return the size of a buffer that evicts these caches, between bounds that are practical to read. Pure.

    Each thread reads an equal share of it: an L3 of eight slices, and the L2 of each core, have to be filled by the shares
    of the cores that have them.

    Args:
        known: The caches of the cores that read it; none where they are not known.
    """
    low, high = _CPU_CACHE_BYTES
    return min(max(low, sum(each.size_bytes for each in set(known) if each.level > 1)), high)


def caches(cores: Iterable[int], cpus: Path = _CPUS) -> list[CpuCache]:
    """Return the caches of some cores, a shared one for each of them; none that Linux does not describe.

    Args:
        cores: Numbers of the cores.
        cpus: Where Linux describes them.
    """
    described: list[CpuCache] = []
    for core in cores:
        for index in cpus.glob(f"cpu{core}/cache/index*"):
            with suppress(OSError, ValueError):
                size = re.fullmatch(r"(\d+)([KM])\s*", (index / "size").read_text())
                if size is not None:
                    size_bytes = int(size[1]) << {"K": 10, "M": 20}[size[2]]
                    shared = (index / "shared_cpu_list").read_text().strip()
                    described.append(
                        CpuCache(int((index / "level").read_text()), size_bytes, shared)
                    )
    return described
