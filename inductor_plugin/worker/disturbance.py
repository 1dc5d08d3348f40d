"""Whether other work on the machine has prolonged a sample: how long this process's threads have waited for a core, as Linux counts it.

A product on two OpenMP threads takes as long as the thread that waits: beside one busy process its samples are 1.5 or 5.5 to
13 ms (512x512x512 in float32 on two cores), and nothing between. The run-queue delay of its threads is 0 for the former and
8 to 12 ms for the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_WAITED, _WAKE_NS = 0.02, 50_000
"""Share of a sample, and nanoseconds, that a thread may wait and leave it undisturbed: waking a thread takes 2 to 24
microseconds."""
_IDLE_NS = 50_000_000
"""Nanoseconds for which nothing of this process may run in a sample: longer than any wait of a kernel's threads for each other."""


def waits_ns() -> dict[str, int]:
    """Return nanoseconds that each thread of this process has waited for a core; nothing where that is not known.

    It takes about 40 microseconds a thread. Source: Linux, Documentation/scheduler/sched-stats.rst, second field of
    ``/proc/<pid>/task/<tid>/schedstat``.
    """
    waits: dict[str, int] = {}
    with suppress(OSError):
        for thread in _TASKS.iterdir():
            with suppress(OSError, ValueError, IndexError):  # it may have ended
                waits[thread.name] = int((thread / "schedstat").read_bytes().split()[1])
    return waits


def is_disturbed(elapsed_ns: float, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Return True if a thread waited for a core for more than a small share of a sample.

    Args:
        elapsed_ns: Nanoseconds that the sample took.
        before: `waits_ns` at its beginning.
        after: The same at its end.
    """
    waited = max((ns - before.get(name, 0) for name, ns in after.items()), default=0)
    return waited > _WAITED * elapsed_ns + _WAKE_NS


def was_idle(elapsed_ns: float, cpu_ns: float) -> bool:
    """Return True if nothing of this process ran for most of a sample, and for 50 ms: it waited for a page of memory, or was stopped.

    No thread waits for a core then. A library kernel whose only sample had such a gap was "5303 times slower".

    Args:
        elapsed_ns: Nanoseconds that the sample took.
        cpu_ns: Nanoseconds of all cores that this process took meanwhile.
    """
    return elapsed_ns - cpu_ns > max(_IDLE_NS, elapsed_ns / 2)
