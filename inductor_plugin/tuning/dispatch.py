"""Hands compile jobs to the workers, waits for each with a limit, and draws what they took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from inductor_plugin.counters import Counters
from inductor_plugin.tuning.trace import Trace
from inductor_plugin.worker.jobs import Compiled, CompileJob


class Pool(Protocol):
    """The compile workers."""

    workers: int

    def submit(
        self,
        job: CompileJob,
        done: Callable[[list[Compiled]], None],
        memory_bytes: int | None = None,
    ) -> None:
        """Compile in a worker; ``done`` gets one result per kernel."""
        ...


class Dispatch:
    """Compiles jobs of any thread, one call a job."""

    def __init__(self, pool: Pool, counters: Counters, trace: Trace) -> None:
        """Compile with ``pool``; seconds go to ``counters`` and spans to ``trace``."""
        self._pool = pool
        self._counters = counters
        self._trace = trace
        self._guard = threading.Lock()
        self._lanes_ns: list[int] = []

    def compile(
        self, job: CompileJob, names: Sequence[str], memory_bytes: int = 0
    ) -> list[Compiled]:
        """Compile in a worker and wait for it.

        Args:
            job: The job.
            names: What people call its kernels.
            memory_bytes: What it needs; 0 for what the pool takes for usual.

        Returns:
            One result per kernel; nothing if the workers did not come to it in time.
        """
        finished = threading.Event()
        results: list[Compiled] = []

        def done(compiled: list[Compiled]) -> None:
            results.extend(compiled)
            finished.set()

        self._pool.submit(job, done, memory_bytes or None)
        # Each wait has a limit: the job's own, once for the batch and once kernel by kernel, and
        # the time it may queue behind others.
        if not finished.wait(timeout=job.timeout_s * (2 + len(names)) * 4):
            return []
        # Counted is what the compiler took, not what the job waited for a worker.
        spent_s = sum(one.elapsed_s for one in results)
        ended = time.perf_counter_ns()
        started = ended - int(spent_s * 1e9)
        self._trace.add(self._lane(started, ended), " + ".join(names), started, ended)
        self._counters.add(compile_s=spent_s)
        return results

    def _lane(self, started_ns: int, ended_ns: int) -> str:
        """Return the first track of the trace that is free for a span, as if it were a worker."""
        with self._guard:
            free = (i for i, until in enumerate(self._lanes_ns) if until <= started_ns)
            lane = next(free, len(self._lanes_ns))
            self._lanes_ns[lane : lane + 1] = [ended_ns]
        return f"compile {lane + 1}"


def unanswered(key: str) -> Compiled:
    """Return what is said of a kernel the workers did not come to: that is not its fault."""
    return Compiled(key, "skipped", "the compile workers did not come to it in time")
