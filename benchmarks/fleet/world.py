"""What is outside of the pipeline, simulated: the cache, compile workers, benchmark workers, their failures.

Each has the interface of the real one, takes simulated time, and counts.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
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
from inductor_plugin.worker.compile_pool import SETUP_S, kernel_keys
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
        compile_crash: A compiler dies half-way.
        compile_hang: A compiler hangs until its limit.
        measure_crash: A candidate kills the benchmark worker.
        node_lost: A node dies while it compiles; its job is done again elsewhere.
        restart_s: Seconds until the benchmark worker is there again.
    """

    compile_crash: float = 0.0
    compile_hang: float = 0.0
    measure_crash: float = 0.0
    node_lost: float = 0.0
    restart_s: float = 10.0


NONE = Failures()


@dataclass
class Spent:
    """What has been done so far.

    Attributes:
        compile_s: Seconds in which compile workers were busy, but for `given_up_s`.
        away_s: Seconds of workers whose node was lost, until it is missed and another one has taken its place.
        given_up_s: Seconds of copies of stragglers that were given up, since the other copy ended first.
        measure_s: Seconds in which GPUs were busy.
        jobs: Compile jobs.
        compiled: Kernels compiled, again after a failure included.
        measured: Candidates screened.
        lost: Failures, by kind.
        requests: Requests to the cache, by kind.
        alone_s: Seconds of the longest compile, were each kernel compiled alone and none failed, by the problem that needs it.
        finals_s: Seconds of a problem's finals, which follow all its compiles and screenings, by problem.
    """

    compile_s: float = 0.0
    away_s: float = 0.0
    given_up_s: float = 0.0
    measure_s: float = 0.0
    jobs: int = 0
    compiled: int = 0
    measured: int = 0
    lost: Counter[str] = field(default_factory=Counter[str])
    requests: Counter[str] = field(default_factory=Counter[str])
    alone_s: dict[str, float] = field(default_factory=dict[str, float])
    finals_s: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict[str, float](float)
    )

    def chain_s(self, times: Times) -> float:
        """Return the longest chain of steps that no schedule shortens.

        These are a worker's start, a problem's longest compile, one screening, and the problem's finals.
        """
        finals = self.finals_s
        chains = (took_s + finals.get(name, 0.0) for name, took_s in self.alone_s.items())
        return times.worker_s + min(times.measure_s) + max(chains, default=0.0)


@dataclass(frozen=True)
class World:
    """What simulated workers share.

    Attributes:
        clock: The clock.
        times: How long things take.
        failures: How often they fail.
        draw: The source of chance, but for what depends on a kernel.
        spent: What has been done.
        seed: Of all chance.
        tries: Jobs of a kernel that have begun.
    """

    clock: Clock
    times: Times
    failures: Failures
    draw: random.Random
    spent: Spent
    seed: int = 0
    tries: Counter[str] = field(default_factory=Counter[str])

    def chance(self, *names: object) -> random.Random:
        """Return a source of chance that depends on names alone: a kernel takes as long whoever compiles it, and in any order."""
        return random.Random("/".join(map(str, (self.seed, *names))))


class CancelledError(Exception):
    """A job was given up while a worker compiled it."""


def problem_of(name: str) -> str:
    """Return the problem in the name of a candidate: ``kernel-PROBLEM-NUMBER`` or ``library-PROBLEM``."""
    return name.split("-")[1]


def _path(name: str) -> Path:
    return NOWHERE / name


def _is_equal(name: str, file: Path) -> bool:
    del name, file
    return True


class SimulatedLocks:
    """Locks of a cache that all processes share; none is waited for. Counts requests."""

    def __init__(self, clock: Clock, spent: Spent, touch_s: float = TOUCH_S) -> None:
        """Lock nothing yet; what is held is touched every ``touch_s`` simulated seconds, and counted as if once in `TOUCH_S`."""
        self._clock, self._requests = clock, spent.requests
        self._each = round(touch_s / TOUCH_S)
        self._locked: dict[str, float] = {}
        self.layout = SimpleNamespace(lock=_path)

    def lock_kernel(self, digest: str, timeout_s: float) -> AbstractContextManager[None]:
        """Return a lock."""
        del timeout_s
        return self._lock(digest)

    @contextmanager
    def _lock(self, digest: str) -> Generator[None]:
        self._requests["lock"] += 1
        if digest in self._locked:
            raise CacheError(f"{digest} is locked by another process")
        self._locked[digest] = self._clock.now
        try:
            yield
        finally:
            # Most builds end between two simulated touches: the product touches meanwhile.
            left_s = self._clock.now - self._locked.pop(digest)
            self._requests["touch a lock"] += min(int(left_s / TOUCH_S), self._each - 1)

    def touch(self, path: Path) -> None:
        """Count a sign of life, and those of the product since the one before."""
        if path.name in self._locked:  # else it is measured without the lock
            self._locked[path.name] = self._clock.now
        self._requests["touch a lock"] += self._each


