"""A problem in the pipeline: its candidates and their state."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from inductor_plugin.cache import KernelKey, Resources, digest_of
from inductor_plugin.cost.host import host_ms
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import DIRECTIONS, Attention, attention_of
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.tuning import budget, race
from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.candidate import CandidateId, Identified
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.ends import SizeEnd, with_ends
from inductor_plugin.worker.jobs import (
    OUT_OF_TIME,
    BenchCandidate,
    FinalJob,
    Outcome,
    Sampling,
    ScreenJob,
    TritonCompileJob,
)


@functools.lru_cache(maxsize=1024)
def problem_digest(problem: Problem) -> str:
    """Return the digest that names a problem's record."""
    return digest_of(problem.fields())


@dataclass(frozen=True)
class CppBuild:
    """The build of one C++ or CUDA candidate.

    Attributes:
        key: Key of the library in the cache.
        source: The translation unit and its symbol.
        command: The compiler call, with ``{source}`` and ``{output}``.
        language: ``cpp`` or ``cuda``; the suffix of the source in the cache.
        memory_bytes: Memory its compiler needs; 0 for that of a C++ compiler.
    """

    key: KernelKey
    source: CppSource
    command: tuple[str, ...]
    language: Literal["cpp", "cuda"] = "cpp"
    memory_bytes: int = 0


