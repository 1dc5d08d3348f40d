"""How many tasks of one process may be at the cluster at once.

Jobs that wait in a process are sent the longest first. Among those that wait at the cluster, whichever process has sent them, Ray
promises no order: tasks that ask for the same start about as they arrive, a moment apart on several nodes; tasks that ask for other memory
or for a node overtake each other by many. So nothing here counts on an order there, and little waits there. If each process sent as many
as the cluster has CPUs, its longest jobs, which it sends first, would wait beside all tasks that others have sent before. So a process
starts with few tasks and doubles what it adds as long as CPUs are free, as TCP's slow start does (RFC 5681); once none is free, it keeps
those that run and a few ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 8
"""Tasks at first: 62 processes that begin at once, with 1,000 CPUs, send 1.5 times as many as there are CPUs until they notice
each other."""
_AHEAD = 32
"""One task for so many CPUs waits at the cluster, so that no CPU waits for the next one."""
_SLOWLY = 8
"""A look takes one of so many tasks away at most: a node says that a task runs when its worker has started, seconds later."""


@dataclass(frozen=True)
class Load:
    """What a cluster does.

    Attributes:
        free: CPUs that run nothing.
        running: Tasks of this process that run.
    """

    free: int
    running: int


@dataclass(frozen=True)
class Window:
    """How many tasks may be at the cluster.

    Attributes:
        most: So many.
        step: So many more at the next look, if CPUs are free then.
    """

    most: int = FIRST
    step: int = FIRST

    @property
    def opens(self) -> bool:
        """Whether there were free CPUs when it was last looked."""
        return self.step > FIRST


def next_window(window: Window, load: Load | None, cpus: int, flying: int) -> Window:
    """Return the window after a look at the cluster. Pure.

    Args:
        window: The window before.
        load: What the cluster does; None if that is not known: the window is as large as that of a process that is alone.
        cpus: CPUs of the cluster.
        flying: Tasks of this process at the cluster.
    """
    alone = cpus + _ahead(cpus)
    if load is None:
        return Window(alone)
    if not flying:
        window = Window()  # what others have begun since is not known
    if load.free > 0:
        more = min(window.step, load.free + _ahead(cpus))
        most = min(max(window.most, flying + more), alone)
        return Window(most, min(2 * window.step, max(alone, 2 * FIRST)))
    fewest = flying - max(1, flying // _SLOWLY)
    return Window(min(max(load.running + _ahead(cpus), fewest), alone))


def _ahead(cpus: int) -> int:
    return max(1, cpus // _AHEAD)
