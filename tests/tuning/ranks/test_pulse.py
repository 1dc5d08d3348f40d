"""Signs of life, as another rank sees them."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.ranks.pulse import RankWatch, beat, progress_in


def test_a_rank_is_silent_from_its_last_new_sign_of_life() -> None:
    watch = RankWatch(since=0.0)
    for second in range(5):
        watch.see(beat(second, {}), float(second))
    for second in range(5, 9):
        watch.see(beat(4, {}), float(second))
    assert watch.silent_s(8.0) == 4.0


def test_a_rank_without_any_sign_is_silent_from_the_first_look() -> None:
    watch = RankWatch(since=10.0)
    for second in range(10, 14):
        assert not watch.see(None, float(second))
    assert watch.silent_s(13.0) == 3.0


def test_time_in_which_nobody_looked_is_little_silence() -> None:
    watch = RankWatch(since=0.0)
    watch.see(beat(1, {}), 0.0)
    watch.see(beat(1, {}), 300.0)  # this process was stopped, or waited for nothing
    assert watch.silent_s(301.0) == 6.0


def test_a_dead_rank_is_silent_where_looks_are_far_apart() -> None:
    watch = RankWatch(since=0.0)
    for look in range(13):  # the store takes seconds
        watch.see(beat(1, {}), 6.0 * look)
    assert watch.silent_s(72.0) == 60.0


def test_a_rank_that_was_given_up_is_silent_until_it_gives_a_sign_of_life() -> None:
    watch = RankWatch(since=0.0)
    watch.see(beat(1, {}), 0.0)
    watch.given_up = True
    watch.see(beat(1, {}), 300.0)
    assert watch.silent_s(300.0) == 300.0
    watch.see(beat(2, {}), 301.0)
    assert (watch.silent_s(302.0), watch.given_up) == (1.0, False)


def test_a_rank_makes_progress_with_whichever_problem_it_tunes() -> None:
    watch = RankWatch(since=0.0)
    assert watch.see(beat(1, {"mm/a": 0, "mm/b": 0}), 0.0)
    assert watch.see(beat(2, {"mm/a": 0, "mm/b": 1}), 1.0)
    assert not watch.see(beat(3, {"mm/a": 0, "mm/b": 1}), 2.0)
    assert not watch.see(beat(4, {"mm/a": 0}), 3.0)
    assert not watch.see(beat(4, {"mm/b": 1}), 3.5)  # of another context of that process
    assert watch.see(beat(5, {"mm/a": 1}), 4.0)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"progress": 3}', '{"progress": {"a": "b"}}'])
def test_a_damaged_sign_names_no_progress(text: str) -> None:
    assert progress_in(text) == {}
