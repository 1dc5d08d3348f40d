"""Fakes of the benchmark worker, the builder, the compile workers and the measurement in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inductor_plugin.cache import Resources
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.worker.jobs import (
    Compiled,
    CompileJob,
    CppCompileJob,
    FinalJob,
    Outcome,
    Sampling,
    ScreenJob,
    Status,
)
from tests.support.fakes.waiting import LIMIT_S


@dataclass
class FakeBench:
    """A benchmark worker with preset times of candidates.

    Attributes:
        screen_ms: Milliseconds per call in screening, by candidate; 1.0 for others.
        final_ms: The same in the finals; as in screening for others.
        host_ms: Milliseconds the host takes to launch a candidate; not known for others.
        status: Status in screening, by candidate; ``ok`` for others.
        final_status: The same in the finals.
        final_reason: The reasons then.
        calm_turns: Turns of each leg of the finals that nothing disturbs; None for all.
        without_device: True skips everything, since nothing can be measured.
        released: How often it was to give memory back.
        error: Raised by every job.
        during: Called while a job runs, with the candidates that are measured.
        screened: Candidates that were screened, in order.
        finals: Candidates of each leg of the finals.
        references: The library kernel each candidate was compared with.
    """

    screen_ms: dict[str, float] = field(default_factory=dict[str, float])
    final_ms: dict[str, float] = field(default_factory=dict[str, float])
    host_ms: dict[str, float] = field(default_factory=dict[str, float])
    status: dict[str, Status] = field(default_factory=dict[str, Status])
    final_status: dict[str, Status] = field(default_factory=dict[str, Status])
    final_reason: dict[str, str] = field(default_factory=dict[str, str])
    calm_turns: int | None = None
    without_device: bool = False
    released: int = 0
    error: Exception | None = None
    during: Callable[[str], None] | None = None
    screened: list[str] = field(default_factory=list[str])
    finals: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    references: list[str | None] = field(default_factory=list["str | None"])

    def screen(self, job: ScreenJob) -> Outcome:
        name = job.candidate.candidate_id
        self.screened.append(name)
        self.references.append(job.library.candidate_id if job.library else None)
        self._run(name)
        if self.without_device:
            return Outcome(name, "skipped", "no memory", no_device=True)
        status = self.status.get(name, "ok")
        if status != "ok":
            return Outcome(name, status, f"{name} is {status}", elapsed_s=0.5)
        samples = spread(self.screen_ms.get(name, 1.0), 5)
        host: tuple[tuple[str, object], ...] = tuple(
            ("host_ms", ms) for own, ms in self.host_ms.items() if own == name
        )
        return Outcome(name, "ok", samples_ms=samples, error=1e-6, elapsed_s=0.25, conditions=host)

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        names = tuple(candidate.candidate_id for candidate in job.candidates)
        self.finals.append(names)
        self._run("+".join(names))
        return tuple(self._final(name, job.rounds) for name in names)

    def release(self) -> None:
        self.released += 1

    def _final(self, name: str, rounds: int) -> Outcome:
        status = self.final_status.get(name, "ok")
        if status != "ok":
            return Outcome(name, status, self.final_reason.get(name, f"{name} is {status}"))
        took_ms = self.final_ms.get(name, self.screen_ms.get(name, 1.0))
        samples_ms = spread(took_ms, rounds)
        calm_ms = samples_ms[: self.calm_turns]
        return Outcome(
            name, "ok", samples_ms=calm_ms or samples_ms, disturbed=not calm_ms, turns=rounds
        )

    def _run(self, name: str) -> None:
        if self.during is not None:
            self.during(name)
        if self.error is not None:
            raise self.error


def spread(middle_ms: float, count: int) -> tuple[float, ...]:
    """Return samples around a median, within half a percent of it."""
    return tuple(middle_ms * (1 + 0.01 * (i / (count - 1) - 0.5)) for i in range(count))


@dataclass
class FakeBuild:
    """A builder that builds when a test calls `finish`.

    Attributes:
        queued: Candidates that wait to be built.
        flushed: How often held-back candidates were started.
        problems: How many problems were submitted completely.
        compiling: True makes it busy.
        quiet_blocks: How often a quiet block was entered.
    """

    queued: dict[str, tuple[TaskCandidate, Callable[[], None]]] = field(
        default_factory=dict[str, "tuple[TaskCandidate, Callable[[], None]]"]
    )
    flushed: int = 0
    problems: int = 0
    compiling: bool = False
    quiet_blocks: int = 0
    error: Exception | None = None

    def add(self, task: Task, entry: TaskCandidate, done: Callable[[], None]) -> None:
        if self.error is not None:
            raise self.error
        self.queued[entry.candidate_id] = (entry, done)

    def added(self) -> None:
        self.problems += 1

    def flush(self) -> None:
        self.flushed += 1

    def busy(self) -> bool:
        return self.compiling

    @contextmanager
    def quiet(self) -> Generator[bool]:
        self.quiet_blocks += 1
        yield not self.compiling

    def finish(self, name: str, status: Status = "ok") -> None:
        """Let one candidate be built, or fail."""
        entry, done = self.queued.pop(name)
        if status == "ok":
            assert entry.bench is not None
            entry.candidate = entry.bench("library", "symbol")
            entry.ready = True
        else:
            entry.outcome = Outcome(name, status, f"{name} is {status}")
        done()


class FakePool:
    """Compile workers without compilers: each job takes a preset time, or waits for a gate.

    Attributes:
        jobs: The jobs that were submitted.
        memory: Bytes of memory stated for each of them.
        ranks: Rank of each of them.
        limits: Until when each of them may run, in the order of submission.
        untils: What says so.
        gate: Closed, it holds every job back.
        status: Status of kernels that do not compile, by a word in their source.
        resources: Resources of kernels, by a word in their source.
        together: Whether kernels of a job share a library.
        running: Jobs that are being compiled.
        error: Raised when a job is submitted.
    """

    def __init__(self, workers: int = 2, compile_s: float = 0.0) -> None:
        self.workers = workers
        self.compile_s = compile_s
        self.jobs: list[CompileJob] = []
        self.memory: list[int | None] = []
        self.ranks: list[float] = []
        self.limits: list[float] = []
        self.untils: list[Callable[[], float]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.status: dict[str, Status] = {}
        self.resources: dict[str, Resources] = {}
        self.answers = True
        self.together = False
        self.running = 0
        self.error: Exception | None = None

    def submit(
        self,
        job: CompileJob,
        done: Callable[[list[Compiled]], None],
        memory_bytes: int | None = None,
        rank: float = 0.0,
        until: Callable[[], float] | None = None,
    ) -> None:
        self.ranks.append(rank)
        if until is not None:
            self.limits.append(until())
            self.untils.append(until)
        if self.error is not None:
            raise self.error
        self.jobs.append(job)
        self.memory.append(memory_bytes)
        if self.answers:
            threading.Thread(target=self._compile, args=(job, done), daemon=True).start()

    def _compile(self, job: CompileJob, done: Callable[[list[Compiled]], None]) -> None:
        self.running += 1
        self.gate.wait(LIMIT_S)
        time.sleep(self.compile_s)
        self.running -= 1
        if isinstance(job, CppCompileJob):
            done([self._cpp(job, source) for source in job.sources])
        else:
            status = self._fares(job.key)
            folder = dict(job.environment).get("TRITON_CACHE_DIR")
            if folder and status == "ok":
                own = Path(folder) / "HASH"
                own.mkdir(parents=True, exist_ok=True)
                (own / f"{job.kernel_name}.cubin").write_text(job.key)
            resources = self._takes(job.key)
            done([Compiled(job.key, status, elapsed_s=self.compile_s, resources=resources)])

    def _cpp(self, job: CppCompileJob, source: CppSource) -> Compiled:
        status = self._fares(source.source)
        share_s = self.compile_s / len(job.sources)
        if status != "ok":
            return Compiled(source.key, status, "error: no such thing", elapsed_s=share_s)
        parts = job.sources if self.together else (source,)
        library = Path(job.workdir) / f"{parts[0].key}.so"
        library.write_text("\n".join(part.source for part in parts))
        resources = self._takes(source.source)
        return Compiled(
            source.key, "ok", library=str(library), elapsed_s=share_s, resources=resources
        )

    def _takes(self, text: str) -> Resources | None:
        return next((resources for word, resources in self.resources.items() if word in text), None)

    def _fares(self, text: str) -> Status:
        statuses: list[Status] = [how for word, how in self.status.items() if word in text]
        return statuses[0] if statuses else "ok"


class FakeMeasurement:
    """Returns preset results without a process; replaces `measure_in_process`."""

    def __init__(self, status: Status = "ok", took_ms: float = 1.0) -> None:
        self.status: Status = status
        self.took_ms = took_ms
        self.measured: list[str] = []

    def __call__(
        self, run: Callable[[], object], candidate_id: str, sampling: Sampling, timeout_s: float
    ) -> Outcome:
        self.measured.append(candidate_id)
        samples = spread(self.took_ms, 5) if self.status == "ok" else ()
        return Outcome(candidate_id, self.status, samples_ms=samples)
