"""Ray, as the compile farm uses it.

What Ray does: it retries tasks of lost workers and nodes, keeps jobs and results in its object store, and starts a task where
CPUs and memory are free. By default it keeps tasks without a GPU off nodes that have some.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.farm.connection import ANSWER_S, Connection, reason_of
from inductor_plugin.worker.farm.node import compile_parcel
from inductor_plugin.worker.farm.parcel import Delivery, Parcel
from inductor_plugin.worker.farm.window import Load
from inductor_plugin.worker.jobs import WorkerSettings

logger = logging.getLogger(__name__)

RETRIES = 3
"""How often Ray runs a job again whose worker or node is lost."""
REFUSED = "every node of the farm has refused such a job"
_LOOK_S = 1.0
"""Seconds between two looks at the nodes, which come and go."""


@dataclass(eq=False)
class _PlacedTask:
    """A task that was started.

    Attributes:
        reference: Ray's.
        node: The only node that it may run on, until it has ended; empty if it may run on any.
    """

    reference: Any
    node: str


class Cluster:
    """A connection to a Ray cluster, and tasks in it."""

    def __init__(self, farm: str, settings: WorkerSettings) -> None:
        """Connect.

        Args:
            farm: Option ``compile_farm``.
            settings: Of the worker processes on the nodes.

        Raises:
            OptionError: Ray is not installed.
            WorkerError: The cluster cannot be reached.
        """
        self._connection = Connection(farm, "compile_farm")
        self._ray = self._connection.ray
        self._looked_at, self._cpus, self._largest_bytes = -math.inf, 1, 0
        self._nodes: list[dict[str, Any]] = []
        self._placed, self._counting = Counter[str](), threading.Lock()
        self._looking = threading.Lock()
        try:
            self._settings = self._connection.within(ANSWER_S, lambda: self._ray.put(settings))
            self._task = self._ray.remote(compile_parcel)
            self._look()  # who asks for CPUs never waits
        except Exception as error:  # Ray's errors of connecting have no common class
            self._connection.close()
            raise self._connection.failed(error) from error

    def put(self, parcel: Parcel) -> Any:
        """Send a job to the object store, from where tasks take it, retries included.

        Raises:
            WorkerError: The connection has ended.
        """
        return self._connection.within(ANSWER_S, lambda: self._ray.put(parcel))

    def start(
        self,
        parcel: Any,
        limit_s: float,
        memory_bytes: int,
        without: Collection[str] = (),
    ) -> Any:
        """Start a task, and return it.

        Args:
            parcel: Reference to the job.
            limit_s: As of `compile_parcel`.
            memory_bytes: Memory that it needs on its node.
            without: Nodes that it shall not run on.

        Raises:
            WorkerError: The connection has ended, or there is no other node.
        """
        largest_bytes, options, name = self._largest_bytes, dict[str, Any](), ""
        if without:
            node = self._next(without)
            if node is None:
                raise WorkerError(REFUSED)
            name = str(node["NodeID"])
            largest_bytes = int(node["Resources"].get("memory", 0))
            options["scheduling_strategy"] = self._connection.only_on(name)
        task = self._task.options(
            num_cpus=1,
            memory=min(memory_bytes, largest_bytes) or None,  # more would wait for ever
            max_retries=RETRIES,
            name="compile",
            **options,
        )
        # Without a connection Ray would start a cluster on this machine: `within` checks that there is one.
        reference = self._connection.within(
            ANSWER_S, lambda: task.remote(parcel, self._settings, limit_s)
        )
        if name:
            with self._counting:
                self._placed[name] += 1
        return _PlacedTask(reference, name)

    def has_other(self, without: Collection[str]) -> bool:
        """Return whether there is a node that is none of these."""
        return self._next(without) is not None

    def _next(self, without: Collection[str]) -> dict[str, Any] | None:
        self._look()
        with self._counting:
            return next_of(self._nodes, without, self._placed)

    def _ended(self, task: _PlacedTask) -> None:
        """Count a task no more; again, nothing happens."""
        with self._counting:
            node, task.node = task.node, ""
            if node:
                self._placed[node] -= 1
                self._placed += Counter[str]()  # without zeros: nodes come and go

    def when_done(self, task: _PlacedTask, answer: Callable[[Delivery | str], None]) -> None:
        """Call ``answer`` with a task's result, or with why it has none, from a thread of Ray's.

        Raises:
            WorkerError: The connection has ended.
        """

        def done(future: Any) -> None:
            self._ended(task)
            try:
                answer(future.result())
            except Exception as error:  # noqa: BLE001  whatever Ray raises, somebody waits for the job
                self._looked_at = -math.inf  # its node may have gone
                answer(reason_of(error))

        # A client waits here for the number of the task.
        self._connection.within(ANSWER_S, lambda: task.reference.future().add_done_callback(done))

    def cancel(self, task: _PlacedTask) -> None:
        """Give a task up; its worker process ends."""
        self._ended(task)
        if not self._connection.alive:
            return
        try:
            self._connection.within(ANSWER_S, lambda: self._ray.cancel(task.reference, force=True))
        except Exception as error:  # noqa: BLE001  it has ended, or the cluster has
            logger.debug("a task of the farm is not cancelled: %s", error)

    def has_begun(self, key: str) -> bool:
        """Return whether the job of a parcel runs on a node; True if the cluster does not say."""
        try:
            return bool(self._running(key))
        except Exception as error:  # noqa: BLE001  whatever Ray raises: it is waited for, as before
            logger.debug("whether a job has begun is not known: %s", error)
            return True

    def load(self, sender: str, keys: Collection[str]) -> Load | None:
        """Return what the cluster does; None if it does not say.

        Args:
            sender: What the keys of this process's parcels begin with.
            keys: Those of its parcels that are at the cluster. A process that was killed leaves the mark of its own.
        """
        try:
            running = self._running(sender)
            return Load(self._connection.free_cpus(), sum(key in running for key in keys))
        except Exception as error:  # noqa: BLE001  whatever Ray raises: tasks are sent as if it were free
            logger.debug("what the farm does is not known: %s", error)
            return None

    def _running(self, beginning: str) -> set[str]:
        """Return the keys of jobs that run on a node which is there now, of those that begin so.

        Raises:
            Exception: As of `Connection.marks`.
        """
        marks = self._connection.marks(beginning)
        if not set[str]().union(*marks.values()) <= set(self.names):  # they have come, or have gone
            self._looked_at = -math.inf
            self._look()
        there = set(self.names)
        return {key for key, nodes in marks.items() if not there or nodes & there}

    @property
    def alive(self) -> bool:
        """False once the connection has ended: nothing that was started is answered any more."""
        return self._connection.alive

    @property
    def cpus(self) -> int:
        """CPUs of all nodes that were there when it was last looked, at least one.

        A head that does not answer keeps no caller waiting: threads that give signs of life ask for it, and some that hold locks.
        """
        self._look_behind()
        return self._cpus

    @property
    def names(self) -> list[str]:
        """The nodes that were there when it was last looked; empty if they are not known."""
        return [str(node["NodeID"]) for node in self._nodes]

    def _look_behind(self) -> None:
        """Let another thread look which nodes are there, unless one does, or that has just been done."""
        if not self._is_old or not self._looking.acquire(blocking=False):
            return

        def look() -> None:
            try:
                self._look()
            finally:
                self._looking.release()

        try:
            threading.Thread(target=look, name="farm look", daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads
            self._looking.release()
            logger.debug("the farm's nodes are not looked at: %s", error)

    @property
    def _is_old(self) -> bool:
        """True once it is time for another look."""
        return time.monotonic() - self._looked_at > _LOOK_S

    def _look(self) -> None:
        """Look which nodes are there, unless that has just been done."""
        if not self._is_old:
            return
        self._looked_at = time.monotonic()
        try:
            self._nodes = self._connection.nodes()
        except Exception as error:  # noqa: BLE001  a lost cluster shows when a job is started
            logger.debug("the farm's nodes are not known: %s", error)
            return
        compiling = [node["Resources"] for node in self._nodes if _has_cpu(node)]
        self._cpus = max(1, int(sum(each["CPU"] for each in compiling)))
        self._largest_bytes = int(max((each.get("memory", 0) for each in compiling), default=0))

    def hurry(self) -> None:
        """Let calls end within a few seconds; see `Connection.hurry`."""
        self._connection.hurry()

    def close(self) -> None:
        """Disconnect, unless the user's program had connected before."""
        self._connection.close()


def next_of(
    nodes: Sequence[dict[str, Any]], without: Collection[str], placed: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return the node that a task is placed on where not all nodes will do; None if there is none. Pure.

    Args:
        nodes: The nodes, as Ray describes them.
        without: Nodes that will not do.
        placed: How many tasks each has that may run nowhere else: each gets as many as it has CPUs.
    """
    will_do = [node for node in nodes if node["NodeID"] not in without and _has_cpu(node)]
    return min(
        will_do,
        key=lambda node: placed.get(node["NodeID"], 0) / node["Resources"]["CPU"],
        default=None,
    )


def _has_cpu(node: Mapping[str, Any]) -> bool:
    """Return whether a node may run a task at all: a head often has none, and much memory."""
    return node["Resources"].get("CPU", 0) >= 1
