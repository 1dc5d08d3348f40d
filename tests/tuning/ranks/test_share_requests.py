"""How much ranks ask the store of their job, which all of them have together."""

from __future__ import annotations

from tests.support.ranks.simulated import LIBRARY, Rank, job_of, measured


def submitted(rank: Rank, problems: int) -> None:
    """Submit problems that nobody waits for yet."""
    for number in range(problems):
        name = f"problem{number}"
        rank.tickets[name] = rank.ticket(name)
        rank.share.submit(rank.tickets[name])


def requests_of(problems: int) -> int:
    """Return the requests of four ranks that tune one problem after the other, and look ten times a second."""
    ranks, store = job_of(4)
    for rank in ranks:
        submitted(rank, problems)
    now = 0.0
    while any(len(rank.winners) < problems for rank in ranks):
        now += 0.1
        for rank in ranks:
            rank.step(now)
            for digest in [*rank.tuner.running][:1]:
                rank.tuner.finish(digest, {LIBRARY: 2.0, "fast": 1.0})
    return store.calls.total()


def test_requests_grow_as_the_problems_do() -> None:
    assert requests_of(48) < 2.5 * requests_of(24)


def test_a_rank_that_waits_asks_seldom_however_often_it_looks_at_its_own_problems() -> None:
    ranks, store = job_of(2)
    submitted(ranks[0], 1)
    ranks[0].step(0.0)
    submitted(ranks[1], 1)
    ranks[1].step(0.0)
    before = store.calls.total()
    for look in range(500):
        ranks[1].step(0.02 * look)
    assert store.calls.total() - before < 50


def test_ranks_that_find_no_problem_free_ask_for_a_few_at_a_time() -> None:
    """Forty ranks begin at once, and ten of them have all problems."""
    ranks, store = job_of(40)
    for rank in ranks:
        submitted(rank, 20)
    for rank in ranks:
        rank.step(0.0)
    assert store.calls.total() < 15 * 40
    assert sum(len(rank.tuner.running) for rank in ranks) == 20
    for rank in ranks:
        rank.step(0.001)
    assert store.calls.total() < 20 * 40  # nor at once again


def test_a_problem_is_asked_for_once_before_it_is_claimed() -> None:
    ranks, store = job_of(2)
    submitted(ranks[0], 1)
    ranks[0].step(0.0)
    assert store.calls["get"] == 1


def test_what_was_decided_before_a_rank_asks_is_not_read_from_the_log() -> None:
    ranks, store = job_of(2)
    known = {LIBRARY: measured(LIBRARY, 2.0), "fast": measured("fast", 1.0)}
    for number in range(50):
        ranks[0].submit(f"problem{number}", known=known)
    ranks[0].step(0.0)
    before = store.calls["get"]
    ranks[1].submit("problem7")
    ranks[1].step(0.0)
    assert ranks[1].winners == {"problem7": "fast"}
    assert store.calls["get"] - before == 1


def test_failures_of_many_candidates_are_few_requests() -> None:
    ranks, store = job_of(3)
    names = [f"candidate{number}" for number in range(40)]
    for rank in ranks:
        ticket = rank.tickets["problem"] = rank.ticket("problem", names=names)
        ticket.measured.update({name: measured(name, 1.0, "wrong") for name in names})
        rank.share.submit(ticket)
        rank.step(0.0)
    assert sum(key.startswith("g/refused/") for key in store.values) == 1
    assert store.calls["put"] <= 2
    assert store.calls.total() < 30


def test_a_failure_that_a_later_ticket_knows_of_is_announced_too() -> None:
    ranks, _ = job_of(2)
    submitted(ranks[0], 1)
    ranks[0].step(0.0)
    submitted(ranks[1], 1)
    ranks[1].step(0.0)
    later = ranks[1].ticket("problem0")
    later.measured["fast"] = measured("fast", 1.0, "wrong")
    ranks[1].share.submit(later)
    ranks[1].step(1.0)
    ranks[0].tuner.finish("problem0", {LIBRARY: 2.0, "fast": 1.0})
    ranks[0].step(2.0)
    assert ranks[0].winners == {"problem0": LIBRARY}
