"""The benchmark worker of a farm: the interface of `BenchWorker`, over a node that has the right GPU.

job ──► files it names, into the object store once ──► the node that is held ──► its outcome
                                                        │ lost: the next that fits does the job again
                                                        └ idle: it is given back
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, TypeAlias

from inductor_plugin.cache import KernelEntry
from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.version import __version__
from inductor_plugin.worker.bench_farm.cluster import BenchCluster
from inductor_plugin.worker.bench_farm.finder import HeldNode, NodeFinder, NodeLostError
from inductor_plugin.worker.bench_farm.fit import NodeFacts, why_not
from inductor_plugin.worker.bench_farm.node import NodeAnswer
from inductor_plugin.worker.bench_farm.parcel import BenchParcel, Packer
from inductor_plugin.worker.bench_worker import SETUP_S, BenchWorker
from inductor_plugin.worker.farm.resource import resources_of
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    FinalJob,
    JobFailed,
    Outcome,
    Sampling,
    ScreenJob,
    WorkerSettings,
)
from inductor_plugin.worker.process import START_S
from inductor_plugin.worker.turn import WAIT_S

logger = logging.getLogger(__name__)

TRIES = 3
"""How often a job is done whose node is lost: it may be the job that ends nodes."""
_STORED_BYTES = 2 << 30
"""Contents that are kept in the object store for further nodes; those longest unused go first."""
_NODE_BYTES = 8 << 30
"""Contents that a node gets, after which it is given back with what lies on its disk: they take longer to send than its worker to
start again."""
_ASK_S, _END_S = 30.0, 5.0


class FarmBench:
    """Measures candidates on a node of a cluster, which any of them may break.

    Safe to use from several threads: one job runs at a time.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        finder: NodeFinder,
        cached: Callable[[str], KernelEntry | None] = lambda _: None,
    ) -> None:
        """Search for nothing yet.

        Args:
            settings: Of the worker that measures.
            finder: Finds its node.
            cached: As of `Packer`.
        """
        self.settings = settings
        self._finder = finder
        self._packer = Packer(cached)
        self._lock = threading.RLock()
        self._stored: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._stored_at = self._sent_bytes = 0
        self._sent: tuple[HeldNode | None, set[str]] = None, set()
        self._used_at = time.monotonic()
        self._idle: threading.Timer | None = None

    @property
    def pid(self) -> int | None:
        """Number of its process on its node, None if it is not running."""
        with self._lock:
            answer = self._of_held("pid")
            return answer.result if answer is not None else None

    def prewarm(self) -> None:
        """Search for a node and start its worker in the background, which takes seconds."""
        threading.Thread(target=self._try_node, name="prewarm", daemon=True).start()

    def why_not_available(self) -> str | None:
        """Return why no node can measure; None if one can."""
        with self._lock:
            try:
                self._finder.node()
            except WorkerError as error:
                return str(error)
            answer = self._of_held("why_not_available", limit_s=2 * START_S)
            self._watch()
            return answer.error or answer.result if answer is not None else "its node was lost"

    def screen(self, job: ScreenJob) -> Outcome:
        """Measure one candidate; see `BenchWorker.screen`.

        Raises:
            WorkerError: No node can measure.
        """
        name = job.candidate.candidate_id
        logger.debug("measuring %s", name)
        started = time.monotonic()
        outcome = self._measured(job, _limit_s(_candidates(job)))
        if isinstance(outcome, str):
            elapsed_s = time.monotonic() - started
            return Outcome(name, "skipped", outcome, elapsed_s=elapsed_s)
        return outcome

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        """Sample the leaders in turns; see `BenchWorker.final`.

        Raises:
            WorkerError: No node can measure.
        """
        names = [candidate.candidate_id for candidate in job.candidates]
        logger.debug("measuring in turns: %s", ", ".join(names))
        outcomes = self._measured(job, _limit_s(_candidates(job)) * max(1, len(names)))
        if isinstance(outcomes, str):
            return tuple(Outcome(name, "skipped", outcomes) for name in names)
        return outcomes

    def call(self, job: CallJob, limit_s: float) -> Any:
        """Run a function in the process on the node; see `BenchWorker.call`. Files that it names are not sent.

        Raises:
            WorkerError: No node can measure.
        """
        with self._lock:
            result = self._done(
                lambda node: node.ask("call", job, limit_s, limit_s=limit_s + 2 * START_S)
            )
        return JobFailed("crashed", result) if isinstance(result, str) else result.result

    def release(self) -> None:
        """Let the worker on the node, if it runs, give the device's memory back."""
        with self._lock:
            self._of_held("release")

    def close(self) -> None:
        """Give the node back; a job that runs ends with `WorkerError`, and is waited for no longer than a few seconds."""
        self._finder.hurry()
        if self._finder.held is not None and self._lock.acquire(blocking=False):
            try:  # nothing runs: its files go, too
                self._finder.release()
            finally:
                self._lock.release()
        self._finder.close()
        if self._lock.acquire(timeout=_END_S):  # a job may wait for a head that does not answer
            try:
                self._stop_watch()
                self._forget()
            finally:
                self._lock.release()

    def _measured(self, job: ScreenJob | FinalJob, limit_s: float) -> Any:
        """Return what a node has measured, or in words why there is nothing."""
        with self._lock:
            try:
                parcel = self._packer.pack(job)
            except OSError as error:
                return f"a file of the job cannot be sent: {error}"
            if self._sent_bytes > _NODE_BYTES:
                self._unsend()
                self._finder.release()

            def measure(node: HeldNode) -> NodeAnswer:
                self._send(node, parcel)
                return node.ask("measure", parcel, limit_s=limit_s)

            answer = self._done(measure)
            return answer if isinstance(answer, str) else answer.result

    def _done(self, do: Callable[[HeldNode], NodeAnswer]) -> NodeAnswer | str:
        """Do something on a node, again on another where it is lost; in words why it was not done.

        Raises:
            WorkerError: No node can measure.
        """
        self._stop_watch()
        reason = ""
        try:
            for _ in range(TRIES):
                node = self._finder.node()
                try:
                    answer = do(node)
                except NodeLostError as error:
                    reason = f"{node.host}: {error}"
                    logger.info("a node is lost, its job is done again: %s", reason)
                    self._finder.lose(node)
                    continue
                except OSError as error:
                    return f"a file of the job cannot be sent: {error}"
                if answer.error:
                    raise WorkerError(answer.error)
                return answer
        finally:
            self._watch()
        return f"its node was lost {TRIES} times ({reason})"

    def _send(self, node: HeldNode, parcel: BenchParcel) -> None:
        """Send what a node lacks of a job's contents; each is in the object store once."""
        if self._sent[0] is not node:
            self._unsend(node)
        if self._stored_at != self._finder.connections:
            self._stored_at = self._finder.connections
            self._stored.clear()
        sent = self._sent[1]
        for digest in parcel.digests():
            if digest not in sent:
                node.keep(digest, self._reference(digest))
                sent.add(digest)
                self._sent_bytes += self._stored[digest][1]

    def _unsend(self, node: HeldNode | None = None) -> None:
        """Take a node, if there is one, for one that has been sent nothing."""
        self._sent, self._sent_bytes = (node, set()), 0

    def _reference(self, digest: str) -> Any:
        if digest in self._stored:
            self._stored.move_to_end(digest)
            return self._stored[digest][0]
        content = self._packer.content(digest)
        reference = self._finder.put(content)
        self._stored[digest] = reference, len(content)
        while len(self._stored) > 1 and sum(n for _, n in self._stored.values()) > _STORED_BYTES:
            self._stored.popitem(last=False)
        return reference

    def _of_held(self, what: str, limit_s: float = _ASK_S) -> NodeAnswer | None:
        """Return what the node answers, if one is held and is not lost."""
        node = self._finder.held
        if node is None:
            return None
        try:
            return node.ask(what, limit_s=limit_s)
        except NodeLostError as error:
            logger.debug("%s: %s", node.host, error)
            self._finder.lose(node)
            return None

    def _try_node(self) -> None:
        try:
            self._finder.node()
        except WorkerError as error:
            logger.debug("no head start: %s", error)  # the first job reports it
        else:
            self._watch()

    def _watch(self) -> None:
        """Give the node back when nothing has been measured for as long as a local worker waits."""
        with self._lock:
            self._stop_watch()
            self._used_at = time.monotonic()
            self._idle = threading.Timer(self.settings.idle_s, self._give_back)
            self._idle.daemon = True
            self._idle.start()

    def _stop_watch(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _give_back(self) -> None:
        with self._lock:
            if (
                time.monotonic() - self._used_at >= self.settings.idle_s
            ):  # no job has come meanwhile
                self._stop_watch()
                self._finder.release()
                self._forget()

    def _forget(self) -> None:
        self._unsend()
        self._stored.clear()


Bench: TypeAlias = "BenchWorker | FarmBench"


def not_here(
    _run: Callable[[], object], candidate_id: str, _sampling: Sampling, _timeout_s: float
) -> Outcome:
    """Skip a candidate that cannot be sent; in place of `measure_in_process`, which would time it on another machine."""
    reason = "nodes measure (option bench_farm), and its operands cannot be sent to them"
    return Outcome(candidate_id, "skipped", reason)


def on_nodes(
    farm: str,
    settings: WorkerSettings,
    environment: Mapping[str, Any],
    cached: Callable[[str], KernelEntry | None] = lambda _: None,
) -> FarmBench:
    """Return the benchmark worker of an option ``bench_farm``; it connects with its first job.

    Args:
        farm: The option.
        settings: Of the worker that measures.
        environment: The facts under which its times are recorded.
        cached: As of `Packer`.

    Raises:
        OptionError: Ray is not installed.
    """
    name = str(environment.get("device", {}).get("name", ""))
    finder = finder_of(farm, settings, name, lambda node: why_not(environment, node, __version__))
    return FarmBench(settings, finder, cached)


def finder_of(
    farm: str, settings: WorkerSettings, device_name: str, judged: Callable[[NodeFacts], str | None]
) -> NodeFinder:
    """Return what finds a node of an option ``bench_farm``; it connects with its first search.

    Args:
        farm: The option.
        settings: Of the worker that measures.
        device_name: The device, as CUDA names it.
        judged: Returns why a node may not measure, None if it may.

    Raises:
        OptionError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise OptionError(
            f"option bench_farm is {farm!r}, and Ray is not installed; run: pip install 'inductor-plugin[ray]'"
        )
    connect = functools.partial(connected, farm, settings.device)
    return NodeFinder(connect, resources_of(device_name), settings, judged)


def connected(farm: str, device: str) -> BenchCluster:
    """Connect to the cluster that measures for a device.

    Raises:
        WorkerError: It cannot be reached, or measures for another device of this process.
    """
    kind, _, index = device.partition(":")
    if index not in ("", "0"):
        # Requests of Triton kernels name the device, and on its node it is the only one that the worker sees.
        raise WorkerError(
            f"nodes measure for {kind}:0 of a process, not for {device}; show each process its own GPU (CUDA_VISIBLE_DEVICES)"
        )
    return BenchCluster(farm, on_gpu=kind == "cuda")


def _candidates(job: ScreenJob | FinalJob) -> list[BenchCandidate]:
    library = [job.library] if job.library is not None else []
    if isinstance(job, FinalJob):
        return [*library, *job.candidates]
    return [*library, job.candidate, *(each for end in job.ends for each in _candidates(end))]


def _limit_s(candidates: Iterable[BenchCandidate]) -> float:
    """Return seconds after which a node that has not answered is lost: no local worker takes as long."""
    return 2 * START_S + WAIT_S + sum(2 * SETUP_S + (c.timeout_s or math.inf) for c in candidates)
