"""How long this process's threads have waited for a core: other work on the machine, as Linux counts it.

A product on two OpenMP threads takes as long as the thread that waits: beside one busy process its samples are 1.5 or 5.5 to
13 ms (512x512x512 in float32 on two cores), and nothing between. The run-queue delay of its threads is 0 for the former and
8 to 12 ms for the latter.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_WAITED = 0.02
"""Share of a sample that threads may wait and leave it undisturbed: waking a thread takes microseconds of some hundreds."""


def waited_ns() -> int:
    """Return nanoseconds that all threads of this process together have waited for a core; 0 where it is not known.

    It takes about 40 microseconds a thread. Source: Linux, Documentation/scheduler/sched-stats.rst, second field of
    ``/proc/<pid>/task/<tid>/schedstat``.
    """
    total = 0
    with suppress(OSError):
        for thread in _TASKS.iterdir():
            with suppress(OSError, ValueError, IndexError):  # it may have ended
                total += int((thread / "schedstat").read_bytes().split()[1])
    return total


def is_disturbed(elapsed_ns: float, waited: float) -> bool:
    """Return True if threads waited for a core for more than a small share of a sample."""
    return waited > _WAITED * elapsed_ns