class SimulatedStore(SimulatedLocks):
    """A cache in memory that all processes share; each kernel is one problem's.

    Attributes:
        problems: The locks of problems: they are touched at news, once a second at most, and each time is counted.
    """

    def __init__(self, clock: Clock, spent: Spent, touch_s: float = TOUCH_S) -> None:
        """Begin empty; ``touch_s`` as of `SimulatedLocks`, for locks of kernels."""
        super().__init__(clock, spent, touch_s)
        self._kernels: dict[str, Any] = {}
        self.problems = SimulatedLocks(clock, spent)

    def kernel(self, digest: str) -> Any:
        """Return a kernel, or None."""
        self._requests["look up a kernel"] += 1
        return self._kernels.get(digest)

    def put_kernel(self, key: KernelKey, files: Mapping[str, Any], resources: object) -> Any:
        """Keep a kernel."""
        del resources
        self._requests["write a kernel"] += 1
        entry = SimpleNamespace(digest=key.digest, files=tuple(files), resources=None, path=_path)
        entry.holds = _is_equal
        self._kernels[key.digest] = entry
        return entry

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
        self._given_up = world.clock.threading().Event()

    @property
    def alive(self) -> bool:
        """True if it runs."""
        return self._runs

    def attempt(self, job: CompileJob, setup_s: float, limit: EventHandler) -> Any:
        """Compile, or fail.

        Raises:
            CancelledError: `cancel` was called.
        """
        assert setup_s <= SETUP_S
        world, key = self._world, kernel_keys(job)[0]
        if not self._runs:
            self._runs = True
            world.clock.sleep(world.times.worker_s)
        limit_s = limit(Event("start"))
        assert limit_s is not None
        kernels = 1 if isinstance(job, TritonCompileJob) else len(job.sources)
        took_s = self._takes_s(job)
        world.spent.jobs += 1
        world.tries[key] += 1
        luck = world.chance(key, "luck", world.tries[key]).random()
        if luck < world.failures.compile_crash:
            return self._fails("crashed", took_s * world.chance(key, "crash").random())
        if luck < world.failures.compile_crash + world.failures.compile_hang or took_s > limit_s:
            return self._fails("hung", limit_s)
        self._busy(took_s)
        world.spent.compiled += kernels
        library = str(NOWHERE / "unit.so") if isinstance(job, CppCompileJob) else None
        return [
            Compiled(key, "ok", library=library, symbol="kernel", elapsed_s=took_s / kernels)
            for key in kernel_keys(job)
        ]

    def begin(self) -> None:
        """Take another job; what was given up before is over."""
        self._given_up.clear()

    def cancel(self) -> None:
        """End what it compiles, and the process with it."""
        self._given_up.set()

    def lose(self, after_s: float) -> None:
        """Die with its node after a while.

        Raises:
            CancelledError: `cancel` was called.
        """
        self._runs = False
        self._busy(after_s)

    def close(self) -> None:
        """End it."""
        self._runs = False

    def _takes_s(self, job: CompileJob) -> float:
        """Return how long a job takes, and note how long each of its kernels would take alone."""
        world, times, longest = self._world, self._world.times, self._world.spent.alone_s
        kinds = times.triton_s if isinstance(job, TritonCompileJob) else times.cutlass_s
        alone_s = [world.chance(key).choice(kinds) for key in kernel_keys(job)]
        for name, seconds in zip(_names(job), alone_s, strict=True):
            problem = problem_of(name)
            longest[problem] = max(longest.get(problem, 0.0), seconds)
        return times.batch_s(alone_s)

    def _fails(self, status: str, after_s: float) -> JobFailed:
        self._busy(after_s)
        self._runs = False
        self._world.spent.lost[f"compiler {status}"] += 1
        return JobFailed("crashed" if status == "crashed" else "hung", f"simulated: {status}")

    def _busy(self, seconds: float) -> None:
        spent, started = self._world.spent, self._world.clock.now
        given_up = self._given_up.wait(timeout=seconds)
        took_s = self._world.clock.now - started
        if given_up:
            spent.given_up_s += took_s
            self._runs = False
            raise CancelledError
        spent.compile_s += took_s


def _names(job: CompileJob) -> list[str]:
    """Return the names of a job's kernels, as `simulation` gives them."""
    if isinstance(job, TritonCompileJob):
        return [job.kernel_name]
    return [source.source.removeprefix("// ") for source in job.sources]


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
        problem = problem_of(job.candidates[0].candidate_id)
        self._world.spent.finals_s[problem] += sum(self._measure() for _ in job.candidates)
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
