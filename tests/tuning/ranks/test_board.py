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
    assert first.claim("problem") is None
    assert first.claim("problem") is None
    assert other.claim("problem") == 0
    assert other.holder("problem") == 0


def test_what_was_given_back_is_claimed_by_another() -> None:
    first, other = boards(0, 1)
    assert first.claim("problem") is None
    first.give_back("problem")
    assert other.holder("problem") is None
    assert other.claim("problem") is None


def test_a_rank_that_was_started_again_takes_over_its_former_claims() -> None:
    former, again, other = boards(0, 0, 1)
    assert former.claim("problem") is None
    assert other.claim("problem") == 0
    assert again.claim("problem") is None
    former.give_back("problem")  # of a process that is gone: nobody else's claim ends by it
    assert other.holder("problem") == 0


def test_parts_of_a_process_claim_each_for_itself() -> None:
    store = MemoryStore()
    job = Job(0, 2, store)
    first, second, other = (Board(each, "group") for each in (job, job, Job(1, 2, store)))
    assert first.claim("problem") is None
    assert second.claim("problem") == 0
    second.give_back("problem")
    assert other.claim("problem") == 0
    # Who holds it is waited for, the own process, too; what is one's own is not waited for.
    assert (first.holder("problem"), second.holder("problem")) == (None, 0)
    first.give_back("problem")
    assert second.claim("problem") is None


def test_ranks_that_measure_nothing_are_counted_once_whatever_of_them_does_not() -> None:
    store = MemoryStore()
    job = Job(0, 2, store)
    first, second, other = (Board(each, "group") for each in (job, job, Job(1, 2, store)))
    said = [(first, 1, True), (second, 2, True), (other, 3, True), (first, 1, False)]
    assert [board.report_absence(part, absent=is_absent) for board, part, is_absent in said] == [
        1,
        1,
        2,
        2,
    ]
    assert second.report_absence(2, absent=False) == first.absent() == 1
    assert Board(job, "another group").report_absence(1, absent=True) == 1


def test_the_first_decision_stays() -> None:
    first, other = boards(0, 1)
    assert first.decide("problem", "a") == "a"
    assert other.decide("problem", "b") == "a"
    assert other.decided() == 1


def test_what_is_decided_is_read_once() -> None:
    first, other = boards(0, 1)
    assert other.decided_since(0, 0.0) == ([], 0)
    first.decide("a", "text")
    first.decide("b", "text")
    assert other.decided_since(0, 0.0) == (["a", "b"], 2)
    assert other.decided_since(2, 0.0) == ([], 2)


def test_many_decisions_are_read_in_parts() -> None:
    first, other = boards(0, 1)
    for number in range(300):
        first.decide(str(number), "text")
    names, seen = other.decided_since(0, 0.0)
    assert (len(names), seen) == (200, 200)
    assert len(other.decided_since(seen, 0.0)[0]) == 100


def test_an_entry_of_the_log_that_its_rank_did_not_live_to_write_is_left_out_later() -> None:
    store = MemoryStore()
    first, other = (Board(Job(rank, 2, store), "group") for rank in range(2))
    first.decide("a", "text")
    del store.values["group/log/1"]
    first.decide("b", "text")
    assert other.decided_since(0, 10.0) == ([], 0)
    assert other.decided_since(0, 11.0) == ([], 0)
    assert other.decided_since(0, 12.5) == (["b"], 2)


def test_failures_of_all_ranks_are_kept() -> None:
    first, other = boards(0, 1)
    first.refuse("problem", ["a", "b"])
    other.refuse("problem", ["b", "c"])
    first.refuse("problem", ["c"])
    assert [first.refusal("problem", name) for name in "abcd"] == [0, 0, 1, None]


def test_failures_that_two_ranks_announce_at_once_are_kept() -> None:
    store = MemoryStore()
    first, other = (Board(Job(rank, 2, store), "group") for rank in range(2))
    exchange = store.exchange

    def meanwhile(key: str, before: str, value: str) -> str:
        store.exchange = exchange  # type: ignore[method-assign]
        other.refuse("problem", ["b"])
        return exchange(key, before, value)

    store.exchange = meanwhile  # type: ignore[method-assign]
    first.refuse("problem", ["a"])
    assert [first.refusal("problem", name) for name in "ab"] == [0, 1]


def test_a_damaged_list_of_failures_names_none() -> None:
    store = MemoryStore({"group/refused/problem": "[1"})
    board = Board(Job(0, 2, store), "group")
    assert board.refusal("problem", "a") is None
    board.refuse("problem", ["a"])
    assert board.refusal("problem", "a") == 0
