"""Ranks of one job, simulated: the product's `RankShare` with its thread, on one store that counts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from benchmarks.fleet.clock import Clock
from benchmarks.fleet.times import Times
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks import settlement, share
from inductor_plugin.tuning.ranks.board import Board
from inductor_plugin.tuning.ranks.job import Job as RankJob
from inductor_plugin.tuning.ranks.pulse import beat
from inductor_plugin.tuning.ranks.share import RankShare
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.ticket import TuningTicket

RANKS = "ranks"
"""Name of the rows of jobs."""
_GROUP = "group"
_LIBRARY, _KERNEL = "library", "kernel"
_OPERAND = Operand((64, 64), (64, 1), "bfloat16", "cuda")
_PROBLEM = Problem("mm", (_OPERAND, _OPERAND), _OPERAND)
_OFFERS: tuple[Any, ...] = (
    SimpleNamespace(candidate_id=_LIBRARY, library=True),
    SimpleNamespace(candidate_id=_KERNEL, library=False),
)
_CANDIDATES = 21
_LEGS = 3
TIMEOUT_S = 60.0
"""The option ``ranks_timeout_s``."""
_HELD = 2
_LIMIT_S = 1e5


@dataclass(frozen=True)
class Job:
    """A job whose ranks compile the same graph.

    Attributes:
        ranks: Number of ranks.
        problems: Problems of the graph, all undecided.
        seed: Of all chance.
        lost: How many of the ranks, the last ones, die together after each has claimed two problems, the first of the graph.
    """

    ranks: int
    problems: int
    seed: int = 0
    lost: int = 0


@dataclass(frozen=True)
class RankRun:
    """How a job fared.

    Attributes:
        makespan_s: Simulated seconds until the last rank has all decisions.
        bound_s: What no schedule can undercut: the start of a rank's compile worker, and then the larger of the seconds of
            tuning for each rank and those of the longest problem.
        tuned: Tunings of all ranks.
        requests: Requests to the job's store, as c10d names them.
        most_in_a_s: Most requests in one second.
    """

    makespan_s: float
    bound_s: float
    tuned: int
    requests: Counter[str]
    most_in_a_s: int


class CountingStore:
    """The store of a job, in memory; it counts requests as `C10dStore` makes them."""

    def __init__(self, clock: Clock) -> None:
        """Begin empty."""
        self._clock = clock
        self._values: dict[str, str] = {}
        self.requests: Counter[str] = Counter()
        self.by_second: Counter[int] = Counter()

    def get(self, key: str) -> str | None:
        """Return a value; it is looked for first."""
        self._count("check")
        if key in self._values:
            self._count("get")
        return self._values.get(key)

    def put(self, key: str, value: str) -> None:
        """Set a key."""
        self._count("set")
        self._values[key] = value

    def put_once(self, key: str, value: str) -> str:
        """Set a key that has no value."""
        return self.exchange(key, "", value)

    def exchange(self, key: str, before: str, value: str) -> str:
        """Set a key that has a value."""
        self._count("compare_set")
        if self._values.get(key, "") == before:
            self._values[key] = value
        return self._values.get(key, before)

    def count(self, key: str, amount: int = 0) -> int:
        """Add to a counter."""
        self._count("add")
        total = int(self._values.get(key, "0")) + amount
        self._values[key] = str(total)
        return total

    def _count(self, kind: str) -> None:
        self.requests[kind] += 1
        self.by_second[int(self._clock.now)] += 1


class _Selection:
    """Decides for the kernel, whatever its times."""

    def chosen(self, ticket: TuningTicket) -> Verdict:
        del ticket
        return Verdict(_KERNEL, _LIBRARY, "simulated", 1.5)

    def record_of(self, ticket: TuningTicket) -> None:
        """Return no measurements: their number decides nothing here."""
        del ticket


class _Tuner:
    """The pipeline of one rank: one problem after the other, once its compile worker has started for the first."""

    absence = ""

    def __init__(self, clock: Clock, seconds: dict[str, float], worker_s: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._worker_s = worker_s
        self._queue = clock.queue().SimpleQueue()
        self.tuned = 0
        clock.spawn(self._serve)

    def examine(self, ticket: TuningTicket) -> None:
        del ticket

    def start(self, ticket: TuningTicket) -> None:
        self._queue.put(ticket)

    def wait(self, ticket: TuningTicket, limit_s: float) -> None:
        raise NotImplementedError("the simulated rank waits for the decision")

    def end(self, task: Task, error: str) -> None:
        task.error = error
        task.done.set()

    def progressed(self) -> None:
        pass

    def _serve(self) -> None:
        while True:
            ticket: Any = self._queue.get()
            if ticket.task.done.is_set():
                continue
            starts_s, self._worker_s = self._worker_s, 0.0
            self._clock.sleep(starts_s + self._seconds[ticket.digest])
            if not ticket.task.done.is_set():
                self.tuned += 1
                ticket.measured.update(dict.fromkeys((_LIBRARY, _KERNEL), _MEASURED))
                ticket.task.done.set()


_MEASURED: Any = SimpleNamespace(status="ok")


def simulate_ranks(job: Job, times: Times) -> RankRun:
    """Let all ranks compile a graph.

    Raises:
        RuntimeError: A rank does not get its decisions.
    """
    clock = Clock()
    store, chance = CountingStore(clock), random.Random(job.seed)
    seconds = {f"problem-{n}": _tuning_s(times, chance) for n in range(job.problems)}
    ends: list[float] = []
    alive = job.ranks - job.lost
    _claim_and_die(job, store, [*seconds])
    with clock.replace((share, settlement), {}):
        tuners = [_Tuner(clock, seconds, times.worker_s) for _ in range(alive)]
        for rank, tuner in enumerate(tuners):
            own = RankJob(rank, job.ranks, store, token=f"token-{rank}")
            part = RankShare(own, _GROUP, tuner, Counters(), TIMEOUT_S)

            def compiles(part: RankShare = part) -> None:
                _compile(clock, part, list(seconds))
                ends.append(clock.now)

            clock.spawn(compiles)
        clock.run(lambda: len(ends) == alive, _LIMIT_S)
    bound_s = times.worker_s + max(sum(seconds.values()) / job.ranks, *seconds.values())
    most = max(store.by_second.values())
    return RankRun(max(ends), bound_s, sum(t.tuned for t in tuners), store.requests, most)


def _claim_and_die(job: Job, store: CountingStore, digests: list[str]) -> None:
    """Leave claims of ranks that have given one sign of life."""
    for number in range(job.lost):
        rank = job.ranks - job.lost + number
        board = Board(RankJob(rank, job.ranks, store, token=f"token-{rank}"), _GROUP)
        for digest in digests[_HELD * number : _HELD * (number + 1)]:
            board.claim(f"{_PROBLEM.op}/{digest}")
        board.beat(beat(1, {}))


def row(job: Job, run: RankRun) -> dict[str, Any]:
    """Return the figures of one job."""
    return {
        "what": RANKS,
        "ranks": job.ranks,
        "problems": job.problems,
        "makespan_s": round(run.makespan_s, 1),
        "bound_s": round(run.bound_s, 1),
        "over": round(run.makespan_s / run.bound_s, 3),
        "tuned": run.tuned,
        "c10d_requests": dict(sorted(run.requests.items())),
        "c10d_requests_per_s": round(run.requests.total() / run.makespan_s, 1),
        "most_c10d_requests_in_a_s": run.most_in_a_s,
    }


def _compile(clock: Clock, part: RankShare, digests: list[str]) -> None:
    """Submit the problems of a graph, and wait for one after the other, as a compile does."""
    events = clock.threading()
    parts: Any = part
    for digest in digests:
        part.submit(_ticket(clock, digest))
        # The product's is of the real module.
        parts._parts[f"mm/{digest}"].ready = events.Event()
    for shared in [*parts._parts.values()]:
        shared.awaited = 1
        if shared.agreed is None:
            shared.ready.wait()
        shared.awaited = 0


def _ticket(clock: Clock, digest: str) -> TuningTicket:
    selection: Any = _Selection()
    task = Task(
        problem=_PROBLEM,
        digest=digest,
        entries=[],
        check=None,
        budget=None,
        exclusive=False,
        refresh=lambda _task: 0,
        finish=lambda _task: None,
        done=clock.threading().Event(),
    )
    return TuningTicket(selection, _PROBLEM, digest, _OFFERS, {}, {}, task=task)


def _tuning_s(times: Times, chance: random.Random) -> float:
    """Return the seconds of one problem: its first kernel is compiled, the others while it is measured; then come the finals."""
    measured = (chance.choice(times.measure_s) for _ in range(_CANDIDATES + _LEGS))
    return chance.choice(times.triton_s) + sum(measured)
