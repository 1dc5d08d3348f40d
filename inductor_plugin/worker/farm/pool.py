"""Compile workers on a Ray cluster, with the interface of `CompilePool`.

submit ──► waiting, by rank ──► as many tasks as the cluster has CPUs for ──► results, one by one ──► done
                                    │ refused: another node; by all: the local pool
                                    │ skipped for what a node lacks: the same, and the local pool after two nodes
                                    │ lost: Ray runs it again; for good: the local pool
                                    │ the connection has ended: all jobs to the local pool
                                    └ far slower than others while CPUs are idle: a second copy, and the first to end counts
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from inductor_plugin.errors import WorkerError, warn_once
from inductor_plugin.worker.compile_pool import CompilePool, Done, warn_of_skipped
from inductor_plugin.worker.farm.answers import judged, refuses
from inductor_plugin.worker.farm.cluster import REFUSED, Cluster
from inductor_plugin.worker.farm.flight import Flight, Nodes, skipped, stragglers
from inductor_plugin.worker.farm.parcel import Delivery, parcel_of
from inductor_plugin.worker.farm.refusals import NodeRefusals
from inductor_plugin.worker.farm.rejoining import Rejoining
from inductor_plugin.worker.farm.watch import Watch
from inductor_plugin.worker.jobs import OUT_OF_TIME, Compiled, CompileJob, WorkerSettings

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks at what the cluster does, and for stragglers."""
_GONE = "the connection to the cluster has ended, or it does not answer"
_BEGIN_S = 60.0
"""A job that no node has begun by then is compiled here, if a core is free."""
_UNSERVED = "no CPU was free for a job in {:.0f} s"
_ON_THE_WAY_S = 5.0
"""For so long the answer of a job whose time is over may come, with the kernels that were in time."""
_REMEMBERED = 200

_Message: TypeAlias = tuple[Flight, Any, "Delivery | str"]
"""A job, one of its tasks, and what that has brought, or why it has brought nothing."""


