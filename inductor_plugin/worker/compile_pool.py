"""Threads that each keep one compile worker busy, and workers that are started ahead; bounded by cores and by free memory."""

from __future__ import annotations

import itertools
import logging
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.failure import last_lines, one_line
from inductor_plugin.worker.jobs import (
    OUT_OF_TIME,
    CallJob,
    Compiled,
    CompileJob,
    CppCompileJob,
    Event,
    JobFailed,
    Status,
    TritonCompileJob,
    WorkerSettings,
)
from inductor_plugin.worker.process import WorkerProcess

_LOG = logging.getLogger(__name__)

Done = Callable[[list[Compiled]], None]

SETUP_S = 120.0
"""Seconds until a job reports its start: a worker's first Triton job imports torch."""
_SPARE_BYTES = 1 << 30
"""Free memory for each process that is started ahead: with torch and Triton imported it has 0.4 GB, and then compiles."""
_HEAD_START_S = 20.0
"""Seconds that a job waits for the imports of a process that was started ahead; its own process would start from nothing."""
_WARNED: set[str] = set()
_MEMORY_POLL_S = 0.2
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Queued:
    job: CompileJob
    done: Done
    memory_bytes: int
    until: Callable[[], float] | None = None


@dataclass(frozen=True)
class _Spare:
    """A process that was started ahead, and when its imports have ended, in whatever way."""

    process: WorkerProcess
    imported: threading.Event


