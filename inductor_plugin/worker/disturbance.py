"""Whether other work on the machine has prolonged a sample: how long this process's threads have waited for a core, and what others took of its cores, as Linux counts it.

A product on two OpenMP threads takes as long as the thread that waits: beside one busy process its samples are 1.5 or 5.5 to
13 ms (512x512x512 in float32 on two cores), and nothing between. The run-queue delay of its threads is 0 for the former and
8 to 12 ms for the latter.

A hypervisor that runs another machine on a core lets no thread wait: that is its steal time. Where the system does not count
how long threads wait (gVisor, kernels without schedstat), involuntary switches and the CPU time of others have to do. More
threads than cores wait for each other, and are switched for each other: there the CPU time of others has to do alone.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_WAITED, _WAKE_NS = 0.02, 50_000
"""Share of a sample, and nanoseconds, that a thread may wait and leave it undisturbed: waking a thread takes 2 to 24
microseconds."""
_IDLE_NS = 50_000_000
"""Nanoseconds for which nothing of this process may run in a sample: longer than any wait of a kernel's threads for each other."""

_STAT = Path("/proc/stat")
_WINDOW_NS, _STALE_NS = 100_000_000, 1_000_000_000
"""Nanoseconds between two looks at the cores: what they took is counted in steps of 10 ms, and a look takes 20 microseconds on
two cores, up to a millisecond on hundreds. A look from longer ago counts what was done between two jobs."""
_STOLEN, _CROWDED = 0.1, 0.5
"""Share of a core's time that a hypervisor may take, and cores that others may take beyond those that are free."""
_SWITCH_NS = 20_000_000
"""Nanoseconds in which a thread may be switched away from once: beside a busy process that is after 3 or 4 ms."""


class ThreadWaits:
    """How long each thread of this process has waited for a core; its files stay open, since it is asked before and after each call.

    Opening and reading them takes 14 microseconds a thread, listing and reading them 2: the threads of a kernel do not sleep meanwhile.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks, self._files = tasks, dict[str, int]()

    def ns(self) -> dict[str, int]:
        """Return nanoseconds by thread, those among them that were started since; nothing where that is not known.

        Source: Linux, Documentation/scheduler/sched-stats.rst, second field of ``/proc/<pid>/task/<tid>/schedstat``.
        """
        waits: dict[str, int] = {}
        with suppress(OSError):
            for thread in self._tasks.iterdir():
                name = thread.name
                try:
                    if name not in self._files:
                        self._files[name] = os.open(thread / "schedstat", os.O_RDONLY)
                    waits[name] = int(os.pread(self._files[name], 64, 0).split()[1])
                except (OSError, ValueError, IndexError):
                    self._close(name)  # the thread has ended; another may get its number
        return waits

    def close(self) -> None:
        """Close the files."""
        for name in tuple(self._files):
            self._close(name)

    def _close(self, name: str) -> None:
        if name in self._files:
            os.close(self._files.pop(name))


def is_disturbed(
    elapsed_ns: float, before: Mapping[str, int], after: Mapping[str, int], kept_ns: float = 0.0
) -> bool:
    """Return True if a thread waited for a core for more than a small share of a sample.

    While a quota is used up (`affinity.Throttling`) its threads wait, too: that is how fast a call is here, and no other work.

    Args:
        elapsed_ns: Nanoseconds that the sample took.
        before: `ThreadWaits.ns` at its beginning.
        after: The same at its end.
        kept_ns: Nanoseconds of the sample in which a quota was used up.
    """
    waited = max((ns - before.get(name, 0) for name, ns in after.items()), default=0)
    return waited - kept_ns > _WAITED * elapsed_ns + _WAKE_NS


def was_idle(elapsed_ns: float, cpu_ns: float, kept_ns: float = 0.0) -> bool:
    """Return True if nothing of this process ran for most of a sample, and for 50 ms: it waited for a page of memory, or was stopped.

    No thread waits for a core then. A library kernel whose only sample had such a gap was "5303 times slower".

    Args:
        elapsed_ns: Nanoseconds that the sample took.
        cpu_ns: Nanoseconds of all cores that this process took meanwhile.
        kept_ns: As of `is_disturbed`.
    """
    return elapsed_ns - cpu_ns - kept_ns > max(_IDLE_NS, elapsed_ns / 2)


def switches() -> int:
    """Return how often a thread of this process had to give up its core so far; 0 where that is not counted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def was_switched(elapsed_ns: float, count: int) -> bool:
    """Return True if threads had to give up their core oftener than the system's own work explains.

    Args:
        elapsed_ns: Nanoseconds that the sample took.
        count: How often they had to in it.
    """
    return count > elapsed_ns / _SWITCH_NS