class FarmPool:
    """Compiles jobs on a cluster, and calls ``done`` of each job once."""

    def __init__(
        self,
        nodes: Nodes | None,
        local: CompilePool,
        memory_bytes_per_job: int,
        connect: Callable[[], Nodes] | None = None,
    ) -> None:
        """Compile on ``nodes``.

        Args:
            nodes: The cluster; None if it cannot be reached for now.
            local: Compiles what no node can: its software differs, or the cluster is gone.
            memory_bytes_per_job: Memory of a job on its node, if it states none.
            connect: Connects to the cluster again once it is gone; None if that is not tried.
        """
        self._cluster = nodes
        self._local = local
        self._memory_bytes = memory_bytes_per_job
        self._guard = threading.Lock()
        self._waiting: list[tuple[float, int, Flight]] = []
        self._numbers = itertools.count()
        self._flying: dict[Flight, None] = {}  # in the order in which they were sent
        self._answers: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._rejoining = Rejoining(connect, lambda: self._answers.put(None))
        self._refusals = NodeRefusals()
        self._watch = Watch()
        self._tended_at = -math.inf
        self._each_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._thread: threading.Thread | None = None
        self._active, self._closed = 0, False

    @property
    def workers(self) -> int:
        """How many jobs are compiled at once: the cluster's CPUs at the moment, this machine's where it is gone."""
        return self._nodes.cpus if self._alive else self._local.workers

    @property
    def _nodes(self) -> Nodes:
        if self._cluster is None:
            raise WorkerError(_GONE)
        return self._cluster

    @property
    def _alive(self) -> bool:
        return self._cluster is not None and self._cluster.alive

    def submit(
        self,
        job: CompileJob,
        done: Done,
        memory_bytes: int | None = None,
        rank: float = 0.0,
        until: Callable[[], float] | None = None,
    ) -> None:
        """Queue a job; see `CompilePool.submit`. Where no thread can be started, it raises, and the job is not queued."""
        flight = Flight(job, done, memory_bytes or self._memory_bytes, rank, until)
        with self._guard:
            if self._closed:
                raise WorkerError("the compile pool is closed")
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="compile farm", daemon=True)
                thread.start()
                self._thread = thread
            self._active += 1
            heapq.heappush(self._waiting, (-rank, next(self._numbers), flight))
        self._answers.put(None)

    def close(self) -> None:
        """Give all up. Jobs that are queued or running end as ``skipped``."""
        with self._guard:
            self._closed = True
            thread = self._thread
        if self._cluster is not None:
            self._cluster.hurry()
        self._answers.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._local.close()
        self._rejoining.close()
        if self._cluster is not None:
            self._cluster.close()

    def _serve(self) -> None:
        """Start tasks and answer jobs, until the pool is closed."""
        while not self._closed:
            wait_s = self._watch.pause_s(_LOOK_S) if self._waiting else _LOOK_S
            try:  # an idle pool asks the cluster nothing
                message = self._answers.get(timeout=wait_s if self._active else None)
            except queue.Empty:
                message = None
            try:
                self._turn(message)
            except Exception:  # the border around a turn: other jobs wait, too
                logger.exception("inductor-plugin: a turn of the compile farm failed")
            del message  # not to be kept while this thread waits
        self._give_up()

    def _turn(self, message: _Message | None) -> None:
        """Take an answer, if there is one, look after jobs that take long, and start what can be started."""
        if message is not None:
            self._answered(*message)
        if not self._alive:
            self._rescue()
            self._rejoin()
        elif time.monotonic() - self._tended_at >= _LOOK_S:
            self._tended_at = time.monotonic()
            self._end_late()
            self._double()
        self._start()

    def _rescue(self) -> None:
        """Hand all jobs that are on their way to the local pool: they will not be answered any more."""
        for flight in sorted(self._flying, key=lambda flight: flight.started):
            self._compile_here(flight, _GONE)

    def _rejoin(self) -> None:
        """Take the connection that was made again, if there is one."""
        joined = self._rejoining.taken()
        if joined is not None:
            logger.info("the farm is there again")
            self._cluster = joined

    def _start(self) -> None:
        """Start tasks as long as the cluster takes more."""
        while self._waiting:
            if not self._alive:
                self._rejoining.start(self._cluster)
            self._look()  # without the lock: a cluster that is lost answers late
            with self._guard:
                is_full = len(self._flying) >= self._watch.window.most
                if self._closed or not self._waiting or is_full:
                    return
                flight = self._pop()
            try:
                if self._is_in_time(flight):
                    self._send(flight)
            except Exception as error:  # noqa: BLE001  whatever Ray raises where its cluster is gone
                self._compile_here(flight, f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        nodes = self._cluster if self._alive else None
        self._watch.look(nodes, self.workers, self._flying, _LOOK_S)

    def _pop(self) -> Flight:
        """Take the next job to be on its way; the lock is held."""
        flight = heapq.heappop(self._waiting)[2]
        self._flying[flight] = None
        return flight

    def _is_in_time(self, flight: Flight) -> bool:
        """Ask, once, until when a job may run; answer it if that is over."""
        flight.ends = flight.until() if flight.until is not None else math.inf
        if flight.ends > time.monotonic():
            return True
        self._answer(flight, skipped(flight.job, OUT_OF_TIME))
        return False

    def _send(self, flight: Flight) -> None:
        if not self._alive:
            raise WorkerError(_GONE)
        parcel = replace(parcel_of(flight.job), key=self._watch.new_key())
        flight.needs, flight.key = parcel.needs, parcel.key
        without = self._without(flight)
        if without and not self._nodes.has_other(without):
            raise WorkerError(REFUSED)  # before its sources are sent
        flight.parcel = self._nodes.put(parcel)
        self._fly(flight)

    def _fly(self, flight: Flight) -> None:
        """Start a task of a job, on a node that has not refused such a job."""
        limit_s, without = flight.ends - time.monotonic(), self._without(flight)
        task = self._nodes.start(flight.parcel, limit_s, flight.memory_bytes, without)
        try:
            self._nodes.when_done(task, lambda answer: self._answers.put((flight, task, answer)))
        except Exception:  # of Ray's: the task would never be answered
            self._nodes.cancel(task)
            raise
        flight.waits = time.monotonic()
        flight.started = flight.started or flight.waits
        flight.pinned = bool(without)
        flight.tasks.append(task)

    def _without(self, flight: Flight) -> set[str]:
        """Return the nodes that a job is not sent to."""
        return self._refusals.of(flight.needs, time.monotonic()) | (flight.refused - {""})

    def _answered(self, flight: Flight, task: Any, answer: Delivery | str) -> None:
        """Take what a task has brought, if it is the first of its job."""
        if flight.over or task not in flight.tasks:
            return
        flight.tasks.remove(task)
        self._watch.served()
        if isinstance(answer, str):
            if not flight.tasks:
                self._lost(flight, answer)
            return
        compiled = judged(flight, answer, time.monotonic())
        if isinstance(compiled, Delivery):
            self._try_others(flight, compiled)
            return
        for other in flight.tasks:
            self._nodes.cancel(other)
        self._each_s.append(answer.elapsed_s / max(1, len(compiled)))
        warn_of_skipped(compiled)
        self._answer(flight, compiled)

    def _try_others(self, flight: Flight, answer: Delivery) -> None:
        """Start a job again where it has not been refused, unless it runs somewhere; compile it here if there is no such node."""
        names, now = self._nodes.names, time.monotonic()
        may_go_on = refuses(flight, answer, self._refusals, names, now)
        if flight.tasks:
            return
        reason = f"{answer.host}: {answer.refusal}"
        if may_go_on:
            self._fly_again(flight, reason)
        else:
            self._compile_here(flight, reason)

    def _lost(self, flight: Flight, reason: str) -> None:
        """Start a job again whose node is lost, where Ray does not; compile it here if that has happened before."""
        if not flight.pinned or flight.lost:
            self._compile_here(flight, reason)
            return
        flight.lost = True
        self._fly_again(flight, reason)

    def _fly_again(self, flight: Flight, reason: str) -> None:
        try:
            self._fly(flight)
        except Exception as error:  # noqa: BLE001  there is no other node, or whatever Ray raises
            logger.debug("a job is not started again: %s", error)
            self._compile_here(flight, reason)

    def _compile_here(self, flight: Flight, reason: str) -> None:
        """Hand a job to the local pool, since no node can compile it."""
        said = f"not all is compiled by the farm, the rest is compiled here: {reason}"
        warn_once(logger, said, "farm")
        for task in flight.tasks:
            self._nodes.cancel(task)
        if self._closed:
            self._answer(flight, skipped(flight.job, "the compile pool is closed"))
            return
        until = (lambda: flight.ends) if flight.until is not None else None
        try:
            self._local.submit(flight.job, flight.done, flight.memory_bytes, flight.rank, until)
        except WorkerError as error:  # it is closed
            self._answer(flight, skipped(flight.job, str(error)))
        else:
            self._land(flight)

    def _answer(self, flight: Flight, compiled: list[Compiled]) -> None:
        flight.over = True
        try:
            flight.done(compiled)
        except Exception:  # noqa: BLE001  as in a thread of the local pool, which another one replaces
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
        self._land(flight)

    def _land(self, flight: Flight) -> None:
        flight.over = True
        with self._guard:
            self._flying.pop(flight, None)
            self._active -= 1

    def _end_late(self) -> None:
        """Answer jobs whose time is over, and compile here what the cluster has no CPU for, where this machine has."""
        now, idle = time.monotonic(), self._local.idle
        for flight in sorted(self._flying, key=lambda flight: flight.waits):
            if now > flight.ends + _ON_THE_WAY_S:
                for task in flight.tasks:
                    self._nodes.cancel(task)
                self._answer(flight, skipped(flight.job, OUT_OF_TIME))
            elif idle > 0 and now - flight.waits > _BEGIN_S:
                if self._nodes.has_begun(flight.key):
                    flight.waits = now  # asked again later: its node may be lost by then
                else:
                    idle -= 1
                    self._compile_here(flight, _UNSERVED.format(_BEGIN_S))
        if self._watch.unserved_s(self._flying) > _BEGIN_S:  # the rest would wait there, too
            self._compile_waiting_here(idle)

    def _compile_waiting_here(self, most: int) -> None:
        with self._guard:
            flights = [self._pop() for _ in range(min(most, len(self._waiting)))]
        for flight in flights:
            if self._is_in_time(flight):
                self._compile_here(flight, _UNSERVED.format(_BEGIN_S))

    def _double(self) -> None:
        """Start a second task of each straggler, while CPUs have nothing else to do."""
        if not self._flying:
            return
        self._look()
        idle, load = self.workers - len(self._flying), self._watch.load
        if load is not None:  # others compile there, too
            idle = min(idle, load.free)
        with self._guard:
            flights = [] if self._waiting else stragglers(self._flying, self._each_s)
        for flight in flights[: max(0, idle)]:
            logger.info("a compile job of the farm takes long; it is started a second time")
            try:
                self._fly(flight)
            except Exception as error:  # noqa: BLE001  whatever Ray raises: its first task is still on its way
                logger.debug("a job is not started a second time: %s", error)
                return

    def _give_up(self) -> None:
        with self._guard:
            waiting = [entry[2] for entry in self._waiting]
            flying, self._waiting = list(self._flying), []
        for flight in (*flying, *waiting):
            for task in flight.tasks:
                self._nodes.cancel(task)
            self._answer(flight, skipped(flight.job, "the compile pool is closed"))


Pool: TypeAlias = "CompilePool | FarmPool"


def on_farm(
    farm: str, settings: WorkerSettings, local: CompilePool, memory_bytes_per_job: int
) -> FarmPool:
    """Return a pool on the cluster of an option ``compile_farm``; with a warning, if it cannot be reached for now.

    Raises:
        OptionError: Ray is not installed.
    """

    def connect() -> Nodes:
        return Cluster(farm, settings)

    try:
        nodes = connect()
    except WorkerError as error:
        warn_once(logger, f"{error}; everything is compiled here", "farm")
        nodes = None
    return FarmPool(nodes, local, memory_bytes_per_job, connect)
