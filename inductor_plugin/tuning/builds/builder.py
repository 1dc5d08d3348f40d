"""Compiles candidates in batches, or takes their kernels from the cache.

Each key is built once across all processes: a batch holds the lock of every key it builds; a key
locked by another process is waited for and then read. A kernel that does not fit the device, or
spills, is stored but not measured.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from inductor_plugin.cache import KernelEntry, KernelKey, Resources, Store
from inductor_plugin.errors import CacheError
from inductor_plugin.kernels import triton_files
from inductor_plugin.kernels.resources import why_not
from inductor_plugin.kernels.unit import head
from inductor_plugin.tuning import scratch
from inductor_plugin.tuning.budget import TWO_WAVES_S, UNIT_S, heaviest_first, heaviest_unit_first
from inductor_plugin.tuning.builds.batches import MAX_BATCH, cuda_batch, spread
from inductor_plugin.tuning.builds.item import BuildItem, answer, problem_of, unanswered, urgency
from inductor_plugin.tuning.builds.queue import BuildQueue, Work
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.holder import TOUCH_S, HolderWatch, touch
from inductor_plugin.tuning.report.journal import Journal
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import CppBuild, Task, TaskCandidate
from inductor_plugin.worker.compile_pool import SETUP_S
from inductor_plugin.worker.jobs import (
    OUT_OF_TIME,
    Compiled,
    CompileJob,
    CppCompileJob,
    Outcome,
    TritonCompileJob,
)

if TYPE_CHECKING:
    from inductor_plugin.worker.farm.pool import Pool

logger = logging.getLogger(__name__)

_SILENCE_S = 10.0
"""Least seconds for which a process that builds a kernel may be silent; it touches the lock's file each second."""
_TRITON_FOLDER = "TRITON_CACHE_DIR"
_SOURCE_NAMES = {"cpp": "source.cpp", "cuda": "source.cu"}


