"""Signs of life, as another rank sees them."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.ranks.pulse import RankWatches, beat, progress_in


def watched(*signs: tuple[float, str | None], ranks: int = 1) -> RankWatches:
    """Return the watches of some ranks, after signs of rank 0 that were seen at a time each; the time-out is 12 s."""
    watches = RankWatches(12.0, 2)
    for now, text in signs:
        watches.turn(range(ranks), now)
        watches.see(0, text)
    return watches


def test_a_rank_is_silent_from_its_last_new_sign_of_life() -> None:
    signs = [(float(second), beat(min(second, 4), {})) for second in range(9)]
    assert watched(*signs).silent_s(0) == 4.0


def test_a_rank_without_any_sign_is_silent_from_the_first_turn() -> None:
    assert watched(*((float(second), None) for second in range(10, 14))).silent_s(0) == 3.0


def test_time_in_which_nobody_waited_is_little_silence() -> None:
    # This process was stopped, or waited for nothing.
    assert watched(*((now, beat(1, {})) for now in (0.0, 300.0, 301.0))).silent_s(0) == 6.0


def test_a_dead_rank_is_silent_where_turns_are_far_apart() -> None:
    # The store takes seconds.
    assert watched(*((6.0 * turn, beat(1, {})) for turn in range(13))).silent_s(0) == 60.0


def test_a_rank_is_silent_while_another_is_looked_at() -> None:
    watches = watched(*((float(second), beat(second, {})) for second in range(14)), ranks=2)
    assert (watches.silent_s(0), watches.silent_s(1)) == (0.0, 13.0)
    assert watches.overdue() == [1]
    watches.see(1, beat(7, {}))  # it is looked at before it is given up
    assert watches.overdue() == []


def test_a_rank_that_holds_nothing_may_be_silent() -> None:
    watches = watched((0.0, beat(1, {})))
    for second in range(1, 30):
        watches.turn([1], float(second))
        watches.see(1, beat(second, {}))
    watches.turn([0], 30.0)  # it has claimed, and its next sign of life is on its way
    assert watches.silent_s(0) == 0.0


def test_a_rank_that_was_given_up_is_silent_until_it_gives_a_sign_of_life() -> None:
    watches = watched(*((float(second), beat(1, {})) for second in range(14)))
    watches.give_up([0])
    watches.turn([], 14.0)
    watches.turn([0], 15.0)
    watches.see(0, beat(1, {}))
    assert (watches.silent_s(0), watches.overdue()) == (15.0, [0])
    watches.see(0, beat(2, {}))
    assert (watches.silent_s(0), watches.overdue()) == (0.0, [])
    watches.turn([], 29.0)
    watches.turn([0], 30.0)
    assert watches.silent_s(0) == 0.0


def test_ranks_that_no_thread_waits_for_are_looked_at_six_times_in_a_time_out() -> None:
    watches, looks = RankWatches(12.0, 4), list[list[int]]()
    for second in range(4):
        watches.turn(range(3), float(second))
        looks.append(watches.due([0]))
        for rank in looks[-1]:
            watches.see(rank, None)
    assert looks == [[1, 2], [], [1, 2], []]


def test_a_rank_of_a_large_job_looks_at_a_few_others_in_turn() -> None:
    watches, looks = RankWatches(60.0, 1000), list[int]()
    for second in range(10):
        watches.turn(range(40), float(second))
        due = watches.due([0])
        looks += due
        for rank in due:
            watches.see(rank, None)
        assert len(due) == 2
    assert looks == [*range(1, 21)]


def test_a_rank_makes_progress_with_whichever_problem_it_tunes() -> None:
    watches = watched((0.0, None))
    assert watches.see(0, beat(1, {"mm/a": 0, "mm/b": 0}))
    assert watches.see(0, beat(2, {"mm/a": 0, "mm/b": 1}))
    assert not watches.see(0, beat(3, {"mm/a": 0, "mm/b": 1}))
    assert not watches.see(0, beat(4, {"mm/a": 0}))
    assert not watches.see(0, beat(4, {"mm/b": 1}))  # of another context of that process
    assert watches.see(0, beat(5, {"mm/a": 1}))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"progress": 3}', '{"progress": {"a": "b"}}'])
def test_a_damaged_sign_names_no_progress(text: str) -> None:
    assert progress_in(text) == {}
