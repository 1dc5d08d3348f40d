"""Process-wide state of tuning: stores, compile workers, benchmark workers, pipelines."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Store, digest_of, open_store
from inductor_plugin.cache.directory import NOWHERE
from inductor_plugin.cache.remote.records import RemoteRecords
from inductor_plugin.cache.remote.tier import RemoteOptions, RemoteTier
from inductor_plugin.cache.trust.policy import trust_or_nobody
from inductor_plugin.config import Config, local_ranks
from inductor_plugin.config.backends import backends_of, why_not_listed
from inductor_plugin.errors import CacheError
from inductor_plugin.ops.launch import add_kernel_store
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.environment import environment, worker_settings
from inductor_plugin.tuning.holder import ProblemLocks, silence_s
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.ranks.job import current
from inductor_plugin.tuning.ranks.share import RankShare, share_of
from inductor_plugin.tuning.ranks.terms import Terms, terms_of
from inductor_plugin.tuning.report.journal import Journal
from inductor_plugin.tuning.report.progress import Progress
from inductor_plugin.tuning.report.trace import MAIN_TRACK, SpanTrace
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.bench_farm.bench import Bench, not_here, on_nodes
from inductor_plugin.worker.bench_worker import BenchWorker, measure_in_process
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.devices.lookup import on_host, why_scarce
from inductor_plugin.worker.farm.pool import FarmPool, Pool, on_farm
from inductor_plugin.worker.jobs import CallJob

logger = logging.getLogger(__name__)

_IMPORTS = CallJob("inductor_plugin.worker.child.inductor", "load_compiler")
"""What compiling a Triton kernel imports, which took a worker 8 s on the machine of an H200."""
_AHEAD = 8
"""Workers with these imports that are started ahead, on a machine: a first problem has about as many Triton candidates."""

_CPP_JOB_BYTES = 1 << 30
"""Memory one C++ compile may take: g++ 12 needs 0.6 GB for a batch of eight GEMM kernels."""
_NICE = 19
"""Of compile workers while kernels are measured on a GPU: on busy cores the benchmark worker waits up to milliseconds for one between
an event and the launch behind it. At nice 19 they take idle time alone. Stopped, they would stay so if this process is killed."""


class DeviceContext:
    """The state needed to tune on one device with one configuration.

    Attributes:
        device: ``cpu`` or ``cuda:0`` ...
        store: The cache.
        environment: Digest of the environment.
        trace: Records spans.
        progress: Shows the progress of tuning.
        started: The pipeline, once it has been started.
    """

    def __init__(
        self, runtime: Runtime, config: Config, device: str, facts: Mapping[str, Any]
    ) -> None:
        """Keep the settings; nothing is started yet.

        Args:
            runtime: Ends the workers, and shares compile workers between devices.
            config: The options.
            device: The device.
            facts: The environment in which timings are comparable.
        """
        self.device = device
        self.store = runtime.store(config)
        self.environment, self._facts = self.store.put_environment(facts), facts
        self.trace = runtime.trace(config.trace_path)
        what = "compiling" if config.policy == "build" else "tuning"
        self.progress = Progress(config.progress, what)
        self.started: Pipeline | None = None
        self._runtime, self._config = runtime, config
        self._worker: Bench | None = None
        self._is_examined = False
        self._starting = threading.RLock()
        self._shares: dict[tuple[str, str], RankShare] = {}

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, started on first use."""
        with self._starting:  # not the runtime's lock: to connect to a farm may take a minute
            if self.started is None:
                self.started = self._start()
            return self.started

    def prewarm(self) -> None:
        """Start the benchmark worker, which imports torch for 2.5 s, before it is needed; and workers that compile for a GPU.

        Those compile Triton kernels: C++ is compiled without torch, and nodes of a farm keep their workers.

        Raises:
            InductorPluginError: The options name what is not there.
            RuntimeError: No thread can be started.
        """
        self.bench().prewarm()
        config = self._config
        backends = backends_of(config.gemm_backends)
        excluded = why_not_listed("gemm_backends", backends, "TRITON") is not None
        if on_host(self.device) or config.compile_farm or excluded:
            return
        pool = self._runtime.compile_pool(config, self.device)
        if not isinstance(pool, FarmPool):
            pool.prewarm(_IMPORTS, max(1, _AHEAD // local_ranks()))

    def remote(self) -> RemoteRecords | None:
        """Return the records of its environment in the remote for one graph; None without one, or where none are looked up."""
        policy, limit_s = self._config.policy, self._config.remote_timeout_s
        tier = self._runtime.remote(self._config) if policy in ("tune", "cached") else None
        if tier is None:
            return None
        return RemoteRecords(tier, self.environment, limit_s, measures=policy == "tune")

    def renew(self) -> None:
        """Try the device again, if nothing could be measured there in an earlier compile."""
        self._is_examined = False
        if self.started is not None:
            self.started.renew()

    def submit(self, ticket: TuningTicket) -> None:
        """Start the race of a ticket, if any; returns immediately, except where the device may not be had."""
        self.examine(ticket)
        self.start(ticket)

    def start(self, ticket: TuningTicket) -> None:
        """Start the race of a ticket, if any, without a look at the device; returns immediately."""
        if ticket.task is not None:
            self.progress.expect(len(ticket.task.entries))
            self.pipeline.submit(ticket.task)

    def examine(self, ticket: TuningTicket) -> None:
        """Leave a GPU that no worker gets to before anything is compiled for it: once a compile, and only if that is likely.

        Elsewhere the first kernels are compiled while the worker starts, which takes 3 s. Nodes are always asked first: a search
        for one takes up to two minutes, the start of a worker up to three.

        Args:
            ticket: The ticket that is about to be tuned; nothing is done for one that is not measured.
        """
        if ticket.task is None or not ticket.task.measured or self._is_examined:
            return
        self._is_examined = True
        scarce = self._config.bench_farm or why_scarce(self.device)
        reason = self.bench().why_not_available() if scarce else None
        if reason is not None:
            self.pipeline.leave(f"{scarce}: {reason}")

    def end(self, task: Task, error: str) -> None:
        """End a task, whether it was submitted or not."""
        self.pipeline.end(task, error)

    def progressed(self) -> None:
        """Wake what waits: another rank makes progress with what is waited for."""
        self.pipeline.progressed()

    @property
    def absence(self) -> str:
        """Why nothing can be measured on the device in this compile, empty if something can be."""
        return "" if self.started is None else self.started.absence

    def share(self, *, host_counts: bool) -> RankShare | None:
        """Return this rank's part in the problems of its job; None where this process decides alone.

        Args:
            host_counts: As of `Selection`: those who decide by other times are another group.
        """
        job = current(self._config)
        if job is None:
            return None
        terms = self.terms(host_counts=host_counts)
        _ = self.pipeline  # created first, so closed last: after problems were given back
        with self._runtime.lock:
            share = self._shares.get((job.token, terms.group))
            if share is None:
                share = share_of(job, terms, self, COUNTERS, self._config)
                self._shares[job.token, terms.group] = share
                self._runtime.at_close(share.close)
            return share

    def terms(self, *, host_counts: bool) -> Terms:
        """Return what the decisions of this process rest on; its group are the ranks with the same."""
        fields = self.store.environment(self.environment) or {}
        identity = default_registry().identity()
        return terms_of(self.environment, fields, self._config, identity, host_counts=host_counts)

    def wait(self, ticket: TuningTicket, limit_s: float) -> None:
        """Wait until the race of a ticket, if any, has ended or the limit has passed."""
        task = ticket.task
        if task is None or task.done.is_set():
            return
        started = time.perf_counter_ns()
        with self.progress.shown():
            in_time = self.pipeline.wait(task, limit_s)
        ended = time.perf_counter_ns()
        problem, verdict = ticket.problem.describe(), ticket.verdict
        decision = {"decision": verdict.winner, "reason": verdict.reason} if verdict else {}
        self.trace.add(MAIN_TRACK, f"wait {problem}", started, ended, problem=problem, **decision)
        Journal(COUNTERS, self.trace).count(task, wall_s=(ended - started) / 1e9)
        if not in_time and task.error != self.pipeline.absence:  # which has been logged once
            logger.warning(
                "inductor-plugin: %s was not tuned (%s); the library kernel is used",
                problem,
                task.error,
            )

    def bench(self) -> Bench:
        """Return the benchmark worker, here or on nodes; its process starts with its first job."""
        with self._runtime.lock:
            if self._worker is None:
                settings = worker_settings(self._config, "bench", self.device)
                if farm := self._config.bench_farm:  # this machine's memory is no matter there
                    there = replace(settings, memory_bytes=self._config.worker_memory_bytes)
                    self._worker = on_nodes(farm, there, self._facts, self.store.kernel)
                else:
                    self._worker = BenchWorker(settings)
                self._runtime.at_close(self._worker.close)
            return self._worker

    def _start(self) -> Pipeline:
        bench, config = self.bench(), self._config
        pool = self._runtime.compile_pool(config, self.device)
        pipeline = Pipeline(
            self.device,
            Builder(self.store, pool, COUNTERS, self.trace, config.compile_timeout_s),
            bench,
            not_here if config.bench_farm else measure_in_process,
            COUNTERS,
            self.trace,
            config.bench_timeout_s,
            ProblemLocks(self.store, silence_s(config)),
            self.progress.step,
        )
        self._runtime.at_close(pipeline.close)
        return pipeline


class Runtime:
    """The device contexts of this process; all are closed when it exits."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self._stores: dict[tuple[Path, str, str], Store] = {}
        self._remotes: dict[tuple[Store, RemoteOptions], RemoteTier] = {}
        self._contexts: dict[str, DeviceContext] = {}
        self._pools: dict[tuple[float | str, ...], Pool] = {}
        self._connecting: dict[tuple[float | str, ...], threading.Lock] = {}
        self._traces: dict[str, SpanTrace] = {}
        self._closers: list[Callable[[], None]] = []
        self._pid = os.getpid()

    def store(self, config: Config) -> Store:
        """Return the opened cache of a configuration.

        Where another user owns the directory or may write to it, a cache in memory is used, after one warning with the reason.
        """
        with self.lock:
            path, second = Path(config.cache_dir), config.cache_read
            if config.cache == "off":
                path, second = NOWHERE, ""
            name = path, second, config.trusted_keys
            if name not in self._stores:
                trust = trust_or_nobody(config.trusted_keys)
                options: dict[str, Any] = {"second": second, "trust": trust}
                try:
                    limit, off = config.cache_limit_bytes, path == NOWHERE
                    opened = open_store(path, limit_bytes=limit, memory_only=off, **options)
                except CacheError as error:
                    logger.warning(
                        "inductor-plugin: %s; nothing is remembered by this process", error
                    )
                    opened = open_store(path, memory_only=True, **options)
                self._stores[name] = opened
                add_kernel_store(opened)
            return self._stores[name]

    def remote(self, config: Config) -> RemoteTier | None:
        """Return the remote behind the cache of a configuration, None if it has none."""
        if not config.remote_url or config.cache == "off":
            return None
        store = self.store(config)
        options = RemoteOptions(
            config.remote_url,
            config.remote_timeout_s,
            config.remote_write,
            config.remote_kernels,
            config.signing_key,
        )
        with self.lock:
            if (store, options) not in self._remotes:
                tier = self._remotes[store, options] = RemoteTier(store, options)
                self.at_close(tier.close)
            return self._remotes[store, options]

    def context(self, config: Config, device: str, software: Mapping[str, Any]) -> DeviceContext:
        """Return the context of a device; the same object for equal settings."""
        self._after_fork()
        facts = environment(device)
        facts["software"] = {**facts["software"], **software}
        options = {option: str(value) for option, value in config.to_dict().items()}
        name = digest_of({"facts": facts, "config": options, "device": device})
        with self.lock:
            if name not in self._contexts:
                self._contexts[name] = DeviceContext(self, config, device, facts)
            return self._contexts[name]

    def trace(self, path: str) -> SpanTrace:
        """Return the trace written to a path."""
        with self.lock:
            return self._traces.setdefault(path, SpanTrace(path))

    def close(self) -> None:
        """End all workers; the next problem starts new ones."""
        self._after_fork()
        with self.lock:
            closers, self._closers = self._closers, []
            self._contexts.clear()
            self._pools.clear()
            self._remotes.clear()
        # Pipelines, created last, are closed first: they must not mistake a closed worker for a lost one.
        for close in reversed(closers):
            _close(close)

    def forget(self) -> None:
        """Close, and drop opened caches too."""
        self.close()
        with self.lock:
            self._stores.clear()
            self._traces.clear()

    def forget_unwritten(self) -> None:
        """Drop the records that no cache directory has."""
        with self.lock:
            for store in self._stores.values():
                store.forget_unwritten()

    def _after_fork(self) -> None:
        """Drop the parent's state after a fork: its threads are gone, and its workers are not ours."""
        if os.getpid() != self._pid:
            self._begin()

    def at_close(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the workers are ended."""
        with self.lock:
            self._closers.append(close)

    def compile_pool(self, config: Config, device: str) -> Pool:
        """Return the compile workers of a configuration; called without the lock, since to connect to a farm may take a minute.

        Args:
            config: The options.
            device: What is compiled for; where a GPU is measured meanwhile, compiling gives way to it: here, or on nodes.
        """
        nice_there = 0 if on_host(device) else _NICE
        nice = nice_there if config.policy == "tune" and not config.bench_farm else 0
        workers = config.compile_workers or os.cpu_count() or 1  # the pool limits it
        farm, limit = config.compile_farm, config.worker_memory_bytes
        key = (workers, config.worker_idle_s, limit, nice, farm and nice_there, farm)
        with self.lock:
            connecting = self._connecting.setdefault(key, threading.Lock())
        with connecting:
            if (pool := self._pools.get(key)) is None:
                here = replace(worker_settings(config, "compile", "cpu"), nice=nice)
                pool = CompilePool(workers, here, memory_bytes_per_job=_CPP_JOB_BYTES)
                if farm:  # this machine's memory is no matter there
                    there = replace(here, nice=nice_there, memory_bytes=limit)
                    pool = on_farm(farm, there, pool, _CPP_JOB_BYTES)
                self._pools[key] = pool
                self.at_close(pool.close)
            return pool


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:  # the border of what is closed: the others are to end, too
        logger.exception("inductor-plugin: something could not be closed")


RUNTIME = Runtime()
atexit.register(RUNTIME.close)