class Builder:
    """Submits the builds of one process to its compile workers."""

    def __init__(
        self,
        store: Store,
        pool: Pool,
        counters: Counters,
        trace: SpanTrace,
        compile_timeout_s: float,
    ) -> None:
        """Build into ``store`` with ``pool``; kernels that can share a unit are collected across problems until `flush`.

        Args:
            store: Where kernels are kept.
            pool: The compile workers.
            counters: Counters of compiled kernels and seconds.
            trace: Receives the spans of compile jobs.
            compile_timeout_s: Seconds one kernel may take to compile; 0 for no limit.
        """
        self._store = store
        self._pool = pool
        self._journal = Journal(counters, trace)
        self._timeout_s = compile_timeout_s or math.inf
        self._changed = threading.Condition()
        self._pending: list[BuildItem] = []
        self._queue = BuildQueue(pool, self._run)
        self._running = 0
        self._quiet = 0

    def add(self, task: Task, candidate: TaskCandidate, done: Callable[[], None]) -> None:
        """Queue a candidate; ``done`` is called when it is ready or has failed."""
        item = BuildItem(task, candidate, done)
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
        """Start the collected builds, distributed evenly over the workers; they fail if no thread can be started."""
        why = ""
        with self._changed:
            items, self._pending = self._pending, []
            by_command: dict[tuple[str, ...], list[BuildItem]] = {}
            for item in items:
                assert isinstance(item.candidate.build, CppBuild)
                by_command.setdefault(item.candidate.build.command, []).append(item)
            batches = [b for group in by_command.values() for b in self._batches(group)]
            # Under the same lock as the removal: collected builds must never look finished.
            try:
                self._start([(b, lambda b=b: self._build_batch(b)) for b in batches])
            except RuntimeError as error:
                why = f"not built: {error}"
        if why:  # the measuring thread takes its own lock before that one
            answer(items, why)

    def _batches(self, items: Sequence[BuildItem]) -> list[list[BuildItem]]:
        """Return what is compiled together; the lock is held."""
        budget, workers = items[0].task.budget, self._pool.workers
        if items[0].cpp.language == "cuda":
            size = cuda_batch(len(items), workers, self._running)
            if budget is not None:
                return heaviest_first(items, problem_of, size)
            count = -(-len(items) // size)
            return [list(items[start::count]) for start in range(count)]
        if budget is not None and budget.total_s < UNIT_S:
            return heaviest_first(items, problem_of, 1)
        waves = 1
        if budget is not None and budget.total_s < TWO_WAVES_S:
            items, waves = heaviest_first(items, problem_of, len(items))[0], 2
        units = spread(items, waves * workers, lambda item: head(item.cpp.source))
        return units if budget is None else heaviest_unit_first(units, problem_of)

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

    def _start(self, works: Sequence[Work]) -> None:
        for budget in {item.task.budget for items, _ in works for item in items}:
            if budget is not None:
                budget.start()
        with self._changed:
            self._running += len(works)
            try:
                self._queue.add(works)
            except RuntimeError:  # no thread can be started
                self._running -= len(works)
                raise

    def _run(self, items: Sequence[BuildItem], work: Callable[[], None]) -> None:
        """Run one build; each of its items has an outcome at the end, whatever happens."""
        reason = "the builder gave no answer"
        try:
            with self._changed:
                limit_s = None if self._timeout_s == math.inf else self._timeout_s
                self._changed.wait_for(lambda: not self._quiet, timeout=limit_s)
            if all(item.over for item in items):
                reason = OUT_OF_TIME
            else:
                work()
        except Exception as error:  # noqa: BLE001  the border around one build
            reason = f"not built: {type(error).__name__}: {error}"
            logger.warning("inductor-plugin: %d kernels are not tuned: %s", len(items), reason)
        finally:
            with self._changed:
                self._running -= 1
            answer(items, reason)

    def _ready(self, item: BuildItem, library: str, symbol: str) -> None:
        assert item.candidate.bench is not None
        item.candidate.candidate = item.candidate.bench(library, symbol)
        item.candidate.ready = True
        item.done()

    def _take(self, item: BuildItem, kernel: KernelEntry) -> None:
        """Use a cached library, unless it does not fit the device."""
        if not self._pruned(item, kernel.resources):
            self._ready(item, str(kernel.path("kernel.so")), item.symbol)

    def _pruned(self, item: BuildItem, resources: Resources | None) -> bool:
        """Drop a kernel that does not fit the device; return True if so."""
        problem = item.task.problem
        reason = why_not(problem.target, resources, item.spill_limit)
        if reason is None and resources is not None and item.candidate.judge is not None:
            reason = item.candidate.judge(resources)
        if reason is None:
            return False
        item.candidate.outcome = Outcome(item.candidate.candidate_id, "pruned", reason)
        item.done()
        return True

    def _fail(self, item: BuildItem, compiled: Compiled) -> None:
        item.candidate.outcome = Outcome(
            item.candidate.candidate_id,
            compiled.status,
            compiled.reason,
            elapsed_s=compiled.elapsed_s,
        )
        item.done()

    def _build_triton(self, item: BuildItem, job: TritonCompileJob) -> None:
        """Build a Triton kernel, or copy it from the cache, into Triton's cache folder."""
        if job.kernel is None:
            self._compile_triton(item, job)
        elif not self._placed(item, job, job.kernel):
            with self._locked(item, job.kernel.digest):
                if not self._placed(item, job, job.kernel):
                    self._build_and_keep(item, job, job.kernel)

    def _placed(self, item: BuildItem, job: TritonCompileJob, key: KernelKey) -> bool:
        kernel = self._store.kernel(key.digest)
        if kernel is None:
            return False
        if self._pruned(item, kernel.resources):
            return True
        files = {name: kernel.path(name) for name in kernel.files}
        triton_files.place(files, Path(dict(job.environment)[_TRITON_FOLDER]))
        self._ready(item, "", "")
        return True

    def _build_and_keep(self, item: BuildItem, job: TritonCompileJob, key: KernelKey) -> None:
        """Compile into a private folder, and store the files in the cache."""
        with scratch.build_folder() as folder:
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

    def _compile_triton(
        self, item: BuildItem, job: TritonCompileJob, *, ready: bool = True
    ) -> Compiled:
        results = self._compile(job, [item])
        compiled = results[0] if results else unanswered(job.key)
        item.candidate.compile_s = compiled.elapsed_s
        if compiled.status != "ok":
            self._fail(item, compiled)
            return compiled
        self._journal.count(item.task, compiled=1)
        if ready and not self._pruned(item, compiled.resources):
            self._ready(item, "", "")
        return compiled

    def _compile(
        self, job: CompileJob, items: Sequence[BuildItem], memory_bytes: int = 0
    ) -> list[Compiled]:
        """Compile in a worker and wait: one result per kernel, none if no worker reached it in time.

        Args:
            job: The job.
            items: Its kernels, one of several that share one.
            memory_bytes: Memory it needs; 0 for the pool's default.
        """
        finished = threading.Event()
        results: list[Compiled] = []

        def done(compiled: list[Compiled]) -> None:
            results.extend(compiled)
            finished.set()

        self._journal.compiling(items)
        self._pool.submit(job, done, memory_bytes or None, *urgency(items))
        # Each wait has a limit: the job's own, once for the batch and once kernel by kernel, and
        # the time it may be queued after others.
        ends = time.monotonic() + SETUP_S + (job.timeout_s or math.inf) * (2 + len(items)) * 4
        while not finished.wait(timeout=TOUCH_S):
            if time.monotonic() > ends:
                return []
            for digest in filter(None, (item.candidate.kernel for item in items)):
                touch(self._store.layout.lock(digest))
        spent_s = self._journal.compiled(items, results)
        budget = items[0].task.budget
        if budget is not None and results and results[0].status == "ok":
            budget.compiled(spent_s)
        return results

    def _build_batch(self, batch: Sequence[BuildItem]) -> None:
        """Build a batch, then wait for kernels that another process is building."""
        owned: list[BuildItem] = []
        elsewhere: list[BuildItem] = []
        with ExitStack() as locks:
            for item in sorted(batch, key=lambda item: item.digest):
                try:
                    locks.enter_context(self._store.lock_kernel(item.digest, timeout_s=0))
                except CacheError:
                    elsewhere.append(item)
                    continue
                kernel = self._store.kernel(item.digest)
                if kernel is not None:
                    self._take(item, kernel)
                else:
                    owned.append(item)
            if owned:
                self._build_cpp(owned)
        for item in elsewhere:
            self._build_after_other(item)

    def _build_after_other(self, item: BuildItem) -> None:
        """Wait for the process that builds this key; build it here if that process failed."""
        with self._locked(item, item.digest):
            kernel = self._store.kernel(item.digest)
            if kernel is not None:
                self._take(item, kernel)
            elif item.over:
                self._fail(item, Compiled(item.digest, "skipped", OUT_OF_TIME))
            else:
                self._build_cpp([item])

    @contextmanager
    def _locked(self, item: BuildItem, digest: str) -> Generator[None]:
        """Hold a kernel's lock inside the block; without it if its holder is silent, or time is over."""
        watch = HolderWatch(self._store.layout.lock(digest))
        with ExitStack() as locks:
            while watch.silent_s() < max(_SILENCE_S, self._timeout_s) and not item.over:
                try:
                    locks.enter_context(self._store.lock_kernel(digest, timeout_s=TOUCH_S))
                    break
                except CacheError:
                    watch.notice(f"{item.candidate.name} of {item.task.problem.describe()}")
            yield

    def _build_cpp(self, items: Sequence[BuildItem]) -> None:
        by_digest: dict[str, list[BuildItem]] = {}  # several problems may need the same kernel
        for item in items:
            by_digest.setdefault(item.digest, []).append(item)
        builds = [twins[0].candidate.build for twins in by_digest.values()]
        sources = tuple(b.source for b in builds if isinstance(b, CppBuild))
        assert isinstance(builds[0], CppBuild)
        with scratch.build_folder() as folder:
            job = CppCompileJob(
                sources=sources,
                command=builds[0].command,
                workdir=str(folder),
                # Each further kernel costs a quarter of the first (CUTLASS: 33 s alone, 64 s for 8).
                timeout_s=self._timeout_s * (3 + len(sources)) / 4,
            )
            firsts = [twins[0] for twins in by_digest.values()]
            results = self._compile(job, firsts, builds[0].memory_bytes)
            by_key = {compiled.key: compiled for compiled in results}
            published: dict[str, Path] = {}
            for digest, twins in by_digest.items():
                compiled = by_key.get(digest) or unanswered(digest)
                kernel = self._published(twins[0], compiled, published)
                for item in twins:
                    item.candidate.compile_s = compiled.elapsed_s
                    if kernel is None:
                        self._fail(item, compiled)
                    else:
                        self._take(item, kernel)

    def _published(
        self, item: BuildItem, compiled: Compiled, published: dict[str, Path]
    ) -> KernelEntry | None:
        """Store a kernel if it compiled; ``published`` maps libraries of several kernels to their copies.

        A kernel that an import has brought meanwhile stays, with a library of its own: that holds none of the others.
        """
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
        if kernel.holds("kernel.so", Path(compiled.library)):
            published.setdefault(compiled.library, kernel.path("kernel.so"))
        self._journal.count(item.task, compiled=1)
        return kernel
