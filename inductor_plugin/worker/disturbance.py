"""How long this process's threads have waited for a core: other work on the machine, as Linux counts it.

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
