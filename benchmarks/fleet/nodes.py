"""The nodes of a Ray cluster, simulated: CPUs that take tasks in the order in which they come, from all processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from benchmarks.fleet.world import CancelledError, SimulatedWorker, World
from inductor_plugin.worker.compile_pool import compile_all, kernel_keys
from inductor_plugin.worker.farm.cluster import RETRIES
from inductor_plugin.worker.farm.parcel import Delivery, Parcel
from inductor_plugin.worker.farm.window import Load

_NOTICED_S = 30.0
"""Seconds after which Ray takes a node for dead that gives no sign of life (its health checks: 5 times 3 s, and what it waits before)."""


@dataclass(eq=False)
class NodeTask:
    """A task at the cluster.

    Attributes:
        parcel: The job.
        limit_s: As of `compile_parcel`.
        answer: Called with what it brings.
        worker: What runs it; None while nothing does.
        lost: How often its node was lost.
        cancelled: Whether nobody waits for it any more.
    """

    parcel: Parcel
    limit_s: float
    answer: Callable[[Delivery | str], None] | None = None
    worker: SimulatedWorker | None = None
    lost: int = 0
    cancelled: bool = False


class SimulatedNodes:
    """A cluster that all processes share, with the interface that `FarmPool` has of `Cluster`."""

    alive = True
    names = ()

    def __init__(self, world: World, cpus: int) -> None:
        """Have so many CPUs; the workers on them start with their first job."""
        self.cpus = cpus
        self._world = world
        self._tasks = world.clock.queue().SimpleQueue()
        self._started = self._idle = self._waiting = 0
        self._running = Counter[str]()

    def put(self, parcel: Parcel) -> Parcel:
        """Send a job."""
        return parcel

    def has_other(self, without: Collection[str]) -> bool:
        """Return whether there is a node that is none of these: none refuses a job."""
        return not without

    def start(
        self, parcel: Parcel, limit_s: float, memory_bytes: int, without: Collection[str] = ()
    ) -> NodeTask:
        """Start a task: it waits for a CPU."""
        del memory_bytes, without
        task = NodeTask(parcel, limit_s)
        self._queue(task)
        return task

    def when_done(self, task: NodeTask, answer: Callable[[Delivery | str], None]) -> None:
        """Call with a task's result; no thread of a node has run since it was started."""
        task.answer = answer

    def has_begun(self, key: str) -> bool:
        """Return True: all processes compile on these nodes alone."""
        return bool(key)

    def load(self, sender: str, keys: Collection[str]) -> Load:
        """Return what the cluster does."""
        del keys  # no process dies here that leaves a mark
        free = self.cpus - self._started + self._idle - self._waiting
        return Load(max(0, free), self._running[sender])

    def cancel(self, task: NodeTask) -> None:
        """Give a task up."""
        task.cancelled = True
        if task.worker is not None:
            task.worker.cancel()

    def hurry(self) -> None:
        """Let calls end soon: none takes time."""

    def close(self) -> None:
        """Disconnect."""

    def _queue(self, task: NodeTask) -> None:
        self._tasks.put(task)
        self._waiting += 1
        if self._waiting > self._idle and self._started < self.cpus:
            self._started += 1
            self._world.clock.spawn(self._serve)

    def _serve(self) -> None:
        """Run tasks on one CPU, for ever."""
        worker = SimulatedWorker(self._world)
        while True:
            self._idle += 1
            task: NodeTask = self._tasks.get()
            self._idle -= 1
            self._waiting -= 1
            if task.cancelled:
                continue
            worker.begin()
            task.worker, sender = worker, task.parcel.key.split()[0]
            self._running[sender] += 1
            try:
                self._run(worker, task)
            except CancelledError:
                continue
            finally:
                task.worker = None
                self._running[sender] -= 1

    def _run(self, worker: SimulatedWorker, task: NodeTask) -> None:
        world, job = self._world, task.parcel.job
        started, key = world.clock.now, kernel_keys(job)[0]
        luck = world.chance(key, "node", task.lost)
        if luck.random() < world.failures.node_lost:
            worker.lose(luck.uniform(0.0, 10.0))
            world.spent.lost["node lost"] += 1
            task.lost += 1
            world.clock.sleep(_NOTICED_S)
            world.spent.away_s += _NOTICED_S
            if task.cancelled:
                return
            if task.lost <= RETRIES:
                self._queue(task)
            else:
                self._answer(task, "simulated: its node was lost")
            return
        until = started + task.limit_s  # infinite where it has no limit
        compiled = compile_all(worker, job, until)  # pyright: ignore[reportArgumentType]
        elapsed_s = world.clock.now - started
        self._answer(task, Delivery(tuple(compiled), {}, "simulated", elapsed_s=elapsed_s))

    @staticmethod
    def _answer(task: NodeTask, answer: Any) -> None:
        assert task.answer is not None
        task.answer(answer)
