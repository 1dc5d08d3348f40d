"""When a tuned graph counts as slower, and which of its choices are given up."""

from __future__ import annotations

import itertools

import pytest

from inductor_plugin.inductor.guard.comparison import MOST_RUNS, Comparison, search
from inductor_plugin.worker.graph_job import FEWEST_TURNS

MARGIN = 1.02


@pytest.mark.parametrize(
    ("tuned_ms", "library_ms", "slower"),
    [
        ((1.0,) * 5, (1.0,) * 5, False),
        ((1.1,) * 5, (1.0,) * 5, True),
        ((0.9,) * 5, (1.0,) * 5, False),
        ((1.01,) * 5, (1.0,) * 5, False),  # within the margin
        ((1.5, 1.5, 0.5, 0.5, 1.5), (1.0,) * 5, False),  # by chance
        # a machine that is slow at times
        ((5.5, 1.1, 1.1, 11.0, 1.1), (5.0, 1.0, 1.0, 10.0, 1.0), True),
        ((9.0,) * 4, (1.0,) * 4, False),  # a few turns say nothing
    ],
)
def test_it_is_slower_in_most_turns_by_the_margin(
    tuned_ms: tuple[float, ...], library_ms: tuple[float, ...], *, slower: bool
) -> None:
    assert Comparison(tuned_ms, library_ms).is_slower(MARGIN) is slower
    assert not Comparison(tuned_ms, library_ms, disturbed=True).is_slower(MARGIN)


def test_it_is_firm_if_enough_turns_were_calm() -> None:
    assert Comparison((1.0,) * FEWEST_TURNS, (1.0,) * FEWEST_TURNS).is_firm
    assert not Comparison((1.0,) * FEWEST_TURNS, (1.0,) * FEWEST_TURNS, disturbed=True).is_firm
    assert not Comparison((1.0,) * (FEWEST_TURNS - 1), (1.0,) * (FEWEST_TURNS - 1)).is_firm


@pytest.mark.parametrize(
    ("tuned_ms", "fast"),
    [
        ((1.0,) * 5, True),
        ((1.001,) * 5, False),
        ((1.5, 1.5, 0.5, 0.5, 0.5), True),
        ((0.5,) * 4, False),
    ],
)
def test_it_is_as_fast_only_if_the_turns_say_so(tuned_ms: tuple[float, ...], fast: bool) -> None:
    library_ms = (1.0,) * len(tuned_ms)
    assert Comparison(tuned_ms, library_ms).is_as_fast is fast
    assert not Comparison(tuned_ms, library_ms, disturbed=True).is_as_fast


def test_the_speedup_is_that_of_most_turns() -> None:
    assert Comparison((1.0, 2.0, 1.0), (2.0, 4.0, 9.0)).speedup == 2.0


@pytest.mark.parametrize("count", range(1, 6))
def test_what_is_left_is_never_slower(count: int) -> None:
    """Whatever choices are to blame, and however few compiles there are."""
    suspects = [str(index) for index in range(count)]
    for size in range(1, count + 1):
        for guilty in itertools.combinations(suspects, size):
            for runs in range(MOST_RUNS + 1):
                tried: list[frozenset[str]] = []

                def is_fast(
                    given_up: frozenset[str],
                    guilty: tuple[str, ...] = guilty,
                    tried: list[frozenset[str]] = tried,
                ) -> bool:
                    tried.append(given_up)
                    return given_up.issuperset(guilty)

                given_up = search(suspects, is_fast, runs)
                assert given_up.issuperset(guilty)
                assert len(tried) <= runs
                assert given_up in tried or given_up == set(suspects)


def test_what_the_first_half_gives_up_stays_given_up() -> None:
    tried: list[str] = []

    def is_fast(given_up: frozenset[str]) -> bool:
        tried.append("".join(sorted(given_up)))
        return given_up >= {"a", "c"}

    assert search("abcd", is_fast) == set("abc")
    assert tried == ["ab", "cd", "abc"]


@pytest.mark.parametrize("guilty", "abcd")
def test_one_of_four_is_found_in_four_compiles(guilty: str) -> None:
    assert search("abcd", lambda given_up: guilty in given_up) == {guilty}
