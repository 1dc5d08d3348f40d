"""The timer of the CPU: the wall clock around a call, with operands in memory and in the caches."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.worker.affinity import Throttling, own_cores, quotas, throttling
from inductor_plugin.worker.disturbance import (
    Crowd,
    ThreadWaits,
    is_disturbed,
    switches,
    was_idle,
    was_switched,
)
from inductor_plugin.worker.echo import Echoed

_CPUS = Path("/sys/devices/system/cpu")
_CPU_CACHE_BYTES = (32 << 20, 512 << 20)
_WARM_CALLS, _MOST_CALLS, _LONG_NS = 2, 6, 5_000_000
"""Calls with operands in the caches that a sample has, how many it has at most where other work disturbs them, and nanoseconds. Before
them the kernel is called once more, which wakes threads. A kernel that takes longer than 5 ms is called a single time: waking threads takes
little of that, and more calls would take the time of all turns."""


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


@dataclass(frozen=True)
class Counts:
    """What the system has counted for this process until a moment.

    Attributes:
        waits_ns: Nanoseconds that each thread has waited for a core; none where it does not count them, or they are not asked for.
        switches: How often a thread had to give up its core.
        cpu_ns: Nanoseconds of all cores.
        kept: How long a quota has kept it from its cores until shortly before that.
        kept_after: The same until shortly after, so that what lies between two moments holds all waits for it.
    """

    waits_ns: Mapping[str, int]
    switches: int
    cpu_ns: int
    kept: Throttling
    kept_after: Throttling


@dataclass(frozen=True)
class TimedCall:
    """A call that was timed.

    Attributes:
        ns: Nanoseconds it took.
        is_disturbed: Whether other work has prolonged it.
    """

    ns: int
    is_disturbed: bool


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

            def all_calls() -> None:
                for _ in range(repeats):
                    call()

            (together,) = self._timed(all_calls, 1)
            times = [(together.ns / repeats, together.is_disturbed)]
        calm = [time_ns for time_ns, disturbed in times if not disturbed]
        self.disturbed = not calm
        return min(calm or [time_ns for time_ns, _ in times]) / 1e6

    def _of_both(self, call: BoundCall) -> tuple[float, bool]:
        """Return nanoseconds of a call, the geometric mean of both places of its operands, and whether one was disturbed."""
        self._evict()
        (cold,) = self._timed(call, 1, first=call.echo if isinstance(call, Echoed) else None)
        if cold.ns > _LONG_NS:
            warm = self._timed(call, 1)
        else:
            most = _WARM_CALLS if cold.is_disturbed else _MOST_CALLS
            warm = self._timed(call, _WARM_CALLS, first=call, most=most)
        calm = [each.ns for each in warm if not each.is_disturbed]
        warm_ns = min(calm or [each.ns for each in warm])
        return math.sqrt(cold.ns * warm_ns), cold.is_disturbed or not calm

    def _timed(
        self, call: BoundCall, repeats: int, first: BoundCall | None = None, most: int = 0
    ) -> list[TimedCall]:
        """Return what each of several calls took, and whether a thread waited for a core in it, all for something else, or others had the cores.

        Each call is judged for itself: beside two busy processes on two cores two calls of 0.5 ms are calm half as often as the last of them.
        With more threads than cores they wait for each other, and are switched for each other: that is how fast the call is
        here. What others take of the cores tells then.

        Args:
            call: The call.
            repeats: How many calls.
            first: Called before them, and neither timed nor judged, so that other work during it does not count. Where it returns new
                memory, that is free for the next call at once, as in a graph: with that memory kept, 8 x 256 x 256 took 0.76 of
                oneMKL's time in a generated kernel instead of 1.00, and takes 1.05 of it in a graph.
            most: While fewer than ``repeats`` calls are calm, others follow, up to so many in all.
        """
        threads, cores = torch.get_num_threads(), own_cores()
        calls: list[TimedCall] = []
        with closing(ThreadWaits()) as waits:
            asked = waits if threads <= len(cores) else None
            if not self._counts(asked).waits_ns:  # this opens files
                asked = None
            if first is not None:
                first()
            before = self._counts(asked)
            while len(calls) < max(repeats, most) and _calm(calls) < repeats:
                begun = time.perf_counter_ns()
                call()
                elapsed_ns = time.perf_counter_ns() - begun
                after = self._counts(asked)
                disturbed = was_prolonged(elapsed_ns, before, after, threads, len(cores))
                calls.append(TimedCall(elapsed_ns, disturbed))
                before = after
        if self._crowd.is_there(cores, threads, with_others=not before.waits_ns):
            return [TimedCall(each.ns, is_disturbed=True) for each in calls]
        return calls

    def _counts(self, waits: ThreadWaits | None) -> Counts:
        kept = throttling(self._groups)
        waits_ns = waits.ns() if waits is not None else {}
        cpu_ns = time.process_time_ns()
        return Counts(waits_ns, switches(), cpu_ns, kept, throttling(self._groups))

    def _evict(self) -> None:
        self.prepare()
        assert self._buffer is not None
        self._buffer.sum()


def was_prolonged(elapsed_ns: int, before: Counts, after: Counts, threads: int, cores: int) -> bool:
    """Return True if other work has prolonged a call, or nothing of this process ran for most of it. Pure.

    Args:
        elapsed_ns: Nanoseconds the call took.
        before: What was counted before it.
        after: The same after it.
        threads: Threads of the call.
        cores: Cores of the process; with fewer than threads nothing can be said of waits and switches.
    """
    kept = after.kept_after.since(before.kept)
    if was_idle(elapsed_ns, after.cpu_ns - before.cpu_ns, kept.kept_ns):
        return True
    if before.waits_ns:
        return is_disturbed(elapsed_ns, before.waits_ns, after.waits_ns, kept.kept_ns)
    # Each thread gives up its core when a quota is used up.
    count = after.switches - before.switches - threads * kept.periods
    return threads <= cores and was_switched(elapsed_ns, count)


def _calm(calls: Iterable[TimedCall]) -> int:
    return sum(not each.is_disturbed for each in calls)


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
