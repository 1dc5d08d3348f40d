"""Compiles candidates in batches, or takes their kernels from the cache.

Each key is built once across all processes: a batch holds the lock of every key it builds; a key
locked by another process is waited for and then read. A kernel that does not fit the device, or
spills, is stored but not measured.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from inductor_plugin.cache import KernelEntry, KernelKey, Resources, Store
from inductor_plugin.counters import Counters
from inductor_plugin.errors import CacheError
from inductor_plugin.kernels import triton_files
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES, misfit
from inductor_plugin.kernels.unit import unique_symbol
from inductor_plugin.tuning.batches import MAX_BATCH, cuda_batch, spread
from inductor_plugin.tuning.task import CppBuild, Task, TaskCandidate
from inductor_plugin.tuning.trace import Trace
from inductor_plugin.worker.jobs import (
    Compiled,
    CompileJob,
    CppCompileJob,
    Outcome,
    TritonCompileJob,
)

if TYPE_CHECKING:
    from inductor_plugin.worker.compile_pool import CompilePool

logger = logging.getLogger(__name__)

_WITHOUT_LIBRARY = "flex_"
"""FlexAttention's operators have no library kernel to compare with: the result must not be slower than
Inductor's default, which on an H100 spills 132 bytes backward at head dimension 128."""

_TRITON_FOLDER = "TRITON_CACHE_DIR"
_SOURCE_NAMES = {"cpp": "source.cpp", "cuda": "source.cu"}


@dataclass
class _Item:
    task: Task
    candidate: TaskCandidate
    done: Callable[[], None]