@dataclass(eq=False)
class TaskCandidate(Identified):
    """A candidate of a task.

    Attributes:
        identity: The candidate's identity.
        build: How to compile it; None if there is nothing to compile.
        bench: Returns the job argument once compiled (library path, symbol); None if its operands
            cannot be sent to a worker.
        in_process: Runs the candidate in this process, where its operands cannot be sent to a worker.
        judge: Returns from the compiled kernel's resources why it need not be measured, None if it
            must be; applied after the check of every kernel (`resources.why_not`).
        least_ms: Milliseconds it takes at least, from earlier measurements; it waits for the library
            kernels, and is not measured if they took less (`race.beaten`). 0: not known.
        outcome: Its outcome, once there is one.
        compile_s: Seconds its compilation took.
        samples_ms: Its samples: those of the calm turns of its finals, of all turns if none was calm, those of the screening
            if it took part in none.
        disturbed: True if other work on the machine has prolonged all of them, or all but too few turns (`race.too_few_calm`).
        rounds: Turns of the finals it took part in; 0 if it was only screened.
        calm_rounds: Those of them that other work has not disturbed.
        ready: True once it can be measured.
        candidate: The job argument, once it is ready; None if it cannot be sent to a worker.
        conditions: How the device was when it was measured last, for its record.
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
    disturbed: bool = False
    rounds: int = 0
    calm_rounds: int = 0
    ready: bool = False
    candidate: BenchCandidate | None = None
    conditions: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def kernel(self) -> str | None:
        """Digest of the kernel in the cache; None if it has none there."""
        key = self.build.kernel if isinstance(self.build, TritonCompileJob) else None
        key = self.build.key if isinstance(self.build, CppBuild) else key
        return key.digest if key else None

    def screened(self, outcome: Outcome) -> None:
        """Take the samples of the screening."""
        self.samples_ms, self.disturbed = outcome.samples_ms, outcome.disturbed
        self.conditions = dict(outcome.conditions)

    def raced(self, outcome: Outcome) -> None:
        """Add the turns of a leg of the finals: the calm ones of all legs count, disturbed ones while no turn was calm.

        Samples of the screening, which are taken apart from those of others, count no more.
        """
        if not outcome.samples_ms:
            return
        calm = 0 if outcome.disturbed else len(outcome.samples_ms)
        if calm or not self.calm_rounds:
            afresh = not self.rounds or (calm and not self.calm_rounds)
            self.samples_ms = outcome.samples_ms if afresh else self.samples_ms + outcome.samples_ms
        self.calm_rounds += calm
        self.rounds += outcome.turns or len(outcome.samples_ms)
        self.conditions = dict(outcome.conditions) or self.conditions
        self.disturbed = race.too_few_calm(self.calm_rounds, self.rounds)

    @property
    def is_built(self) -> bool:
        """Whether its kernel is in the cache, as it also is if it does not fit the GPU."""
        return self.ready or (self.outcome is not None and self.outcome.status == "pruned")

    @property
    def alive(self) -> bool:
        """True if it ran with correct results."""
        return self.outcome is not None and self.outcome.status == "ok"


@dataclass(eq=False)
class Task:
    """One problem to tune.

    Attributes:
        problem: The problem.
        digest: Its digest, which names its record.
        entries: The candidates to measure, the library kernels first.
        check: How results are checked; None skips the check.
        budget: The graph's tuning budget; None for no limit.
        exclusive: True if measuring and compiling disturb each other (CPU devices).
        measured: False if the candidates are only to be compiled (``policy=build``).
        refresh: Drops candidates that another process has measured meanwhile; returns how many.
        finish: Called once, from the benchmark thread, when the race is over.
        done: Set when the race is over, or will not be run.
        legs: Number of completed legs of the finals.
        racing: The candidates in the finals; None before them.
        error: Why there is no result; empty if there is one.
        retry_at: ``time.monotonic()`` before which the problem's lock is not tried again.
        steps_left: Candidates the progress bar still waits for.
        ends: The ends of a dynamic problem's size class, at which candidates are checked, too.
        spent: What was done for it: kernels, measurements, failures, seconds.
        news: Set when measurements have come from a remote since the task was made.
        awaits_news: True if some may still come.
        undecided: Candidates that the end of the budget kept from the turns of the finals that a decision needs.
        library_may_win: False if the user has excluded the library kernels, so that they are no reason to drop a candidate.
    """

    problem: Problem
    digest: str
    entries: list[TaskCandidate]
    check: NumberCheck | None
    budget: Budget | None
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
    ends: tuple[SizeEnd, ...] = ()
    spent: Counters = field(default_factory=Counters)
    news: threading.Event = field(default_factory=threading.Event)
    awaits_news: bool = False
    undecided: frozenset[str] = frozenset()
    library_may_win: bool = True

    @property
    def late(self) -> bool:
        """True if the budget has ended."""
        return self.budget is not None and self.budget.over

    @property
    def has_news(self) -> bool:
        """True if measurements have come from a remote, and it is not too late to use them."""
        return self.news.is_set() and self.racing is None

    @property
    def disturbed(self) -> frozenset[str]:
        """The candidates whose samples other work has disturbed."""
        return frozenset(e.candidate_id for e in self.entries if e.disturbed)

    @property
    def builds(self) -> tuple[int, int]:
        """Counts of the candidates that are compiled, and of those that could not be; candidates that were not tried are in neither."""
        candidates = [e for e in self.entries if e.build is not None]
        built = sum(e.is_built for e in candidates)
        tried = [
            e.outcome is not None and e.outcome.status != "skipped"
            for e in candidates
            if not e.is_built
        ]
        return built, sum(tried)

    @property
    def hopeless(self) -> bool:
        """True if the budget left only library kernels, so that there is nothing to decide."""
        rivals = [e for e in self.entries if not e.library]
        return bool(rivals) and all(
            e.outcome is not None and e.outcome.reason == OUT_OF_TIME for e in rivals
        )

    @property
    def precedence(self) -> tuple[bool, float]:
        """Sort key of tasks with a budget: all are screened before the first final, the heaviest first."""
        if self.budget is None:
            return False, 0.0
        return not self.unscreened(), -budget.weight(self.problem)

    @property
    def attention(self) -> Attention | None:
        """The attention that is computed, if its arguments name the operands."""
        names_operands = any(name == "operands" for name, _ in self.problem.arguments)
        return (
            attention_of(self.problem) if names_operands and self.problem.op in DIRECTIONS else None
        )

    @property
    def reference(self) -> TaskCandidate | None:
        """The library kernel whose numbers are the reference: the first that runs in the worker.

        A kernel that runs only in this process is no reference for results, but still one for races.
        """
        usable = [e for e in self.entries if e.library and (e.outcome is None or e.alive)]
        return min(usable, key=lambda e: e.bench is None, default=None)

    def racers(self) -> tuple[str, ...]:
        """Return the candidates of the next leg of the finals; empty when no candidate can catch up any more."""
        samples_ms = {
            e.candidate_id: e.samples_ms for e in self.entries if e.alive and e.bench is not None
        }
        launches = {e.candidate_id: host_ms(e.conditions) for e in self.entries}
        library = self.reference
        name = library.candidate_id if library and library.candidate_id in samples_ms else None
        if self.racing is None:
            return race.leaders(samples_ms, name, launches)
        if not self.legs or not self.racing:
            return self.racing
        racing = {n: samples_ms[n] for n in self.racing if n in samples_ms}
        return race.contenders(racing, name, launches, self.disturbed)

    @property
    def lead_ms(self) -> float:
        """Milliseconds that a sample of a screening may take for the finals.

        Infinite where the launch counts, too (a GPU), and where results are compared at the ends of a size class.
        """
        if not self.exclusive or self.ends:
            return math.inf
        rivals = (e for e in self.entries if e.alive and (self.library_may_win or not e.library))
        return race.lead_ms(e.samples_ms for e in rivals)

    def cut_short(self) -> None:
        """End the race with the budget: candidates that were not measured are skipped, and those that lack turns are marked."""
        for candidate in self.unscreened():
            candidate.outcome = Outcome(candidate.candidate_id, "skipped", OUT_OF_TIME)
        racers = self.racers() if self.measured else ()
        few = (name for name in racers if self.entry(name).rounds < race.CALM_TURNS)
        self.undecided = frozenset(few)

    def entry(self, candidate_id: str) -> TaskCandidate:
        """Return a candidate by its id.

        Raises:
            KeyError: It is not part of this task.
        """
        for candidate in self.entries:
            if candidate.candidate_id == candidate_id:
                return candidate
        raise KeyError(candidate_id)

    def why_not_built(self) -> str | None:
        """Return why the kernel of a candidate is not in the cache, None if all are; the task has ended."""
        missing = next((entry for entry in self.entries if not entry.is_built), None)
        if missing is None:
            return None
        outcome = missing.outcome
        return f"{outcome.status} ({outcome.reason})" if outcome is not None else self.error

    def unscreened(self) -> Sequence[TaskCandidate]:
        """Return the candidates that have not been measured at all."""
        return [e for e in self.entries if e.outcome is None]

    def screenable(self) -> Sequence[TaskCandidate]:
        """Return the candidates that can be measured now, or skipped where nothing is measured."""
        ready = [e for e in self.unscreened() if e.ready]
        if self.measured and any(e.library for e in self.unscreened()):
            return [e for e in ready if not e.least_ms]
        return ready

    def screening(
        self, candidate: TaskCandidate, reference: TaskCandidate | None, sampling: Sampling
    ) -> ScreenJob:
        """Return the job that measures a candidate alone."""
        job = ScreenJob(
            problem_id=self.digest,
            library=reference.candidate if reference is not None else None,
            candidate=_argument(candidate),
            sampling=sampling,
            check=self.check,
            attention=self.attention,
            lead_ms=self.lead_ms,
        )
        return with_ends(job, self.ends)

    def final(
        self,
        finalists: Sequence[TaskCandidate],
        reference: TaskCandidate | None,
        sampling: Sampling,
        rounds: int,
    ) -> FinalJob:
        """Return the job that measures candidates in turns."""
        return FinalJob(
            problem_id=self.digest,
            candidates=tuple(_argument(each) for each in finalists),
            rounds=rounds,
            sampling=sampling,
            library=reference.candidate if reference is not None else None,
            check=self.check,
            attention=self.attention,
        )


class Agenda:
    """The tasks of a pipeline, those that only wait for their kernels apart. Its caller locks it.

    A pipeline looks for its next task after each compile and 20 times a second. Of 5,000 problems of 20 kernels most wait
    for a compiler, and looking at all of them takes 10 ms.
    """

    def __init__(self) -> None:
        """Begin without tasks."""
        self._places: dict[Task, int] = {}
        self._awake: set[Task] = set()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many tasks there are."""
        return len(self._places)

    def __iter__(self) -> Iterator[Task]:
        """Yield all tasks, in the order in which they came."""
        return iter(list(self._places))

    def add(self, task: Task) -> None:
        """Add a task, which may have something to do."""
        self._places[task] = next(self._numbers)
        self._awake.add(task)

    def remove(self, task: Task) -> None:
        """Forget a task, if it is there."""
        self._places.pop(task, None)
        self._awake.discard(task)

    def wake(self, task: Task) -> None:
        """Mark a task as one that may have something to do: one of its kernels is ready, or has failed."""
        if task in self._places:
            self._awake.add(task)

    def rest(self, task: Task) -> None:
        """Pass a task over until `wake`, unless time or a remote may give it something to do."""
        if task.budget is None and not task.awaits_news:
            self._awake.discard(task)

    def awake(self) -> list[Task]:
        """Return the tasks that may have something to do, by their precedence, then in the order in which they came."""
        return sorted(self._awake, key=lambda task: (task.precedence, self._places[task]))


def _argument(candidate: TaskCandidate) -> BenchCandidate:
    """Return the job argument of a candidate that is ready and can be sent to a worker."""
    if candidate.candidate is None:
        raise ValueError(f"{candidate.candidate_id} is measured before it is ready")
    return candidate.candidate
