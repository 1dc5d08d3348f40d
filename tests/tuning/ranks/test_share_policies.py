"""Ranks that measure nothing (``policy=cached``): they read decisions, and keep nobody from tuning."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from tests.support.fakes.tasks import task
from tests.support.ranks.simulated import (
    LIBRARY,
    TIMEOUT_S,
    MemoryStore,
    Rank,
    drive,
    job_of,
    measured,
)


def mixed() -> tuple[Rank, Rank, MemoryStore]:
    """Return a rank that tunes, one with ``policy=cached``, and their store."""
    store = MemoryStore()
    return Rank(0, 2, store), Rank(1, 2, store, measures=False), store


def unknown(rank: Rank, digest: str) -> Any:
    """Submit a problem that the rank has no record of, and may not measure."""
    ticket = rank.tickets[digest] = rank.ticket(digest)
    ticket.task = None
    rank.share.submit(ticket)
    rank.await_all()
    return ticket


def claims(store: MemoryStore) -> list[str]:
    return [key for key in store.values if "/claim/" in key]


def test_what_a_rank_may_not_measure_it_never_claims() -> None:
    _, cached, store = mixed()
    unknown(cached, "problem")
    untyped: Any = cached.share
    assert not untyped._claim_more(
        0.0
    )  # submitted since the thread has looked for what can be published
    assert claims(store) == []
    assert cached.state("problem") == "open"


def test_it_leaves_a_problem_to_a_rank_that_tunes_and_comes_to_it_later() -> None:
    tunes, cached, store = mixed()
    tunes.submit("first")
    tunes.step(0.0)
    ticket = unknown(cached, "problem")
    for second in range(1, int(TIMEOUT_S)):
        cached.step(float(second))
    assert ticket.verdict is None
    tunes.submit("problem")
    drive([tunes, cached], from_s=TIMEOUT_S - 1)
    assert tunes.tuner.tuned == ["first", "problem"]
    assert cached.winners == {"problem": "fast"}
    assert len(claims(store)) == 2


def test_what_nobody_comes_to_costs_one_time_out() -> None:
    tunes, cached, _ = mixed()
    tunes.submit("first")
    tunes.step(0.0)
    ticket = unknown(cached, "problem")
    for second in range(1, int(TIMEOUT_S) + 4):
        cached.step(float(second))
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == (LIBRARY, True)
    assert "rank 1 has measured nothing" in ticket.verdict.reason
    unknown(cached, "next")
    cached.step(TIMEOUT_S + 5)
    assert cached.winners["next"] == LIBRARY


def test_where_no_rank_tunes_nobody_waits() -> None:
    store = MemoryStore()
    ranks = [Rank(number, 2, store, measures=False) for number in range(2)]
    tickets = [unknown(rank, "problem") for rank in ranks]
    for rank in ranks:
        rank.step(0.0)
    assert [ticket.verdict.winner for ticket in tickets] == [LIBRARY] * 2


def test_a_decision_without_a_measurement_is_not_for_later_jobs() -> None:
    ranks, _ = job_of(2)
    ticket = unknown(ranks[0], "problem")  # its budget is spent
    ranks[0].step(0.0)
    assert ticket.verdict.provisional
    ranks[1].submit("failed")
    ranks[1].step(0.0)
    failing = ranks[1].tickets["failed"].task
    assert failing is not None
    ranks[1].tuner.end(failing, "it made no progress")
    ranks[1].step(1.0)
    verdict = ranks[1].tickets["failed"].verdict
    assert verdict is not None
    assert verdict.provisional
    assert "rank 1 has measured nothing (it made no progress)" in verdict.reason


def test_a_record_whose_kernel_is_missing_decides_at_once_and_is_built_then() -> None:
    _, cached, store = mixed()
    rows = {LIBRARY: measured(LIBRARY, 2.0), "fast": measured("fast", 1.0)}
    ticket = cached.ticket("problem", known=rows)
    built = task([], digest="problem")
    ticket.task = task([], digest="problem")
    ticket.task.measured = built.measured = False
    selection: Any = cached.selection
    selection.build_of = Mock(return_value=built)
    cached.tickets["problem"] = ticket
    cached.share.submit(ticket)
    cached.step(0.0)
    assert cached.winners == {"problem": "fast"}
    assert claims(store) == []
    built.done.set()
    cached.share.wait(ticket, 1.0)
    assert ticket.task is built