class Builder:
    """Submits the builds of one process to its compile workers."""

    def __init__(
        self,
        store: Store,
        pool: CompilePool,
        counters: Counters,
        trace: Trace,
        compile_timeout_s: float,
    ) -> None:
        """Build into ``store`` with ``pool``.

        Kernels that can share a unit are collected across problems until `flush`, to fill batches.

        Args:
            store: Where kernels are kept.
            pool: The compile workers.
            counters: Counters of compiled kernels and seconds.
            trace: Receives the spans of compile jobs.
            compile_timeout_s: Seconds one kernel may take to compile.
        """
        self._store = store
        self._pool = pool
        self._trace = trace
        self._counters = counters
        self._timeout_s = compile_timeout_s
        self._changed = threading.Condition()
        self._pending: list[_Item] = []
        self._running = 0
        self._quiet = 0

    def add(self, task: Task, candidate: TaskCandidate, done: Callable[[], None]) -> None:
        """Queue a candidate; ``done`` is called when it is ready or has failed."""
        item = _Item(task, candidate, done)
        build = candidate.build
        if isinstance(build, TritonCompileJob):
            self._start([([item], lambda: self._build_triton(item, build))])
            return
        assert isinstance(build, CppBuild)
        kernel = self._store.kernel(build.key.digest)
        if kernel is not None:
            self._take(item, kernel)
            return
        with self._changed:
            self._pending.append(item)
            full = len(self._pending) >= MAX_BATCH * self._pool.workers
        if full:
            self.flush()

    def flush(self) -> None:
        """Start the collected builds, distributed evenly over the workers."""
        with self._changed:
            items, self._pending = self._pending, []
            by_command: dict[tuple[str, ...], list[_Item]] = {}
            for item in items:
                assert isinstance(item.candidate.build, CppBuild)
                by_command.setdefault(item.candidate.build.command, []).append(item)
            batches = [b for group in by_command.values() for b in self._batches(group)]
            # Under the same lock as the removal: collected builds must never look finished.
            self._start([(b, lambda b=b: self._build_batch(b)) for b in batches])

    def _batches(self, items: Sequence[_Item]) -> list[list[_Item]]:
        build = items[0].candidate.build
        if isinstance(build, CppBuild) and build.language == "cuda":
            units = -(-len(items) // cuda_batch(len(items), self._pool.workers))
            return [list(items[start::units]) for start in range(units)]
        return spread(items, self._pool.workers)

    def busy(self) -> bool:
        """Return True while something compiles or is about to; collected builds do not count."""
        with self._changed:
            return self._running > 0

    @contextmanager
    def quiet(self) -> Generator[bool]:
        """Start no compilation inside the block; yields False if something compiles already."""
        with self._changed:
            granted = not self._running
            self._quiet += granted
        try:
            yield granted
        finally:
            with self._changed:
                self._quiet -= granted
                self._changed.notify_all()

    def _start(self, works: Sequence[tuple[Sequence[_Item], Callable[[], None]]]) -> None:
        with self._changed:
            self._running += len(works)
        for items, work in works:
            threading.Thread(
                target=self._run, args=(items, work), name="inductor-plugin-build", daemon=True
            ).start()

    def _run(self, items: Sequence[_Item], work: Callable[[], None]) -> None:
        """Run one build; each of its items has an outcome at the end, whatever happens."""
        reason = "the builder gave no answer"
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._quiet, timeout=self._timeout_s)
            if all(_over(item.task) for item in items):
                reason = "the tuning budget ended"
            else:
                work()
        except Exception as error:  # noqa: BLE001  the border around one build
            reason = f"not built: {type(error).__name__}: {error}"
            logger.warning("inductor-plugin: %d kernels are not tuned: %s", len(items), reason)
        finally:
            with self._changed:
                self._running -= 1
            for item in items:
                if not item.candidate.ready and item.candidate.outcome is None:
                    item.candidate.outcome = Outcome(item.candidate.candidate_id, "skipped", reason)
                item.done()  # again: tasks that wait until nothing compiles may continue

    def _ready(self, item: _Item, library: str, symbol: str) -> None:
        assert item.candidate.bench is not None
        item.candidate.candidate = item.candidate.bench(library, symbol)
        item.candidate.ready = True
        item.done()

    def _take(self, item: _Item, kernel: KernelEntry) -> None:
        """Use a cached library, unless it does not fit the device."""
        if not self._pruned(item, kernel.resources):
            self._ready(item, str(kernel.path("kernel.so")), _symbol(item))

    def _pruned(self, item: _Item, resources: Resources | None) -> bool:
        """Drop a kernel that does not fit the device; return True if so."""
        problem = item.task.problem
        reason = misfit(problem.target, resources, _spill_limit(problem.op))
        if reason is None and resources is not None and item.candidate.judge is not None:
            reason = item.candidate.judge(resources)
        if reason is None:
            return False
        item.candidate.outcome = Outcome(item.candidate.candidate_id, "pruned", reason)
        item.done()
        return True

    def _fail(self, item: _Item, compiled: Compiled) -> None:
        item.candidate.outcome = Outcome(
            item.candidate.candidate_id,
            compiled.status,
            compiled.reason,
            elapsed_s=compiled.elapsed_s,
        )
        item.done()

    def _build_triton(self, item: _Item, job: TritonCompileJob) -> None:
        """Build a Triton kernel, or copy it from the cache, into Triton's cache folder."""
        if job.kernel is None:
            self._compile_triton(item, job)
        elif not self._placed(item, job, job.kernel):
            with self._store.lock_kernel(job.kernel.digest, timeout_s=self._timeout_s * MAX_BATCH):
                if not self._placed(item, job, job.kernel):
                    self._build_and_keep(item, job, job.kernel)

    def _placed(self, item: _Item, job: TritonCompileJob, key: KernelKey) -> bool:
        kernel = self._store.kernel(key.digest)
        if kernel is None:
            return False
        if self._pruned(item, kernel.resources):
            return True
        files = {name: kernel.path(name) for name in kernel.files}
        triton_files.place(files, Path(dict(job.environment)[_TRITON_FOLDER]))
        self._ready(item, "", "")
        return True

    def _build_and_keep(self, item: _Item, job: TritonCompileJob, key: KernelKey) -> None:
        """Compile into a private folder, and store the files in the cache."""
        folder = Path(tempfile.mkdtemp(prefix="inductor-plugin-"))
        try:
            environment = dict(job.environment) | {_TRITON_FOLDER: str(folder)}
            private = replace(job, environment=tuple(sorted(environment.items())))
            compiled = self._compile_triton(item, private, ready=False)
            if compiled.status == "ok":
                files = triton_files.collect(folder)
                if files:
                    self._store.put_kernel(key, files, compiled.resources)
                placed = bool(files) and self._placed(item, job, key)
                if not placed and not self._pruned(item, compiled.resources):
                    self._compile_triton(item, job)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _compile_triton(
        self, item: _Item, job: TritonCompileJob, *, ready: bool = True
    ) -> Compiled:
        results = self._compile(job, [item.candidate.name])
        compiled = results[0] if results else _unanswered(job.key)
        item.candidate.compile_s = compiled.elapsed_s
        if compiled.status != "ok":
            self._fail(item, compiled)
            return compiled
        self._counters.add(compiled=1)
        if ready and not self._pruned(item, compiled.resources):
            self._ready(item, "", "")
        return compiled

    def _compile(
        self, job: CompileJob, names: Sequence[str], memory_bytes: int = 0
    ) -> list[Compiled]:
        """Compile in a worker and wait: one result per kernel, none if no worker reached it in time.

        Args:
            job: The job.
            names: Names of its kernels, for the trace.
            memory_bytes: Memory it needs; 0 for the pool's default.
        """
        finished = threading.Event()
        results: list[Compiled] = []

        def done(compiled: list[Compiled]) -> None:
            results.extend(compiled)
            finished.set()

        self._pool.submit(job, done, memory_bytes or None)
        # Each wait has a limit: the job's own, once for the batch and once kernel by kernel, and
        # the time it may be queued after others.
        if not finished.wait(timeout=job.timeout_s * (2 + len(names)) * 4):
            return []
        # Only the compiler's time counts, not the time in the queue.
        spent_s = sum(compiled.elapsed_s for compiled in results)
        ended = time.perf_counter_ns()
        self._trace.add_parallel("compile", " + ".join(names), ended - int(spent_s * 1e9), ended)
        self._counters.add(compile_s=spent_s)
        return results

    def _build_batch(self, batch: Sequence[_Item]) -> None:
        """Build a batch, then wait for kernels that another process is building."""
        owned: list[_Item] = []
        elsewhere: list[_Item] = []
        with ExitStack() as locks:
            for item in sorted(batch, key=_digest):
                try:
                    locks.enter_context(self._store.lock_kernel(_digest(item), timeout_s=0))
                except CacheError:
                    elsewhere.append(item)
                    continue
                kernel = self._store.kernel(_digest(item))
                if kernel is not None:
                    self._take(item, kernel)
                else:
                    owned.append(item)
            if owned:
                self._build_cpp(owned)
        for item in elsewhere:
            self._build_after_other(item)

    def _build_after_other(self, item: _Item) -> None:
        """Wait for the process that builds this key; build it here if that process failed."""
        try:
            with self._store.lock_kernel(_digest(item), timeout_s=self._timeout_s * MAX_BATCH):
                kernel = self._store.kernel(_digest(item))
                if kernel is not None:
                    self._take(item, kernel)
                else:
                    self._build_cpp([item])
        except CacheError as error:  # not this kernel's fault: it may be tried again
            self._fail(item, Compiled(_digest(item), "skipped", str(error)))

    def _build_cpp(self, items: Sequence[_Item]) -> None:
        by_digest: dict[str, list[_Item]] = {}  # several problems may need the same kernel
        for item in items:
            by_digest.setdefault(_digest(item), []).append(item)
        builds = [twins[0].candidate.build for twins in by_digest.values()]
        sources = tuple(b.source for b in builds if isinstance(b, CppBuild))
        assert isinstance(builds[0], CppBuild)
        folder = tempfile.mkdtemp(prefix="inductor-plugin-")
        try:
            job = CppCompileJob(
                sources=sources,
                command=builds[0].command,
                workdir=folder,
                # Each further kernel costs a quarter of the first (CUTLASS: 33 s alone, 64 s for 8).
                timeout_s=self._timeout_s * (3 + len(sources)) / 4,
            )
            names = [twins[0].candidate.name for twins in by_digest.values()]
            results = self._compile(job, names, builds[0].memory_bytes)
            by_key = {compiled.key: compiled for compiled in results}
            published: dict[str, Path] = {}
            for digest, twins in by_digest.items():
                compiled = by_key.get(digest) or _unanswered(digest)
                kernel = self._published(twins[0], compiled, published)
                for item in twins:
                    item.candidate.compile_s = compiled.elapsed_s
                    if kernel is None:
                        self._fail(item, compiled)
                    else:
                        self._take(item, kernel)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _published(
        self, item: _Item, compiled: Compiled, published: dict[str, Path]
    ) -> KernelEntry | None:
        """Store a kernel if it compiled; ``published`` maps libraries of several kernels to their copies."""
        build = item.candidate.build
        if compiled.status != "ok" or compiled.library is None or not isinstance(build, CppBuild):
            return None
        kernel = self._store.put_kernel(
            build.key,
            {
                "kernel.so": published.get(compiled.library) or Path(compiled.library),
                _SOURCE_NAMES[build.language]: build.source.source.encode(),
            },
            compiled.resources,
        )
        published[compiled.library] = kernel.path("kernel.so")
        self._counters.add(compiled=1)
        return kernel


def _spill_limit(op: str) -> int:
    """Return the bytes a thread may spill for its kernel to be measured."""
    return sys.maxsize if op.startswith(_WITHOUT_LIBRARY) else SPILL_LIMIT_BYTES


def _unanswered(key: str) -> Compiled:
    """Return the result for a kernel no worker reached; ``skipped``, so it is tried again."""
    return Compiled(key, "skipped", "the compile workers did not come to it in time")


def _over(task: Task) -> bool:
    return task.late or task.done.is_set()


def _digest(item: _Item) -> str:
    build = item.candidate.build
    assert isinstance(build, CppBuild)
    return build.key.digest


def _symbol(item: _Item) -> str:
    """Return the C function's name in the library, which follows from the key alone."""
    build = item.candidate.build
    assert isinstance(build, CppBuild)
    return unique_symbol(build.source)