class CompilePool:
    """Compiles jobs in worker processes, and calls ``done`` of each job once.

    Threads and processes start when there is work for them, or ahead of it by `prewarm`. After a compiler crash or hang, the
    kernels of its job are compiled one by one; the pool continues.
    """

    def __init__(self, workers: int, settings: WorkerSettings, memory_bytes_per_job: int) -> None:
        """Create a pool; nothing is started yet.

        Args:
            workers: Maximum number of concurrent jobs; limited to the cores of this process.
            settings: Settings of the worker processes.
            memory_bytes_per_job: A job waits until this much memory is free in addition to what the
                running jobs may still use, unless it is the only job.
        """
        self.workers = max(1, min(workers, len(own_cores())))
        self._settings = settings
        self._memory_bytes = memory_bytes_per_job
        self._queue: queue.PriorityQueue[tuple[float, int, _Queued | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._processes: set[WorkerProcess] = set()
        self._spares: list[_Spare] = []
        self._warm: set[WorkerProcess] = set()
        self._threads = 0
        self._active = 0
        self._running = 0
        self._promised_bytes = 0
        self._room_bytes = 0
        self._closed = False

    @property
    def idle(self) -> int:
        """How many further jobs would begin at once."""
        return max(0, self.workers - self._active)

    def submit(
        self,
        job: CompileJob,
        done: Done,
        memory_bytes: int | None = None,
        rank: float = 0.0,
        until: Callable[[], float] | None = None,
    ) -> None:
        """Queue a job.

        Args:
            job: The job.
            done: Called once from a thread of the pool, with one outcome per kernel of the job. It
                should be quick, and must not wait for another job.
            memory_bytes: Memory this job needs, if not the pool's default.
            rank: Of the queued jobs the one with the highest rank is next; equal ones keep their order.
            until: Called when the job's turn comes; returns the ``time.monotonic()`` at which it is
                ended, so that its kernels are ``skipped``. None for no such time.

        Raises:
            WorkerError: The pool is closed.
            RuntimeError: No thread can be started, and none runs: nothing is queued.
        """
        with self._changed:
            if self._closed:
                raise WorkerError("the compile pool is closed")
            self._hire(self._active + 1)
            self._active += 1
            self._put(_Queued(job, done, memory_bytes or self._memory_bytes, until), rank)

    def prewarm(self, job: CallJob, most: int) -> None:
        """Start processes for the first Triton jobs, and run a function in them: importing torch and Triton takes seconds.

        Each takes the place of a worker that has run none. C++ and CUDA jobs need none of that, and do not wait for it.

        Args:
            job: The function.
            most: Maximum number of processes with the imports; limited to the jobs that may run at once, and by free memory.

        Raises:
            RuntimeError: No thread can be started.
        """
        with self._changed:  # a thread that looks for a spare meanwhile takes none of these
            lost = [spare for spare in self._spares if _is_lost(spare)]
            self._spares = [spare for spare in self._spares if spare not in lost]
        self._discard(lost)
        with self._changed:
            ready = sum(process.alive for process in self._warm) + len(self._spares)
            most = min(most, self.workers, available_bytes() // _SPARE_BYTES)
            for number in range(0 if self._closed else most - ready):
                process = WorkerProcess(self._settings, f"compile worker, spare {number + 1}")
                spare = _Spare(process, threading.Event())
                threading.Thread(
                    target=_import_ahead, args=(spare, job), name="prewarm", daemon=True
                ).start()
                self._processes.add(process)
                self._spares.append(spare)

    def close(self) -> None:
        """End all workers. Jobs that are queued or running end as ``skipped``."""
        with self._changed:
            self._closed = True
            processes, threads = list(self._processes), self._threads
            self._changed.notify_all()
        for process in processes:
            process.close()
        for _ in range(threads):
            self._put(None, -math.inf)

    def _put(self, queued: _Queued | None, rank: float) -> None:
        self._queue.put((-rank, next(self._numbers), queued))

    def _hire(self, jobs: int) -> None:
        """Start another thread if there are jobs for it; the lock is held. RuntimeError: none can be started, and none runs."""
        if self._threads < min(self.workers, jobs):
            name = f"compile worker {self._threads + 1}"
            try:
                threading.Thread(target=self._work, args=(name,), name=name, daemon=True).start()
            except RuntimeError:  # the system's limit: those that run take all
                if self._threads == 0:
                    raise
                return
            self._threads += 1

    def _work(self, name: str) -> None:
        """Serve the queue with one worker process, until the pool is closed."""
        process = WorkerProcess(self._settings, name)
        with self._changed:
            self._processes.add(process)
            closed = self._closed
        if closed:
            process.close()
        try:
            while (queued := self._queue.get()[2]) is not None:
                process = self._worker_for(process, queued.job)
                self._serve(process, queued)
                del queued  # not to be kept while this thread waits for the next
        finally:  # also reached if `done` raises: another thread takes over
            process.close()
            with self._changed:
                self._processes.discard(process)
                self._warm.discard(process)
                self._threads -= 1
                if self._closed:
                    self._put(None, -math.inf)  # for the replacement thread
                with suppress(RuntimeError):  # the next job tries again
                    self._hire(self._active)

    def _worker_for(self, process: WorkerProcess, job: CompileJob) -> WorkerProcess:
        """Return the process that runs a job: a spare, or the thread's own one if there is none or taking it fails."""
        try:
            return self._prewarmed(process, job)
        except Exception:  # noqa: BLE001  the border around a job, as in `_serve`
            _LOG.exception("inductor-plugin: a compile worker that was started ahead failed")
            return process

    def _prewarmed(self, process: WorkerProcess, job: CompileJob) -> WorkerProcess:
        """Return a spare in place of a process that has not imported what a Triton job needs, while there is one."""
        if not isinstance(job, TritonCompileJob):
            return process
        while (spare := self._spare_for(process)) is not None:
            if spare.imported.wait(_HEAD_START_S) and spare.process.alive:
                with self._changed:
                    self._processes.discard(process)
                    self._warm.discard(process)
                    self._warm.add(spare.process)
                process.close()
                return spare.process
            self._discard([spare])
        with self._changed:
            self._warm.add(process)
        return process

    def _spare_for(self, process: WorkerProcess) -> _Spare | None:
        """Take a spare for a process without the imports; None if it has them, or if there is none."""
        with self._changed:
            has_imports = process in self._warm and process.alive
            return None if self._closed or has_imports or not self._spares else self._spares.pop(0)

    def _discard(self, spares: Sequence[_Spare]) -> None:
        """End spares that their caller has taken: one that has idled, that does not start, or whose imports take too long."""
        with self._changed:
            self._processes.difference_update(spare.process for spare in spares)
        for spare in spares:
            spare.process.close()

    def _serve(self, process: WorkerProcess, queued: _Queued) -> None:
        try:
            self._admit(queued.memory_bytes)
            compiled = [
                Compiled(key, "skipped", "the compile worker failed")
                for key in kernel_keys(queued.job)
            ]
            try:
                until = queued.until() if queued.until is not None else math.inf
                compiled = compile_all(process, queued.job, until)
            except Exception:  # noqa: BLE001  the border around a job: whoever waits for it has to be answered
                _LOG.exception("inductor-plugin: a compile job failed")
            finally:
                with self._changed:
                    self._running -= 1
                    self._promised_bytes -= queued.memory_bytes
                    self._changed.notify_all()
            queued.done(compiled)
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def _admit(self, memory_bytes: int) -> None:
        """Wait until there is memory for another job; a single job always runs."""
        with self._changed:
            while self._running and not self._closed and not self._has_room(memory_bytes):
                self._changed.wait(_MEMORY_POLL_S)
            if not self._running:
                self._room_bytes = available_bytes()
            self._running += 1
            self._promised_bytes += memory_bytes

    def _has_room(self, memory_bytes: int) -> bool:
        """Return True if a job fits in memory with the running jobs; called with the lock held.

        The memory that is free now is not enough to decide: nvcc takes a second to load its headers, and reaches its peak
        only in its last step, so the memory that was free before all running jobs is divided among them, too.
        """
        free = available_bytes()
        self._room_bytes = max(self._room_bytes, free)  # other processes have freed some
        return memory_bytes <= min(free, self._room_bytes - self._promised_bytes)


def _import_ahead(spare: _Spare, job: CallJob) -> None:
    try:
        with suppress(WorkerError):  # the first job says so
            spare.process.attempt(job, SETUP_S)
    finally:
        spare.imported.set()


def _is_lost(spare: _Spare) -> bool:
    """Return whether a spare has ended: it idles for ``worker_idle_s`` at most."""
    return spare.imported.is_set() and not spare.process.alive


def compile_all(process: WorkerProcess, job: CompileJob, until: float = math.inf) -> list[Compiled]:
    """Compile a job in a worker; if the worker breaks, compile its kernels one by one.

    Args:
        process: The worker.
        job: The job.
        until: ``time.monotonic()`` at which its kernels become ``skipped``.
    """
    started = time.monotonic()
    result = _attempt(process, job, until)
    if not isinstance(result, JobFailed):
        warn_of_skipped(result)
        return result
    each_s = (time.monotonic() - started) / len(kernel_keys(job))
    broken = result.status in ("hung", "crashed", "out_of_memory")
    if broken and isinstance(job, CppCompileJob) and len(job.sources) > 1:
        _LOG.info("a compile batch failed (%s); compiling its kernels one by one", result.reason)
        singles = (replace(job, sources=(source,)) for source in job.sources)
        return [compiled for single in singles for compiled in compile_all(process, single, until)]
    return [
        Compiled(key=key, status=result.status, reason=result.reason, elapsed_s=each_s)
        for key in kernel_keys(job)
    ]


def _attempt(process: WorkerProcess, job: CompileJob, until: float) -> list[Compiled] | JobFailed:
    """Run a job; what goes wrong before its compiler starts is not the kernels' fault: ``skipped``."""
    started: list[Event] = []

    def limit(event: Event) -> float | None:
        if event.what != "start":
            return None
        started.append(event)
        return min(job.timeout_s or math.inf, until - time.monotonic())

    setup_s = min(SETUP_S, until - time.monotonic())
    if setup_s <= 0:
        return JobFailed("skipped", OUT_OF_TIME)
    try:
        result = process.attempt(job, setup_s, limit)
    except WorkerError as error:
        return JobFailed("skipped", one_line(str(error)))
    if isinstance(result, JobFailed):
        return _blamed(result, job, started=bool(started), late=time.monotonic() >= until)
    return result


def _blamed(result: JobFailed, job: CompileJob, *, started: bool, late: bool) -> JobFailed:
    """Return what a failed job means for its kernels."""
    if result.status == "hung" and late:
        return JobFailed("skipped", OUT_OF_TIME)
    if not started:
        _warn(len(kernel_keys(job)), result.status, result.reason)
        return JobFailed("skipped", f"its worker: {result.status}: {result.reason}")
    if result.status in ("raised", "sticky_error"):
        return JobFailed("compile_failed", last_lines(result.traceback))
    return result


def warn_of_skipped(compiled: Sequence[Compiled]) -> None:
    """Warn, once a process, that kernels were not compiled for what their machine lacks."""
    short = [each.reason for each in compiled if each.status == "skipped"]
    if short:
        _warn(len(short), "skipped", one_line(short[0]))


def _warn(count: int, status: Status, reason: str) -> None:
    """Warn once a process for each kind: what one worker lacks, all lack for all kernels alike."""
    level = logging.DEBUG if status in _WARNED else logging.WARNING
    _WARNED.add(status)
    what = "kernels are" if count > 1 else "kernel is"
    _LOG.log(level, "inductor-plugin: %d %s not compiled: %s", count, what, reason)


def kernel_keys(job: CompileJob) -> list[str]:
    """Return the keys of a job's kernels, in order."""
    return (
        [job.key] if isinstance(job, TritonCompileJob) else [source.key for source in job.sources]
    )


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Return the memory still available: the minimum for the machine and for our container."""
    free = [1 << 62]
    try:
        match = re.search(r"MemAvailable:\s*(\d+) kB", meminfo.read_text())
        if match is not None:
            free.append(int(match[1]) << 10)
        limit = (cgroup / "memory.max").read_text().strip()
        if limit.isdecimal():
            used = int((cgroup / "memory.current").read_text())
            cache = re.search(r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text(), re.M)
            free.append(int(limit) - used + (int(cache[1]) if cache is not None else 0))
    except OSError:
        _LOG.debug("no cgroup memory limit to be read")
    return min(free)
