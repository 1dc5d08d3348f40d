"""A compile job on its way to a cluster and back, and what a pool needs of the cluster."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from inductor_plugin.worker.compile_pool import Done, kernel_keys
from inductor_plugin.worker.farm.parcel import Delivery, Parcel
from inductor_plugin.worker.farm.window import Load
from inductor_plugin.worker.jobs import Compiled, CompileJob

_SLOWER = 3.0
"""A job is a straggler if it takes so many times the median of those that have ended, for each kernel."""
_STRAGGLER_S = 20.0
"""Least seconds of a straggler: three times the median of short jobs is still short."""

MOST_FAULTS = 2
"""So many nodes may fail at a job, whatever they blame, before it is compiled here: it may be what breaks them."""


class Nodes(Protocol):
    """What a pool needs of a cluster; see `Cluster`. Where it is gone, its methods raise."""

    @property
    def alive(self) -> bool:
        """False once nothing that was started is answered any more."""
        ...

    @property
    def cpus(self) -> int:
        """CPUs of all nodes."""
        ...

    @property
    def names(self) -> Collection[str]:
        """The nodes; empty if they are not known."""
        ...

    def has_other(self, without: Collection[str]) -> bool:
        """Return whether there is a node that is none of these."""
        ...

    def put(self, parcel: Parcel) -> Any:
        """Send a job, and return a reference to it."""
        ...

    def start(
        self, parcel: Any, limit_s: float, memory_bytes: int, without: Collection[str]
    ) -> Any:
        """Start a task on a node that is none of these."""
        ...

    def when_done(self, task: Any, answer: Callable[[Delivery | str], None]) -> None:
        """Call with a task's result."""
        ...

    def has_begun(self, key: str) -> bool:
        """Return whether the job of a parcel runs on a node; True where that is not known."""
        ...

    def load(self, sender: str, keys: Collection[str]) -> Load | None:
        """Return what the cluster does; None if it does not say.

        Args:
            sender: What the keys of this process's parcels begin with.
            keys: Those of its parcels that are at the cluster.
        """
        ...

    def cancel(self, task: Any) -> None:
        """Give a task up."""
        ...

    def hurry(self) -> None:
        """Let calls end within a few seconds, those that wait included: it is about to be closed."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


@dataclass(eq=False)
class Flight:
    """A job on its way.

    Attributes:
        job: The job.
        done: What it was submitted with.
        memory_bytes: Memory it needs.
        rank: As of `CompilePool.submit`.
        until: The same.
        ends: ``time.monotonic()`` at which it is ended.
        needs: As of `Parcel`.
        parcel: Reference to what was sent.
        key: As of `Parcel`.
        refused: Nodes that have refused it.
        faults: How many of them have tried, and have skipped its kernels or sent something else.
        tasks: Its tasks: one, or two of a straggler.
        pinned: Whether the last one may run on one node only, as Ray starts no such task anywhere else.
        lost: Whether such a task was lost.
        started: When the first began to wait at the cluster.
        waits: When the last one did, or when one was last seen to run.
        over: True once it has been answered.
    """

    job: CompileJob
    done: Done
    memory_bytes: int
    rank: float
    until: Callable[[], float] | None
    ends: float = math.inf
    needs: tuple[object, ...] = ()
    parcel: Any = None
    key: str = ""
    refused: set[str] = field(default_factory=set[str])
    faults: int = 0
    tasks: list[Any] = field(default_factory=list[Any])
    pinned: bool = False
    lost: bool = False
    started: float = 0.0
    waits: float = 0.0
    over: bool = False


def skipped(job: CompileJob, reason: str) -> list[Compiled]:
    """Return the outcomes of a job whose kernels are not compiled."""
    return [Compiled(key, "skipped", reason) for key in kernel_keys(job)]


def is_straggler(waited_s: float, kernels: int, each_s: deque[float]) -> bool:
    """Return whether a job takes so much longer than others that a second copy may end first. Pure.

    Args:
        waited_s: Seconds since it was started.
        kernels: Its kernels.
        each_s: Seconds of each kernel in the jobs that have ended.
    """
    return bool(each_s) and waited_s > max(_STRAGGLER_S, _SLOWER * kernels * median(each_s))


def stragglers(flights: Iterable[Flight], each_s: deque[float]) -> list[Flight]:
    """Return the stragglers that have no second task, the oldest first.

    Args:
        flights: Jobs on their way.
        each_s: As of `is_straggler`.
    """
    now = time.monotonic()
    return [
        flight
        for flight in sorted(flights, key=lambda flight: flight.started)
        if len(flight.tasks) == 1
        and flight.faults < MOST_FAULTS
        and is_straggler(now - flight.started, len(kernel_keys(flight.job)), each_s)
    ]
