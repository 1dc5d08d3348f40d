"""What the ranks of a job write on their board."""

from __future__ import annotations

from inductor_plugin.tuning.ranks.board import Board
from inductor_plugin.tuning.ranks.job import Job
from tests.support.ranks.simulated import MemoryStore


def boards(*ranks: int) -> list[Board]:
    """Return the boards of processes of one job, each of the rank named."""
    store = MemoryStore()
    return [Board(Job(rank, 2, store), "group") for rank in ranks]


def test_who_claims_first_tunes() -> None:
    first, other = boards(0, 1)
    assert first.claim("problem")
    assert first.claim("problem")
    assert not other.claim("problem")
    assert other.holder("problem") == 0


def test_what_was_given_back_is_claimed_by_another() -> None:
    first, other = boards(0, 1)
    assert first.claim("problem")
    first.give_back("problem")
    assert other.holder("problem") is None
    assert other.claim("problem")


def test_a_rank_that_was_started_again_takes_over_its_former_claims() -> None:
    former, again, other = boards(0, 0, 1)
    assert former.claim("problem")
    assert not other.claim("problem")
    assert again.claim("problem")
    former.give_back("problem")  # of a process that is gone: nobody else's claim ends by it
    assert other.holder("problem") == 0


def test_ranks_that_measure_nothing_are_counted() -> None:
    first, other = boards(0, 1)
    assert [first.absent(1), other.absent(1), other.absent(-1), first.absent()] == [1, 2, 1, 1]


def test_the_first_decision_stays() -> None:
    first, other = boards(0, 1)
    assert first.decide("problem", "a") == "a"
    assert other.decide("problem", "b") == "a"
    assert other.decided() == 1