@dataclass(frozen=True)
class CoreTime:
    """What a core has done since the machine was started.

    Attributes:
        busy_ns: Nanoseconds in which it computed, for whomever on this machine.
        stolen_ns: Nanoseconds in which it had work, and a hypervisor ran another machine on it.
    """

    busy_ns: float
    stolen_ns: float


@dataclass(frozen=True)
class Look:
    """The cores of this process at a moment.

    Attributes:
        at_ns: When, by the monotonic clock.
        own_ns: CPU time of this process until then.
        cores: What each core has done; none where that is not known.
    """

    at_ns: int
    own_ns: int
    cores: Mapping[int, CoreTime]


def core_times(lines: Iterable[str], cores: Collection[int], hz: int) -> dict[int, CoreTime]:
    """Return what cores have done by the lines of ``/proc/stat``.

    Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.

    Args:
        lines: The lines.
        cores: Numbers of the cores.
        hz: Ticks a second.
    """
    times: dict[int, CoreTime] = {}
    for line in lines:
        name, *rest = line.split()
        if not name.startswith("cpu"):
            break  # those of cores come first
        if name != "cpu" and int(name[3:]) in cores and len(rest) >= 8:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(n) for n in rest[:8])
            busy = user + nice + system + irq + softirq
            times[int(name[3:])] = CoreTime(busy * 1e9 / hz, steal * 1e9 / hz)
    return times


def is_crowded(before: Look, after: Look, threads: int, *, with_others: bool) -> bool:
    """Return True if a hypervisor took a core for a tenth of a time, or others left fewer cores than there are threads.

    Args:
        before: The beginning of that time.
        after: Its end.
        threads: Threads of the call; of more than there are cores, each core has one.
        with_others: Whether CPU time of others counts: not where it is known how long threads wait for a core, since what
            runs on cores that are idle anyway (nice, SCHED_IDLE) makes none wait.
    """
    span_ns = after.at_ns - before.at_ns
    shared = before.cores.keys() & after.cores.keys()
    if span_ns <= 0 or not shared:
        return False
    stolen_ns = max(after.cores[n].stolen_ns - before.cores[n].stolen_ns for n in shared)
    if stolen_ns > _STOLEN * span_ns:
        return True
    busy_ns = sum(after.cores[n].busy_ns - before.cores[n].busy_ns for n in shared)
    others = (busy_ns - (after.own_ns - before.own_ns)) / span_ns
    return with_others and others > max(len(shared) - threads, 0) + _CROWDED


class Crowd:
    """Whether others crowd this process's cores, looked at every 100 ms at most: the last look holds until the next."""

    def __init__(self) -> None:
        self._before: Look | None = None
        self._crowded = False

    def is_there(self, cores: Collection[int], threads: int, *, with_others: bool) -> bool:
        """Return whether they are crowded at the end of a sample; arguments as those of `is_crowded`."""
        now_ns, before = time.monotonic_ns(), self._before
        if before is not None and now_ns - before.at_ns < _WINDOW_NS:
            return self._crowded
        after = Look(now_ns, time.process_time_ns(), _core_times_now(cores))
        self._before, self._crowded = after, False
        if before is not None and now_ns - before.at_ns < _STALE_NS:
            self._crowded = is_crowded(before, after, threads, with_others=with_others)
        return self._crowded


def _core_times_now(cores: Collection[int]) -> dict[int, CoreTime]:
    with suppress(OSError, ValueError), _STAT.open(encoding="ascii") as lines:
        return core_times(lines, cores, os.sysconf("SC_CLK_TCK"))
    return {}
