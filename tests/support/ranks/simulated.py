"""Ranks of a job in one process: a store in memory, a tuner that ends when a test says so, a clock that a test moves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inductor_plugin.cache import Measured, Record
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.share import RankShare
from inductor_plugin.tuning.ranks.store import StoreLostError
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.ticket import TuningTicket, record_of
from tests.support.fakes.tasks import offer, problem, task

LIBRARY = "library"
TIMEOUT_S = 10.0


@dataclass
class MemoryStore:
    """A store that all ranks of a test share.

    Attributes:
        values: What it has.
        calls: Operations so far, by name.
        lost: Why it does not answer; empty while it does.
        failing: How many of the next operations get no answer.
        meanwhile: What happens elsewhere in the process while the next operation is under way.
    """

    values: dict[str, str] = field(default_factory=dict[str, str])
    calls: Counter[str] = field(default_factory=Counter[str])
    lost: str = ""
    failing: int = 0
    meanwhile: Callable[[], None] | None = None

    def seen_by(self, number: int) -> list[MemoryStore]:
        """Return the same store as each of some ranks sees it: it may fail for one of them."""
        return [replace(self, calls=Counter()) for _ in range(number)]

    def _asked(self, name: str) -> None:
        self.calls[name] += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.lost:
            raise StoreLostError(self.lost)
        if self.failing:
            self.failing -= 1
            raise StoreLostError("it has not answered for 30 s")

    def get(self, key: str) -> str | None:
        self._asked("get")
        return self.values.get(key)

    def put(self, key: str, value: str) -> None:
        self._asked("put")
        self.values[key] = value

    def put_once(self, key: str, value: str) -> str:
        return self.exchange(key, "", value)

    def exchange(self, key: str, before: str, value: str) -> str:
        self._asked("exchange")
        if self.values.get(key, "") == before:
            self.values[key] = value
        return self.values.get(key, before)

    def count(self, key: str, amount: int = 0) -> int:
        self._asked("count")
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])


def measured(name: str, ms: float, status: str = "ok") -> Measured:
    return Measured(
        candidate=name,
        name=name,
        kind="template",
        description="",
        status=status,
        reason="" if status == "ok" else "it was seen to fail",
        samples_ms=(ms,),
        median_ms=ms,
        spread_ms=0.0,
        error=None,
        compile_s=None,
        kernel=None,
        measured_at=time.time(),
        provenance={},
    )


@dataclass
class FakeSelection:
    """Decides for the fastest that was measured; `tests.tuning.test_selection` has the real one."""

    environment: str = "e" * 16
    kept: list[str] = field(default_factory=list[str])

    def chosen(self, ticket: TuningTicket) -> Verdict:
        times = {n: row.median_ms for n, row in ticket.measured.items() if row.median_ms}
        winner = min(times, key=times.__getitem__, default=LIBRARY)
        return Verdict(winner, LIBRARY, f"{winner} is the fastest")

    def record_of(self, ticket: TuningTicket) -> Record:
        return record_of(ticket, self.chosen(ticket), ticket.measured, self.environment, 1.0)

    def keep(self, ticket: TuningTicket) -> None:
        self.kept.append(ticket.digest)

    def build_of(self, _ticket: TuningTicket) -> Task | None:
        return None


@dataclass
class FakeTuner:
    """Tunes when it is told to.

    Attributes:
        examined: Problems before whose tuning it was to look at its device.
        running: Tickets that were submitted and have not ended, by problem.
        tuned: Problems that were tuned, in order.
        progress: How often another rank has made progress.
        absence: Why nothing can be measured; empty while something can be.
    """

    examined: list[str] = field(default_factory=list[str])
    running: dict[str, TuningTicket] = field(default_factory=dict[str, TuningTicket])
    tuned: list[str] = field(default_factory=list[str])
    progress: int = 0
    absence: str = ""

    def examine(self, ticket: TuningTicket) -> None:
        self.examined.append(ticket.digest)

    def start(self, ticket: TuningTicket) -> None:
        self.running[ticket.digest] = ticket
        if self.absence and ticket.task is not None:
            self.end(ticket.task, self.absence)

    def wait(self, ticket: TuningTicket, limit_s: float) -> None:
        assert ticket.task is not None
        ticket.task.done.wait(limit_s)

    def end(self, task: Task, error: str) -> None:
        task.error = error
        task.done.set()
        self.running.pop(task.digest, None)

    def progressed(self) -> None:
        self.progress += 1

    def finish(self, digest: str, times: Mapping[str, float]) -> None:
        """End a task with measurements."""
        ticket = self.running.pop(digest)
        assert ticket.task is not None
        ticket.measured.update({name: measured(name, ms) for name, ms in times.items()})
        self.tuned.append(digest)
        ticket.task.done.set()


class Rank:
    """One rank: its share of the problems, and the tickets of its graphs."""

    def __init__(
        self, number: int, world: int, store: MemoryStore, group: str = "g", **options: Any
    ) -> None:
        """Join a job; ``options`` are those of `RankShare`, and ``job`` for one more part of a process."""
        self.number, self.store = number, store
        self.tuner, self.counters, self.selection = FakeTuner(), Counters(), FakeSelection()
        self.job = options.pop("job", None) or Job(number, world, store, token=f"token{number}")
        keywords: dict[str, Any] = {"has_thread": False, **options}
        self.share = RankShare(self.job, group, self.tuner, self.counters, TIMEOUT_S, **keywords)
        self.tickets: dict[str, TuningTicket] = {}

    def ticket(
        self,
        digest: str,
        names: Sequence[str] = ("fast", "slow"),
        known: Mapping[str, Measured] | None = None,
    ) -> TuningTicket:
        """Return a ticket that is not submitted; with ``known`` measurements nothing is to be tuned."""
        offers: list[CandidateOffer] = [
            offer(LIBRARY, library=True),
            *(offer(name) for name in names),
        ]
        selection: Any = self.selection
        return TuningTicket(
            selection,
            problem(),
            digest,
            tuple(offers),
            dict(known or {}),
            {},
            task=None if known else task([o.entry() for o in offers], digest=digest),
        )

    def submit(self, digest: str, **keywords: Any) -> TuningTicket:
        """Submit a problem, and wait for it as a compile does."""
        ticket = self.tickets[digest] = self.ticket(digest, **keywords)
        self.share.submit(ticket)
        self.await_all()
        return ticket

    def await_all(self) -> None:
        """Let every undecided problem be waited for."""
        for part in self.parts.values():
            part.awaited = 1

    @property
    def parts(self) -> dict[str, Any]:
        untyped: Any = self.share
        return untyped._parts

    def state(self, digest: str) -> str:
        return str(self.parts[f"mm/{digest}"].state)

    @property
    def is_lost(self) -> bool:
        """Whether its store has not answered: it asks nothing more."""
        untyped: Any = self.share
        return bool(untyped._lost)

    def step(self, now: float = 0.0) -> bool:
        """Do what its thread does in a turn."""
        untyped: Any = self.share
        try:
            return not self.is_lost and self.share.step(now)
        except StoreLostError as error:
            untyped._lose(str(error))
            return True

    def release(self, digest: str) -> None:
        """End the graph with a problem."""
        self.share.release([self.tickets.pop(digest)])

    def finish_all(self) -> None:
        """End what is tuned here; the first candidate is the faster one on even ranks, the second on odd ones."""
        for digest in [*self.tuner.running]:
            names = [o.candidate_id for o in self.tickets[digest].offers if not o.library]
            fastest = names[self.number % len(names)]
            times = {LIBRARY: 3.0, **dict.fromkeys(names, 2.0), fastest: 1.0}
            self.tuner.finish(digest, times)

    @property
    def winners(self) -> dict[str, str | None]:
        """What runs, of each problem that is decided."""
        return {d: t.verdict.winner for d, t in self.tickets.items() if t.agreed and t.verdict}


def job_of(world: int) -> tuple[list[Rank], MemoryStore]:
    """Return the ranks of a job, and their store."""
    store = MemoryStore()
    return [Rank(number, world, store) for number in range(world)], store


def agree(ranks: Sequence[Rank]) -> bool:
    """Return whether no two ranks run different kernels for a problem."""
    winners = [rank.winners for rank in ranks]
    return all(a[name] == b[name] for a in winners for b in winners for name in a.keys() & b.keys())


def drive(ranks: Sequence[Rank], *, from_s: float = 0.0, seconds: int = 30) -> float:
    """Let ranks work, a second a step, until nothing of them is undecided; return the time then."""
    now = from_s
    for _ in range(seconds):
        now += 1.0
        for rank in ranks:
            rank.await_all()
            rank.step(now)
            rank.finish_all()
        if all(len(rank.winners) == len(rank.tickets) for rank in ranks):
            break
    return now
