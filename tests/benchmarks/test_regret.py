"""What the benchmark of choices makes of samples and choices."""

from __future__ import annotations

import pytest

from benchmarks.choices.regret import costs, paired_ratio, regret
from benchmarks.harness.load import LOADS, load


def test_the_ratio_is_that_of_the_same_turns() -> None:
    """The second half was measured at half the clock: in each turn the first takes twice as long."""
    first, second = [2.0] * 20 + [4.0] * 20, [1.0] * 20 + [2.0] * 20
    assert paired_ratio(first, second) == (2.0, 2.0, 2.0)
    ratio, low, high = paired_ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert low < ratio == 3.0 < high


def test_a_choice_costs_what_it_takes_more_than_the_fastest() -> None:
    reference = costs(
        {
            "a": {"samples_ms": {"library": [3.0] * 9, "rival": [2.0] * 9}},
            "b": {"samples_ms": {"library": [1.0] * 9, "rival": [1.01] * 9}},
            "alone": {"samples_ms": {"library": [1.0] * 9}},
        }
    )
    assert reference.keys() == {"a", "b"}
    assert (reference["a"]["library"], reference["a"]["rival"]) == (1.5, 1.0)
    tuning = {
        "a": {"choice": "library", "firm": False},
        "b": {"choice": "rival", "firm": True},
        "alone": {"choice": "library", "firm": True},
    }
    facts = regret([tuning], reference)
    assert facts["choices"] == 2
    assert facts["near_the_fastest"] == 0.5
    assert (facts["firm"], facts["firm_near_the_fastest"]) == (1, 1.0)
    assert facts["most_time"] == 1.5
    assert facts["mean_time"] == pytest.approx((1.5 * 1.01) ** 0.5, rel=1e-3)
    assert regret([], reference) == {"choices": 0}


def test_a_load_ends_with_its_block() -> None:
    with load("2 busy"):
        pass
    with load("quiet"):
        pass
    assert len(LOADS["4 busy"]) == 4
