"""What is outside of the pipeline, simulated: the cache, compile workers, benchmark workers, their failures.

Each has the interface of the real one, takes simulated time, and counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.fleet.clock import Clock
from benchmarks.fleet.times import Times
from inductor_plugin.cache import KernelKey
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.holder import TOUCH_S
from inductor_plugin.worker.compile_pool import SETUP_S
from inductor_plugin.worker.jobs import (
    Compiled,
    CompileJob,
    CppCompileJob,
    Event,
    FinalJob,
    JobFailed,
    Outcome,
    ScreenJob,
    TritonCompileJob,
)
from inductor_plugin.worker.process import EventHandler

NOWHERE = Path("/nonexistent/fleet")


@dataclass(frozen=True)
class Failures:
    """How often something fails, as a share of jobs.

    Attributes:
        compile_crash: A compiler, or the node that it runs on, dies half-way.
        compile_hang: A compiler hangs until its limit.
        measure_crash: A candidate kills the benchmark worker.
        restart_s: Seconds until the benchmark worker is there again.
    """

    compile_crash: float = 0.0
    compile_hang: float = 0.0
    measure_crash: float = 0.0
    restart_s: float = 10.0


NONE = Failures()


@dataclass
class Spent:
    """What has been done so far.

    Attributes:
        compile_s: Seconds in which compile workers were busy.
        measure_s: Seconds in which GPUs were busy.
        longest_compile_s: The longest compile job.
        jobs: Compile jobs.
        compiled: Kernels compiled, again after a failure included.
        measured: Candidates screened.
        lost: Failures, by kind.
        requests: Requests to the store, by kind.
    """

    compile_s: float = 0.0
    measure_s: float = 0.0
    longest_compile_s: float = 0.0
    jobs: int = 0
    compiled: int = 0
    measured: int = 0
    lost: Counter[str] = field(default_factory=Counter[str])
    requests: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True)
class World:
    """What simulated workers share.

    Attributes:
        clock: The clock.
        times: How long things take.
        failures: How often they fail.
        draw: The source of chance.
        spent: What has been done.
    """

    clock: Clock
    times: Times
    failures: Failures
    draw: random.Random
    spent: Spent


def _path(name: str) -> Path:
    return NOWHERE / name


class SimulatedStore:
    """A cache in memory that all processes share; locks never wait. Counts requests."""

    def __init__(self, spent: Spent, touch_s: float = 1.0) -> None:
        """Begin empty; a lock is touched every ``touch_s`` simulated seconds, and counted once a second."""
        self._requests = spent.requests
        self._touches = round(touch_s / TOUCH_S)
        self._kernels: dict[str, Any] = {}
        self._locked: set[str] = set()
        self.layout = SimpleNamespace(lock=_path)

    def kernel(self, digest: str) -> Any:
        """Return a kernel, or None."""
        self._requests["look up a kernel"] += 1
        return self._kernels.get(digest)

    def put_kernel(self, key: KernelKey, files: Mapping[str, Any], resources: object) -> Any:
        """Keep a kernel."""
        del resources
        self._requests["write a kernel"] += 1
        entry = SimpleNamespace(digest=key.digest, files=tuple(files), resources=None, path=_path)
        self._kernels[key.digest] = entry
        return entry

    def lock_kernel(self, digest: str, timeout_s: float) -> AbstractContextManager[None]:
        """Return a lock."""
        del timeout_s
        return self._lock(digest)

    @contextmanager
    def _lock(self, digest: str) -> Generator[None]:
        self._requests["lock"] += 1
        if digest in self._locked:
            raise CacheError(f"{digest} is locked by another process")
        self._locked.add(digest)
        try:
            yield
        finally:
            self._locked.discard(digest)

    def touch(self, path: Path) -> None:
        """Count a sign of life."""
        del path
        self._requests["touch a lock"] += self._touches

    def look_up(self) -> None:
        """Count the lookup of a record."""
        self._requests["look up a record"] += 1

    def write(self) -> None:
        """Count the write of a record."""
        self._requests["write a record"] += 1


class SimulatedWorker:
    """The process of a compile worker, as `WorkerProcess`."""

    def __init__(self, world: World) -> None:
        """Not started yet."""
        self._world = world
        self._runs = False

    def attempt(self, job: CompileJob, setup_s: float, limit: EventHandler) -> Any:
        """Compile, or fail."""
        assert setup_s <= SETUP_S
        world, clock = self._world, self._world.clock
        if not self._runs:
            self._runs = True
            clock.sleep(world.times.worker_s)
        limit_s = limit(Event("start"))
        assert limit_s is not None
        kernels = 1 if isinstance(job, TritonCompileJob) else len(job.sources)
        took_s = self._takes_s(job, kernels)
        world.spent.jobs += 1
        luck = world.draw.random()
        if luck < world.failures.compile_crash:
            return self._fails("crashed", took_s * world.draw.random())
        if luck < world.failures.compile_crash + world.failures.compile_hang or took_s > limit_s:
            return self._fails("hung", limit_s)
        self._busy(took_s)
        world.spent.compiled += kernels
        keys = [job.key] if isinstance(job, TritonCompileJob) else [s.key for s in job.sources]
        library = str(NOWHERE / "unit.so") if isinstance(job, CppCompileJob) else None
        return [
            Compiled(key, "ok", library=library, symbol="kernel", elapsed_s=took_s / kernels)
            for key in keys
        ]

    def close(self) -> None:
        """End it."""
        self._runs = False

    def _takes_s(self, job: CompileJob, kernels: int) -> float:
        times, draw = self._world.times, self._world.draw
        if isinstance(job, TritonCompileJob):
            return draw.choice(times.triton_s)
        return times.batch_s(draw, kernels)

    def _fails(self, status: str, after_s: float) -> JobFailed:
        self._busy(after_s)
        self._runs = False
        self._world.spent.lost[f"compiler {status}"] += 1
        return JobFailed("crashed" if status == "crashed" else "hung", f"simulated: {status}")

    def _busy(self, seconds: float) -> None:
        spent = self._world.spent
        self._world.clock.sleep(seconds)
        spent.compile_s += seconds
        spent.longest_compile_s = max(spent.longest_compile_s, seconds)


class SimulatedBench:
    """A benchmark worker on a GPU of its own, as `BenchWorker`."""

    def __init__(self, world: World) -> None:
        """Measure nothing yet."""
        self._world = world

    def screen(self, job: ScreenJob) -> Outcome:
        """Measure a candidate, or lose the worker by it."""
        world, name = self._world, job.candidate.candidate_id
        seconds = self._measure()
        world.spent.measured += 1
        is_library = job.library is job.candidate
        if not is_library and world.draw.random() < world.failures.measure_crash:
            world.clock.sleep(world.failures.restart_s)
            world.spent.measure_s += world.failures.restart_s
            world.spent.lost["benchmark worker crashed"] += 1
            return Outcome(name, "crashed", "simulated: crashed", elapsed_s=seconds)
        middle_ms = 1.0 if is_library else world.draw.lognormvariate(0.3, 0.4)
        return Outcome(name, "ok", samples_ms=self._samples(middle_ms, 5), elapsed_s=seconds)

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        """Measure candidates in turns."""
        self._measure()
        return tuple(
            Outcome(each.candidate_id, "ok", samples_ms=self._samples(1.0, job.rounds))
            for each in job.candidates
        )

    def release(self) -> None:
        """Give memory back."""

    def _measure(self) -> float:
        seconds = self._world.draw.choice(self._world.times.measure_s)
        self._world.clock.sleep(seconds)
        self._world.spent.measure_s += seconds
        return seconds

    def _samples(self, middle_ms: float, count: int) -> tuple[float, ...]:
        return tuple(middle_ms * self._world.draw.uniform(0.98, 1.02) for _ in range(count))
