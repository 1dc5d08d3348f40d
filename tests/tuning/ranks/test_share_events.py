"""Whatever comes between, and in whatever order: a problem is tuned by one rank at a time, and all take the same decision."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ranks.simulated import (
    LIBRARY,
    MemoryStore,
    Rank,
    agree,
    drive,
    job_of,
    measured,
)

PROBLEMS = [f"problem{number}" for number in range(3)]
EXCUSES = ("the store of the job is lost", "has failed here")
"""Reasons for which a rank may run another kernel than the others."""


@dataclass
class Events:
    """A job of three ranks, to which things happen.

    Attributes:
        ranks: The ranks, each with a view of its own on the store.
        now: The time.
        stopped: Ranks that are stopped, or dead.
    """

    ranks: list[Rank] = field(default_factory=list[Rank])
    now: float = 0.0
    stopped: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        views = enumerate(MemoryStore().seen_by(3))
        self.ranks = [Rank(number, 3, store) for number, store in views]

    @property
    def living(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.number not in self.stopped]

    def happens(self, rank: Rank, action: str, name: str) -> None:
        """Let something happen to a rank, two seconds later."""
        self.now += 2.0
        if action == "stop":
            self.stopped.add(rank.number)
        elif action == "go on":
            self.stopped.discard(rank.number)
        if rank.number not in self.stopped:
            self._acts(rank, action, name)

    def _acts(self, rank: Rank, action: str, name: str) -> None:
        is_open = name in rank.tickets and rank.tickets[name].agreed is None
        if action == "step":
            rank.step(self.now)
        elif action == "finish":
            rank.finish_all()
        elif action == "fail":
            rank.store.failing = 1
        elif action == "device":
            rank.tuner.absence = "" if rank.tuner.absence else "out of memory"
        elif action == "release" and is_open:
            rank.release(name)
        elif action == "again" and is_open:
            rank.store.meanwhile = lambda: self._of_another_graph(rank, name)
        elif name not in rank.tickets:
            submits(rank, action, name)

    def _of_another_graph(self, rank: Rank, name: str) -> None:
        if name in rank.tickets and rank.tickets[name].agreed is None:
            rank.release(name)
            rank.submit(name)


def submits(rank: Rank, action: str, name: str) -> None:
    """Submit a problem: unknown, with a record, or with a candidate that has failed."""
    if action == "submit":
        rank.submit(name)
    elif action == "record":
        own = ("fast", "slow")[rank.number % 2]
        rank.submit(name, known={LIBRARY: measured(LIBRARY, 2.0), own: measured(own, 1.0)})
    elif action == "refuse":
        ticket = rank.tickets[name] = rank.ticket(name)
        ticket.measured["fast"] = measured("fast", 1.0, "wrong")
        rank.share.submit(ticket)
        rank.await_all()


def unexcused(ranks: Sequence[Rank]) -> dict[str, set[str | None]]:
    """Return what runs for each problem on ranks that have no excuse for another kernel."""
    result: dict[str, set[str | None]] = {}
    for rank in ranks:
        for name, ticket in rank.tickets.items():
            if ticket.agreed is None or ticket.verdict is None:
                continue
            if not any(excuse in ticket.verdict.reason for excuse in EXCUSES):
                result.setdefault(name, set()).add(ticket.verdict.winner)
    return result


def is_sound(ranks: Sequence[Rank]) -> bool:
    """Return whether all run the same, and nothing is tuned by two at once."""
    apart = all(not a.tuner.running.keys() & b.tuner.running.keys() for a, b in pairs(ranks))
    return apart and all(len(winners) == 1 for winners in unexcused(ranks).values())


def pairs(ranks: Sequence[Rank]) -> list[tuple[Rank, Rank]]:
    return [*combinations(ranks, 2)]


def everything(names: Sequence[str], most: int) -> st.SearchStrategy[list[tuple[int, str, str]]]:
    """Return lists of a rank, what happens to it, and a problem."""
    event = st.tuples(st.integers(0, 2), st.sampled_from(names), st.sampled_from(PROBLEMS))
    return st.lists(event, max_size=most)


CALM = ("step", "step", "finish", "submit")
HOSTILE = ("stop", "go on", "record", "release", "again", "fail", "device", "refuse")


@settings(max_examples=200, deadline=None)
@given(everything([*CALM, *CALM, *HOSTILE], 60))
def test_no_order_of_events_lets_ranks_decide_differently(
    actions: list[tuple[int, str, str]],
) -> None:
    job = Events()
    for number, action, name in actions:
        job.happens(job.ranks[number], action, name)
        assert is_sound(job.ranks)
    now = drive(job.living, from_s=job.now, seconds=200)
    assert all(len(rank.winners) == len(rank.tickets) for rank in job.living)
    assert is_sound(job.ranks)
    # Those that were stopped go on after a while.
    drive(job.ranks, from_s=now + 100.0, seconds=200)
    assert all(len(rank.winners) == len(rank.tickets) for rank in job.ranks)
    assert is_sound(job.ranks)


@settings(max_examples=100, deadline=None)
@given(everything([*CALM, "device"], 40))
def test_what_no_rank_gives_up_is_tuned_once(actions: list[tuple[int, str, str]]) -> None:
    job = Events()
    for number, action, name in actions:
        job.happens(job.ranks[number], action, name)
    drive(job.ranks, from_s=job.now, seconds=200)
    assert agree(job.ranks)
    tuned = [name for rank in job.ranks for name in rank.tuner.tuned]
    assert len(tuned) == len(set(tuned))


def while_it_asks(rank: Rank, now: float, event: Callable[[], None]) -> None:
    """Let something happen while a rank waits for its store, in the middle of a turn."""
    rank.store.meanwhile = event
    rank.step(now)
    assert rank.store.meanwhile is None


def test_a_graph_that_ends_while_its_problem_is_claimed_gives_it_back() -> None:
    ranks, store = job_of(2)
    ticket, exchange = ranks[0].submit("problem"), store.exchange

    def released(key: str, before: str, value: str) -> str:
        ranks[0].share.release([ticket])
        store.exchange = exchange  # type: ignore[method-assign]
        return exchange(key, before, value)

    store.exchange = released  # type: ignore[method-assign]
    ranks[0].step(0.0)
    assert ranks[0].tuner.running == {}
    ranks[0].step(1.0)
    ranks[1].submit("problem")
    drive(ranks[1:], from_s=1.0)
    assert ranks[1].tuner.tuned == ["problem"]


def test_a_problem_that_another_graph_has_brought_meanwhile_is_not_given_back() -> None:
    ranks = [Rank(number, 2, store) for number, store in enumerate(MemoryStore().seen_by(2))]
    ranks[1].submit("of the other rank")
    ranks[1].step(0.0)
    ranks[0].submit("problem")
    ranks[0].submit("of the other rank")  # so that each turn asks the store
    ranks[0].step(0.0)

    def another_graph() -> None:
        ranks[0].release("problem")
        ranks[0].submit("problem")

    while_it_asks(ranks[0], 2.0, another_graph)
    ranks[0].step(4.0)
    ranks[1].submit("problem")
    ranks[1].step(4.0)
    assert [[*rank.tuner.running] for rank in ranks] == [["problem"], ["of the other rank"]]


def test_what_was_claimed_for_a_graph_that_ended_is_given_back_with_the_last_one() -> None:
    ranks, _ = job_of(2)
    first = ranks[0].submit("problem")
    ranks[0].step(0.0)
    second = ranks[0].ticket("problem")
    ranks[0].share.submit(second)
    ranks[0].share.release([first])  # it was to be tuned for the second, which has not begun
    ranks[0].share.release([second])
    ranks[0].step(1.0)
    ranks[1].submit("problem")
    ranks[1].step(1.0)
    assert [*ranks[1].tuner.running] == ["problem"]


def test_two_parts_of_a_process_tune_a_problem_once() -> None:
    store = MemoryStore()
    first, other = Rank(0, 2, store), Rank(1, 2, store)
    second = Rank(0, 2, store, job=first.job)  # of other options, which decide the same
    for part in (first, second, other):
        part.submit("problem")
        part.step(0.0)
    assert [[*part.tuner.running] for part in (first, second, other)] == [["problem"], [], []]
    second.release("problem")
    second.step(1.0)
    second.submit("problem")
    for now in (2.0, 3.0, 4.0):
        other.step(now)
        second.step(now)
    assert second.tuner.running == other.tuner.running == {}
    drive([first, second, other], from_s=5.0)
    assert [part.winners for part in (first, second, other)] == [{"problem": "fast"}] * 3


def test_a_rank_that_gave_everything_back_is_alive_when_it_claims_something_else() -> None:
    """It had nothing to give signs of, and its next claim is there before its next sign."""
    (giver, busy, own), _ = job_of(3)
    first, long, second = PROBLEMS
    for rank, name in ((giver, first), (busy, long)):
        rank.submit(name)
        rank.step(0.0)
    for name in (first, long):
        own.tickets[name] = own.ticket(name)
        own.share.submit(own.tickets[name])
    own.step(0.0)
    own.parts[f"mm/{long}"].awaited = 1
    own.step(1.0)
    assert own.state(first) == own.state(long) == "theirs"
    giver.release(first)
    giver.step(1.0)
    for now in range(2, 100):
        busy.step(float(now))
        own.step(float(now))
    assert giver.share._board.claim(f"mm/{second}") is None
    own.submit(second)
    own.parts[f"mm/{first}"].awaited = 0
    own.step(100.0)
    own.step(101.5)
    assert own.state(second) == "theirs"
    assert own.winners == {}
