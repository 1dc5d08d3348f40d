"""What a launch costs the host counts, unless a CUDA graph launches."""

from __future__ import annotations

import math

import pytest

from inductor_plugin.cost.host import costs, host_ms, sample_costs
from inductor_plugin.tuning.decision import Verdict, decide, explained


def test_a_call_costs_the_longer_of_device_and_host() -> None:
    assert costs({"a": 0.008, "b": 0.030}, {"a": 0.020, "b": 0.005}) == {"a": 0.020, "b": 0.030}


@pytest.mark.parametrize("launches", [{}, {"b": 0.04}, {"a": 0.0, "b": 0.04}])
def test_where_a_launch_is_not_known_of_what_may_be_the_best_the_device_decides(
    launches: dict[str, float],
) -> None:
    device = {"a": 0.008, "b": 0.030}
    assert costs(device, launches) == device


def test_what_cannot_be_the_best_needs_no_launch() -> None:
    """A slow kernel of which nothing is known changes no decision among the others."""
    device = {"a": 0.008, "b": 0.009, "slow": 0.5}
    assert costs(device, {"a": 0.020, "b": 0.005}) == {"a": 0.020, "b": 0.009, "slow": 0.5}


def test_of_samples_each_costs_at_least_its_launch() -> None:
    samples = {"a": (0.008, 0.025), "b": (0.030,)}
    assert sample_costs(samples, {"a": 0.020, "b": 0.005}) == {"a": (0.020, 0.025), "b": (0.030,)}


@pytest.mark.parametrize("value", [None, "0.02", -1.0, 0, math.nan])
def test_what_is_no_time_is_not_known(value: object) -> None:
    assert host_ms({} if value is None else {"host_ms": value}) == 0.0


def test_a_reason_names_what_only_the_device_would_have_chosen() -> None:
    device, launches = {"library": 0.009, "a": 0.008}, {"library": 0.005, "a": 0.020}
    on_device = decide(device, ["library"], 1.02)
    by_cost = decide(costs(device, launches), ["library"], 1.02)
    assert (on_device.winner, by_cost.winner) == ("a", "library")
    reason = explained(by_cost, on_device, launches).reason
    assert reason.endswith("a is faster on the device, but its launch takes the host 20.0 us")


def test_a_decision_that_the_device_would_make_too_keeps_its_reason() -> None:
    verdict = Verdict("a", "library", "2x faster", 2.0)
    assert explained(verdict, verdict, {"a": 0.02}) is verdict
