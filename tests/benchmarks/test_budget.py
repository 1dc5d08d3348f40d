"""What a budget keeps of the gain, from the times of two runs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.startup.budget import check_share, kept


def problem(winner: str, **times_ms: float) -> dict[str, Any]:
    return {"winner": winner, "library": "lib", "ms": times_ms}


WHOLE = {
    "large": problem("a", lib=4.0, a=1.0),
    "small": problem("a", lib=2.0, a=1.0),
    "none": problem("lib", lib=1.0, a=2.0),
}


@pytest.mark.parametrize(
    ("winners", "share"),
    [
        ({"large": "a", "small": "a", "none": "lib"}, 1.0),
        ({"large": "a", "small": "lib", "none": "lib"}, 0.75),
        ({"large": "lib", "small": "a", "none": "a"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_gain_is_counted_with_the_times_of_the_whole_run(
    winners: dict[str, str], share: float
) -> None:
    limited = {name: problem(winner, lib=9.0) for name, winner in winners.items()}
    assert kept(WHOLE, limited) == share


def test_the_share_of_the_check_is_the_median_of_the_rounds() -> None:
    rounds = [{"whole": {"check_s": check_s, "waited_s": 4.0}} for check_s in (0.4, 4.0, 0.5)]
    assert check_share(rounds) == 0.125


def test_without_a_gain_there_is_no_share() -> None:
    assert kept({"none": problem("lib", lib=1.0, a=2.0)}, {}) is None
