from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import replace

import pytest

from inductor_plugin.tuning.report.regret import (
    Regret,
    interval,
    losses,
    regret,
    rivals,
    row,
    summary,
    text,
)
from tests.support.cache.records import decision, measured, record


def test_rivals_are_the_other_candidates_that_may_be_faster() -> None:
    decided = record(
        measured("winner", 1.0),
        measured("close", 1.2),
        measured("closer", 0.9),
        measured("far", 2.1),
        measured("library", 5.0),
        measured("wrong", 0.5, status="wrong"),
        measured("pruned", None, status="pruned"),
        decision=replace(decision("winner"), library="library"),
    )
    assert rivals(decided) == ["closer", "close", "library"]


def test_a_median_that_other_work_has_prolonged_leaves_no_rival_out() -> None:
    """A disturbed one is 8 times as long; other work only prolongs samples, so the shortest tells."""
    disturbed = {"disturbed": True}
    decided = record(
        measured("winner", 1.0),
        measured("lucky", 8.0, samples_ms=(1.1, 8.0, 9.0)),
        measured("unlucky", 8.0, samples_ms=(7.0, 8.0, 9.0), provenance=disturbed),
        measured("far", 8.0, samples_ms=(7.5, 8.0, 9.0)),
        decision=decision("winner"),
    )
    assert rivals(decided) == ["lucky", "unlucky"]


def test_without_a_valid_decision_there_are_no_rivals() -> None:
    rows = (measured("winner", 1.0), measured("other", 1.0))
    assert rivals(record(*rows)) == []
    assert rivals(record(*rows, decision=decision("gone"))) == []
    at_fault = measured("winner", 1.0, status="wrong")
    assert rivals(record(at_fault, rows[1], decision=decision("winner"))) == []


def test_the_fastest_seven_rivals_are_timed() -> None:
    rows = [measured(f"rival{number}", 1.0 + number / 100) for number in range(20)]
    decided = record(measured("winner", 1.0), *reversed(rows), decision=decision("winner"))
    assert rivals(decided) == [f"rival{number}" for number in range(7)]


def test_a_faster_candidate_is_regretted_whatever_the_drift() -> None:
    drift = [1.0 + turn / 10 for turn in range(40)]
    comparison = regret(
        "winner", {"winner": [1.25 * d for d in drift], "rival": drift, "x": [9.0] * 40}
    )
    assert (comparison.winner, comparison.fastest, comparison.timed) == ("winner", "rival", 3)
    assert comparison.ratio == comparison.low == comparison.high == pytest.approx(1.25)
    assert comparison.lost_ms == pytest.approx(comparison.winner_ms / 5)
    assert not comparison.near


def test_a_winner_that_is_the_fastest_has_no_regret() -> None:
    comparison = regret("winner", {"rival": [1.5] * 12, "winner": [1.0] * 12})
    assert (comparison.fastest, comparison.ratio, comparison.lost_ms, comparison.near) == (
        "winner",
        1.0,
        0.0,
        True,
    )
    same = regret("winner", {"rival": [1.0] * 12, "winner": [1.0] * 12})
    assert same.fastest == "winner"


def test_the_luck_of_the_luckiest_of_many_equal_candidates_is_no_regret() -> None:
    chance = random.Random(0)
    regretted = 0
    for _ in range(200):
        names = ["winner", *(f"rival{number}" for number in range(7))]
        comparison = regret(
            "winner", {name: [chance.gauss(1.0, 0.1) for _ in range(20)] for name in names}
        )
        assert comparison.ratio >= 1.0
        regretted += not (comparison.near or comparison.unclear)
    assert regretted <= 4  # 18 where the fastest is found by the turns that compare it


@pytest.mark.parametrize("length", [6, 7, 10, 11, 100])
def test_an_interval_holds_the_median(length: int) -> None:
    values = [float((7 * number) % 101) for number in range(length)]
    middle, low, high = interval(values)
    assert middle == statistics.median(values)
    assert min(values) <= low <= middle <= high <= max(values)


def test_an_interval_has_the_ranks_of_the_binomial_distribution() -> None:
    assert interval(range(1, 101)) == (50.5, 41, 61)
    assert interval([3.0, 1.0, 2.0, 4.0, 5.0, 6.0]) == (3.5, 1.0, 6.0)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_few_values_have_no_interval(length: int) -> None:
    """Between the least and the largest of five lies the median with 94 %, of two with 50 %."""
    assert interval([3.0] * length) == (3.0, 0.0, math.inf)


