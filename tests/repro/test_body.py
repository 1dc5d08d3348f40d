from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from inductor_plugin.repro.body import IMPORTS, RUN

Call = Callable[[], None]


@pytest.fixture
def body() -> dict[str, Any]:
    """The functions of a script."""
    names: dict[str, Any] = {"__name__": "script", "OPERANDS": [{"device": "cpu"}]}
    exec(compile(IMPORTS + RUN, "body", "exec"), names)
    return names


@pytest.mark.parametrize("length", [1, 2, 10, 11, 100])
def test_an_interval_holds_the_median(body: dict[str, Any], length: int) -> None:
    values = [float((7 * number) % 101) for number in range(length)]
    middle, low, high = body["interval"](values)
    assert middle == statistics.median(values)
    assert min(values) <= low <= middle <= high <= max(values)


def test_an_interval_has_ranks_of_the_binomial_distribution(body: dict[str, Any]) -> None:
    # Of 100 values, the ranks 41 and 60 (1-based, outward) hold the median with 95 %.
    assert body["interval"](range(1, 101)) == (50.5, 41, 61)


def test_calls_are_timed_in_turns(body: dict[str, Any]) -> None:
    turns: list[str] = []
    drift: Iterator[int] = count(1)

    def kernel(name: str) -> Call:
        return lambda: turns.append(name)

    calls = {name: kernel(name) for name in ("winner", "library kernel", "rival")}

    def timed(call: Call, calls_a_sample: int) -> float:
        del calls_a_sample
        call()
        # The machine gets slower all the time: in turns, the ratio is not moved by that.
        return next(drift) ** 0.1 * (2.0 if call is calls["library kernel"] else 1.0)

    body["timed"] = timed
    samples, calls_a_sample = body["bench"](calls, 0.0)
    report = body["compared"](samples["winner"], samples["library kernel"])
    assert calls_a_sample == 1
    assert report["rounds"] == 10
    assert report["low"] <= 2.0 <= report["high"]
    assert report["speedup"] == pytest.approx(2.0, rel=0.05)
    assert statistics.median(samples["rival"]) == pytest.approx(report["winner_ms"], rel=0.1)
    firsts = turns[-30::3]
    assert firsts.count("winner") == firsts.count("rival") == 5
