"""What a process keeps while it tunes: stores, compile workers, benchmark workers, pipelines."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.cache import Store, digest_of, open_store
from inductor_plugin.config import Config
from inductor_plugin.counters import COUNTERS
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.builder import Builder
from inductor_plugin.tuning.environment import environment, float32_precision
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.progress import Progress
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.trace import Trace
from inductor_plugin.worker.bench_worker import BenchWorker, home_measure
from inductor_plugin.worker.compile_pool import CompilePool, available_bytes
from inductor_plugin.worker.jobs import WorkerSettings

logger = logging.getLogger(__name__)

_CPP_JOB_BYTES = 1 << 30
"""Memory one C++ compile may take: g++ 12 needs 0.6 GB for a batch of eight GEMM kernels."""


@dataclass
class Site:
    """Everything one device needs for tuning with one configuration.

    Attributes:
        device: ``cpu`` or ``cuda:0`` ...
        store: The cache.
        environment: Digest of the environment.
        pipeline: Compiles and measures.
        progress: Shows how far it is.
        trace: Draws what happened.
        prewarm: Starts the benchmark worker in the background.
    """

    device: str
    store: Store
    environment: str
    trace: Trace
    progress: Progress
    _guard: AbstractContextManager[object]
    _pipeline: Callable[[], Pipeline]
    _prewarm: Callable[[], None]
    started: Pipeline | None = field(default=None)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, started when it is first asked for."""
        with self._guard:
            if self.started is None:
                self.started = self._pipeline()
            return self.started

    def prewarm(self) -> None:
        """Start the benchmark worker, which imports torch for 2.5 s, before it is needed."""
        self._prewarm()


class Runtime:
    """The sites of this process; all end with it."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._lock = threading.RLock()
        self._stores: dict[Path, Store] = {}
        self._sites: dict[str, Site] = {}
        self._pools: dict[tuple[float, ...], CompilePool] = {}
        self._traces: dict[str, Trace] = {}
        self._closers: list[Callable[[], None]] = []
        self._pid = os.getpid()

    def store(self, config: Config) -> Store:
        """Return the opened cache of a configuration.

        A directory that someone else owns or may write to is not trusted: tuning then works
        without remembering, after one warning that says why.
        """
        with self._lock:
            path = Path(config.cache_dir)
            if path not in self._stores:
                try:
                    opened = open_store(path, limit_bytes=config.cache_limit_bytes)
                except CacheError as error:
                    logger.warning("%s; nothing is remembered by this process", error)
                    opened = open_store(path, memory_only=True)
                self._stores[path] = opened
            return self._stores[path]

    def site(self, config: Config, device: str, software: Mapping[str, Any]) -> Site:
        """Return the site for a device; the same one for equal settings."""
        self._after_fork()
        facts = environment(device)
        facts["software"] = {**facts["software"], **software}
        name = digest_of({"facts": facts, "config": _text(config.to_dict()), "device": device})
        store = self.store(config)
        with self._lock:
            if name not in self._sites:
                self._sites[name] = self._make(config, device, store, facts)
            return self._sites[name]

    def trace(self, path: str) -> Trace:
        """Return the trace written to a path."""
        with self._lock:
            return self._traces.setdefault(path, Trace(path))

    def close(self) -> None:
        """End all workers; the next problem starts new ones."""
        self._after_fork()
        with self._lock:
            closers, self._closers = self._closers, []
            self._sites.clear()
            self._pools.clear()
        # Pipelines first, which were made last: they must not take a closed worker for a lost one.
        for close in reversed(closers):
            close()

    def forget(self) -> None:
        """Close, and forget opened caches too."""
        self.close()
        with self._lock:
            self._stores.clear()
            self._traces.clear()

    def _after_fork(self) -> None:
        """Drop what belongs to the parent: after a fork its threads are gone, its workers are not ours."""
        if os.getpid() == self._pid:
            return
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._stores, self._sites, self._pools, self._closers = {}, {}, {}, []
        self._traces = {}

    def _make(self, config: Config, device: str, store: Store, facts: dict[str, Any]) -> Site:
        trace = self.trace(config.trace_path)
        progress = Progress(config.progress)
        worker = functools.lru_cache(maxsize=1)(lambda: self._bench(config, device))

        def bench() -> BenchWorker:
            with self._lock:  # `lru_cache` alone would let two threads make one each
                return worker()

        return Site(
            device=device,
            store=store,
            environment=store.put_environment(facts),
            trace=trace,
            progress=progress,
            _guard=self._lock,
            _pipeline=lambda: self._pipeline(config, device, store, trace, progress, bench()),
            _prewarm=lambda: bench().prewarm(),
        )

    def _bench(self, config: Config, device: str) -> BenchWorker:
        worker = BenchWorker(worker_settings(config, "bench", device))
        self._closers.append(worker.close)
        return worker

    def _pipeline(
        self,
        config: Config,
        device: str,
        store: Store,
        trace: Trace,
        progress: Progress,
        bench: BenchWorker,
    ) -> Pipeline:
        builder = Builder(
            store,
            self._pool(config),
            COUNTERS,
            trace,
            config.compile_timeout_s,
        )
        pipeline = Pipeline(
            device,
            builder,
            bench,
            home_measure,
            COUNTERS,
            trace,
            config.bench_timeout_s,
            functools.partial(_try_lock, store),
            progress,
        )
        self._closers.append(pipeline.close)
        return pipeline

    def _pool(self, config: Config) -> CompilePool:
        workers = config.compile_workers or len(os.sched_getaffinity(0))
        key = (workers, config.worker_idle_s, config.worker_memory_bytes)
        if key not in self._pools:
            pool = CompilePool(
                workers,
                worker_settings(config, "compile", "cpu"),
                memory_bytes_per_job=_CPP_JOB_BYTES,
            )
            self._pools[key] = pool
            self._closers.append(pool.close)
        return self._pools[key]


def worker_settings(config: Config, kind: str, device: str) -> WorkerSettings:
    """Return the parent's settings a worker has to share for its numbers to stand."""
    matmul = torch.backends.cuda.matmul
    return WorkerSettings(
        sys_path=tuple(sys.path),
        kind="bench" if kind == "bench" else "compile",
        device=device,
        threads=torch.get_num_threads(),
        idle_s=config.worker_idle_s,
        memory_bytes=_memory_limit(config, device),
        allow_tf32=float32_precision() != "highest",
        cudnn_allow_tf32=bool(torch.backends.cudnn.allow_tf32),
        float32_precision=float32_precision(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        reduced_precision=(
            bool(matmul.allow_fp16_reduced_precision_reduction),
            bool(matmul.allow_bf16_reduced_precision_reduction),
        ),
    )


def _memory_limit(config: Config, device: str) -> int:
    """Return the private memory a worker may take; 0 for no limit.

    A limit turns a greedy candidate into a refused allocation, instead of the kernel's
    out-of-memory killer, which may choose the user's process. The CUDA driver maps address space
    far beyond what it uses, so a worker on a GPU is limited only if the user says so.
    """
    if config.worker_memory_bytes or device != "cpu":
        return config.worker_memory_bytes
    return available_bytes() * 4 // 5


def _try_lock(store: Store, task: Task) -> Callable[[], None] | None:
    """Take a problem's lock among processes; None if another process is measuring it."""
    lock = store.lock_kernel(f"measure-{task.digest}", timeout_s=0)
    try:
        lock.__enter__()
    except CacheError:
        return None

    def release() -> None:
        lock.__exit__(None, None, None)

    return release


def _text(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


RUNTIME = Runtime()
atexit.register(RUNTIME.close)
