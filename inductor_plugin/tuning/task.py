"""One problem on its way through the pipeline: its candidates and what is known of each so far."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from inductor_plugin.cache import KernelKey, Resources, digest_of
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import DIRECTIONS, Attention, attention_of
from inductor_plugin.tuning.candidate import CandidateId, Identified
from inductor_plugin.worker.jobs import BenchCandidate, Outcome, TritonCompileJob


@functools.lru_cache(maxsize=1024)
def problem_digest(problem: Problem) -> str:
    """Return the digest that names a problem's record."""
    return digest_of(problem.fields())


@dataclass(frozen=True)
class CppBuild:
    """What it takes to build one C++ or CUDA candidate.

    Attributes:
        key: Under which the cache keeps the library.
        source: The translation unit and its symbol.
        command: The compiler call, with ``{source}`` and ``{output}``.
        language: ``cpp`` or ``cuda``; ends the name of the source in the cache.
        memory_bytes: What its compiler needs; 0 for what a C++ compiler needs.
    """

    key: KernelKey
    source: CppSource
    command: tuple[str, ...]
    language: Literal["cpp", "cuda"] = "cpp"
    memory_bytes: int = 0


@dataclass(eq=False)
class TaskCandidate(Identified):
    """One candidate of a task.

    Attributes:
        identity: The candidate's identity.
        build: How to compile it; None if there is nothing to compile.
        bench: Gives the job argument once compiled (library path, symbol); None if its operands
            cannot travel to a worker.
        in_process: Runs the candidate in this process, where its operands cannot be sent to a worker.
        judge: Tells from what the compiled kernel takes why it need not be measured, None if it
            must; asked besides what every kernel is asked (`resources.misfit`).
        least_ms: Milliseconds it takes at least, from what was measured before; it waits for the
            library kernels, and is not measured if they took less (`race.beaten`). 0: not known.
        outcome: How it fared, once known.
        compile_s: Seconds its compilation took.
        samples_ms: Its samples; those of the final rounds replace those of the screening.
        rounds: Interleaved turns it took part in; 0 if it was only screened.
        ready: True once it can be measured.
        candidate: The job argument, once it is ready and travels.
    """

    identity: CandidateId
    build: CppBuild | TritonCompileJob | None = None
    bench: Callable[[str, str], BenchCandidate] | None = None
    in_process: Callable[[], object] | None = None
    judge: Callable[[Resources], str | None] | None = None
    least_ms: float = 0.0
    outcome: Outcome | None = None
    compile_s: float | None = None
    samples_ms: tuple[float, ...] = ()
    rounds: int = 0
    ready: bool = False
    candidate: BenchCandidate | None = None

    @property
    def kernel(self) -> str | None:
        """Digest of the kernel in the cache; None if it has none there."""
        key = self.build.kernel if isinstance(self.build, TritonCompileJob) else None
        key = self.build.key if isinstance(self.build, CppBuild) else key
        return key.digest if key else None

    @property
    def alive(self) -> bool:
        """True if it ran and is right."""
        return self.outcome is not None and self.outcome.status == "ok"


@dataclass(eq=False)
class Task:
    """One problem to tune.

    Attributes:
        problem: The problem.
        digest: Its digest, which names its record.
        entries: The candidates to measure, the library kernels first.
        tolerance: Largest accepted error; None leaves the numbers unchecked.
        deadline: ``time.monotonic()`` after which nothing more is started; None for no limit.
        exclusive: True if measuring and compiling disturb each other (CPU devices).
        measured: False if the candidates are only to be compiled (``policy=build``).
        refresh: Drops entries that another process has measured meanwhile; returns how many.
        finish: Called once, from the benchmark thread, when the race is over.
        done: Set when the race is over, or will not be run.
        legs: How many legs of the finals are over.
        racing: The candidates in the finals; None before them.
        error: Why there is no result; empty if there is one.
        retry_at: ``time.monotonic()`` before which the problem's lock is not tried again.
        steps_left: Candidates the progress bar still waits for.
    """

    problem: Problem
    digest: str
    entries: list[TaskCandidate]
    tolerance: float | None
    deadline: float | None
    exclusive: bool
    refresh: Callable[[Task], int]
    finish: Callable[[Task], None]
    measured: bool = True
    done: threading.Event = field(default_factory=threading.Event)
    legs: int = 0
    racing: tuple[str, ...] | None = None
    error: str = ""
    retry_at: float = 0.0
    steps_left: int = 0

    @property
    def late(self) -> bool:
        """True if its time is over."""
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def attention(self) -> Attention | None:
        """What is computed, if it is an attention whose library kernel tells its scalars."""
        named = any(name == "operands" for name, _ in self.problem.arguments)
        return attention_of(self.problem) if named and self.problem.op in DIRECTIONS else None

    @property
    def reference(self) -> TaskCandidate | None:
        """The library kernel whose numbers are the reference: the first that runs in the worker.

        One that runs in this process alone is no reference, but better than none for the races.
        """
        usable = [e for e in self.entries if e.library and (e.outcome is None or e.alive)]
        return min(usable, key=lambda e: e.bench is None, default=None)

    def entry(self, candidate_id: str) -> TaskCandidate:
        """Return the entry of a candidate.

        Raises:
            KeyError: It is not part of this task.
        """
        for entry in self.entries:
            if entry.candidate_id == candidate_id:
                return entry
        raise KeyError(candidate_id)

    def unscreened(self) -> Sequence[TaskCandidate]:
        """Return the candidates that have not been measured at all."""
        return [e for e in self.entries if e.outcome is None]

    def screenable(self) -> Sequence[TaskCandidate]:
        """Return what can be measured now, or passed over where nothing is measured."""
        ready = [e for e in self.unscreened() if e.ready]
        if self.measured and any(e.library for e in self.unscreened()):
            return [e for e in ready if not e.least_ms]
        return ready
