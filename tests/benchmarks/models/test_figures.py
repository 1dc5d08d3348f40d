"""The figures of the benchmark of whole networks: ratios, intervals, verdicts, means and claims."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from benchmarks.models.figures import (
    LOOKS,
    OPEN,
    SLOWER,
    WITHIN,
    by_configuration,
    claims,
    interval,
    is_settled,
    ratios,
    summary,
    verdict,
)
from benchmarks.models.plan import Run

GUARD = {"problems": 3, "first_call_s": 10.0, "guard_s": 0.5} | {
    "graphs_compared": 1,
    "graphs_reduced": 0,
    "graphs_left_out": 2,
}


def test_ratios_are_those_of_each_round() -> None:
    """The machine was slower in the second round, for all alike."""
    launch = {"plain": [2, 20, 2], "stock": [1, 10, 1], "ours": [1, 10, 1]}
    row = ratios([launch, launch])
    assert row["to_plain"] == {"median": 0.5, "low": 0.5, "high": 0.5, "verdict": WITHIN}
    assert row["to_stock"]["median"] == 1.0
    assert row["stock_to_plain"]["median"] == 0.5


def test_an_arm_that_failed_in_a_launch_has_no_ratio() -> None:
    whole = {"plain": [2.0], "stock": [1.0], "ours": [1.0]}
    assert list(ratios([whole, {"plain": [2.0], "ours": [1.0]}])) == ["to_plain"]
    assert ratios([]) == {}
    assert ratios([{}]) == {}


def test_an_interval_holds_its_figure_and_grows_with_the_spread() -> None:
    calm, wild = interval([[1.0], [1.01], [0.99]]), interval([[1.0], [1.5], [0.5]])
    for each in (calm, wild):
        assert each["low"] <= each["median"] <= each["high"]
    assert wild["high"] - wild["low"] > calm["high"] - calm["low"]


def test_processes_that_differ_widen_the_interval_whatever_their_rounds() -> None:
    alike, apart = interval([[1.0] * 60] * 3), interval([[0.97] * 60, [1.0] * 60, [1.03] * 60])
    assert (alike["low"], alike["high"], alike["verdict"]) == (1.0, 1.0, WITHIN)
    # t of two degrees of freedom times the standard error 0.03 / sqrt(3), of logarithms
    assert apart["high"] == pytest.approx(math.exp(6.205 * 0.03 / 3**0.5), abs=2e-3)
    assert (apart["low"] * apart["high"], apart["verdict"]) == (pytest.approx(1.0, abs=2e-3), OPEN)
    lone = interval([[1.0] * 60])
    assert (lone["low"], lone["high"], lone["verdict"]) == (0.0, None, OPEN)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of 2,000 networks with launches that differ by 1.5 %, looked at twice as the command does."""
    drawn, held = random.Random(1), 0
    for _ in range(2000):
        launches = [[1.01 * math.exp(drawn.gauss(0, 0.015))] for _ in range(LOOKS[-1])]
        first = interval(launches[: LOOKS[0]])
        last = interval(launches) if first["verdict"] == OPEN else first
        held += last["low"] <= 1.01 <= last["high"]
    assert held >= 0.95 * 2000


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.9, 1.02, WITHIN), (1.01, 1.03, OPEN), (1.021, 1.03, SLOWER)]
)
def test_a_verdict_is_that_of_the_interval(low: float, high: float, said: str) -> None:
    assert verdict(low, high) == said
    figure = {"verdict": said}
    assert is_settled({"to_plain": figure}) is (said != OPEN)
    assert is_settled({"stock_to_plain": figure})  # nothing is claimed of it


def row(
    network: str, of: Run, low: float, median: float, high: float, problems: int = 3
) -> dict[str, Any]:
    ratio = {"median": median, "low": low, "high": high, "verdict": verdict(low, high)}
    return {
        "configuration": of.configuration,
        "network": network,
        "tuning": {"ours": GUARD | {"problems": problems}},
        "later_guard_s": 0.25,
        "to_plain": ratio,
    }


def test_configurations_are_summed_up_and_judged_each_for_itself() -> None:
    busy, quiet = Run("", load="2 busy"), Run("")
    rows = [
        row("slow", busy, 1.03, 1.04, 1.05),
        row("fast", quiet, 0.49, 0.5, 0.51),
        row("same", quiet, 1.0, 1.0, 1.0),
        row("unsure", quiet, 0.98, 1.01, 1.03),
        row("nothing to choose", quiet, 0.8, 0.8, 0.8, problems=0),
    ]
    figures = by_configuration(rows)
    assert [each["name"] for each in figures] == [busy.configuration, quiet.configuration]
    ratio = figures[1]["to_plain"]
    assert ratio["mean"] == pytest.approx((0.5 * 1.01) ** (1 / 3), rel=1e-3)
    assert ratio["low"] < ratio["mean"] < ratio["high"]
    assert ratio["without_the_fastest"] == pytest.approx(1.01**0.5, rel=1e-3)
    assert (ratio["slower"], ratio["open"], ratio["largest"]) == ([], ["unsure"], 1.01)
    assert (figures[1]["networks"], figures[1]["without_choices"]) == (4, ["nothing to choose"])
    assert (figures[1]["guard_s"], figures[1]["guard_share"]) == (2.0, 0.05)
    assert (figures[1]["later_guard_s"], figures[1]["graphs_left_out"]) == (1.0, 8)
    assert summary(figures) == {"to_plain": ratio["mean"], "largest_to_plain": 1.01}
    assert summary([]) == {}
    assert summary(figures[:1])["largest_to_plain"] == 1.04
    said = {each["name"]: (each["none_slower"], each["mean_at_most_1"]) for each in claims(figures)}
    assert said == {
        f"{busy.configuration}: to_plain": (False, False),
        f"{quiet.configuration}: to_plain": (None, True),
    }


def test_where_there_is_nothing_to_choose_no_mean_is_claimed() -> None:
    (figure,) = by_configuration([row("fixed", Run(""), 0.89, 0.89, 0.9, problems=0)])
    (claim,) = claims([figure])
    assert (claim["mean"], claim["mean_at_most_1"], claim["none_slower"]) == (None, None, True)


def test_a_guard_that_compared_nothing_costs_nothing_and_shows_nothing() -> None:
    idle = {**GUARD, "guard_s": 0.0, "graphs_compared": 0}
    rows = [row("fast", Run(""), 0.49, 0.5, 0.51)]
    rows[0] |= {"tuning": {"ours": idle, "guarded": idle}, "guarded_to_plain": rows[0]["to_plain"]}
    *_, guard = claims(by_configuration(rows))
    assert (guard["compares"], guard["none_slower"], guard["mean_at_most_1"]) == (False, None, None)
    rows[0]["tuning"] = {"ours": idle, "guarded": GUARD}
    *_, guard = claims(by_configuration(rows))
    assert (guard["compares"], guard["none_slower"], guard["mean_at_most_1"]) == (True, True, True)