@pytest.mark.parametrize("rival_ms", [0.5, 1.0, 1.005, 2.0])
def test_of_few_turns_it_is_unclear_whether_a_winner_is_near_the_fastest(rival_ms: float) -> None:
    for turns, is_known in ((4, False), (11, False), (12, True)):
        few = regret("winner", {"winner": [1.0] * turns, "rival": [rival_ms] * turns})
        assert few.unclear is not is_known
        assert few.near is (is_known and rival_ms > 0.9)
        line = row(record(measured("winner"), decision=decision("winner")), few)
        assert (line["high"] is not None) is is_known
        json.dumps(line, allow_nan=False)
        shown = text([line], [], 0).splitlines()[1].split()[3]
        assert (shown == "-") is not is_known
    assert few.ratio == max(1.0, 1.0 / rival_ms)


def test_a_difference_that_may_be_chance_is_unclear_and_not_near() -> None:
    ratios = [1.11, 0.83, 1.11]
    rival = [sample for ratio in ratios * 2 for sample in (0.9, 1.0 / ratio)]
    noisy = regret("winner", {"winner": [1.0] * 12, "rival": rival})
    assert (noisy.fastest, noisy.ratio) == ("rival", pytest.approx(1.11))
    assert noisy.low < 1.0
    assert (noisy.near, noisy.unclear) == (False, True)
    slow = regret("winner", {"winner": [1.0] * 12, "rival": [0.9] * 12})
    assert (slow.near, slow.unclear) == (False, False)
    said = text([row(record(measured("winner"), decision=decision("winner")), noisy)], [], 0)
    assert (
        "0 of 1 winners are within 2% of the fastest (95 %: 0% to 79%), of 1 others it is unclear; one"
        in said
    )


def test_the_summary_adds_up_what_is_lost() -> None:
    decided = record(measured("winner", 1.0), decision=decision("winner"))
    noisy = record(measured("winner", 1.0, spread_ms=2.0), problem=2, decision=decision("winner"))
    slow = regret("winner", {"winner": [3.0] * 12, "rival": [1.0] * 12})
    fast = regret("winner", {"winner": [1.0] * 12, "rival": [2.0] * 12})
    rows = [row(decided, fast), row(noisy, slow, ["gone"])]
    assert summary(rows) == {
        "timed": 2,
        "near": 1,
        "near_low": pytest.approx(0.0945, abs=0.001),
        "near_high": pytest.approx(0.9055, abs=0.001),
        "unclear": 0,
        "firm": 1,
        "firm_near": 1,
        "total_ms": 4.0,
        "lost_ms": 2.0,
        "ratio": 2.0,
    }
    assert summary([])["ratio"] == 1.0
    said = text(rows, [("mm(2x2)", "it failed")], 3)
    first, second = said.splitlines()[1:3]
    assert "3.000x  3.000-3.000  winner  rival" in first
    assert "noisy" in first
    assert "1.000x" in second
    assert "not timed: mm(2x2): it failed" in said
    assert "not timed: gone of " in said
    assert (
        "1 of 2 winners are within 2% of the fastest (95 %: 9% to 91%); one call of each takes 4 ms, 2 ms"
        in said
    )
    assert "3 records have one candidate" in said


def test_a_model_loses_what_its_problems_lose() -> None:
    decided = [
        record(measured("winner"), problem=n, decision=decision("winner")) for n in range(1, 4)
    ]
    slow = regret("winner", {"winner": [3.0] * 12, "rival": [1.0] * 12})
    fast = regret("winner", {"winner": [1.0] * 12, "rival": [2.0] * 12})
    rows = [row(decided[0], slow), row(decided[1], fast)]
    first, second, third = (each.place for each in decided)
    groups = {"none": [third], "fast": [second, third], "both": [first, second, first]}
    models = losses(rows, groups)
    assert models == [
        {"name": "both", "timed": 2, "total_ms": 4.0, "lost_ms": 2.0, "ratio": 2.0},
        {"name": "fast", "timed": 1, "total_ms": 1.0, "lost_ms": 0.0, "ratio": 1.0},
    ]
    assert "both: 2 problems, 2 of 4 ms lost" in text(rows, [], 0, models)


def test_at_its_limit_a_choice_is_near_and_a_candidate_a_rival() -> None:
    two_percent = Regret("winner", "rival", 1.0, 1.02, 1.01, 1.03, 2)
    assert (two_percent.near, two_percent.unclear) == (True, False)
    assert replace(two_percent, ratio=1.021, low=1.0).unclear
    assert not replace(two_percent, ratio=1.021).unclear
    decided = record(measured("winner", 1.0), measured("twice", 2.0), decision=decision("winner"))
    assert rivals(decided) == ["twice"]


def test_models_that_lose_the_same_are_listed_by_name() -> None:
    decided = record(measured("winner"), decision=decision("winner"))
    slow = regret("winner", {"winner": [3.0] * 12, "rival": [1.0] * 12})
    models = losses([row(decided, slow)], {name: [decided.place] for name in "bca"})
    assert [each["name"] for each in models] == ["a", "b", "c"]
