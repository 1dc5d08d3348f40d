"""Who races, and until when."""

from __future__ import annotations

import math

import pytest

from inductor_plugin.tuning import race
from inductor_plugin.worker.devices.cpu import CPU
from inductor_plugin.worker.devices.cuda import CUDA


def test_the_standing_is_the_median_and_the_quartiles() -> None:
    stats = race.sample_stats([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (stats.low_ms, stats.median_ms, stats.high_ms) == (2.0, 3.0, 4.0)
    assert stats.spread_ms == 2.0


def test_one_sample_has_no_spread() -> None:
    assert race.sample_stats([2.0]) == race.SampleStats(2.0, 2.0, 2.0)
    assert race.sample_stats([2.0]).spread_ms == 0.0


def test_no_sample_has_no_standing() -> None:
    with pytest.raises(ValueError, match="without samples"):
        race.sample_stats([])


def test_candidates_close_to_the_best_are_leaders_fastest_first() -> None:
    screened = {"b": [1.2], "a": [1.0], "slow": [1.31], "edge": [1.3]}
    assert race.leaders(screened, None) == ("a", "b", "edge")


def test_a_noisy_candidate_leads_if_its_lower_quartile_is_close() -> None:
    assert race.leaders({"a": [1.0], "noisy": [1.1, 1.2, 1.5, 1.6, 1.7]}, None) == ("a", "noisy")
    assert race.leaders({"a": [1.0], "slow": [1.4, 1.4, 1.5, 1.6, 1.7]}, None) == ()


def test_who_takes_longer_than_the_lead_allows_is_no_leader() -> None:
    screened = {"a": [1.0, 1.1, 1.2], "edge": [1.43, 2.0], "slow": [1.44, 2.0], "library": []}
    assert race.lead_ms(screened.values()) == pytest.approx(1.43)
    del screened["library"]
    assert race.leaders(screened, None) == ("a", "edge")
    assert race.lead_ms([]) == math.inf


def test_there_are_few_leaders_and_the_library_kernel_is_one_of_them() -> None:
    screened = {f"c{i}": [1.0 + i / 100] for i in range(9)} | {"library": [9.0]}
    assert race.leaders(screened, "library") == ("c0", "c1", "c2", "c3", "library")


@pytest.mark.parametrize("screened", [{}, {"a": [1.0]}, {"library": [1.0]}])
def test_fewer_than_two_need_no_race(screened: dict[str, list[float]]) -> None:
    assert race.leaders(screened, "library") == ()
    assert race.contenders(screened, "library") == ()


def test_a_library_kernel_far_ahead_needs_no_race() -> None:
    assert race.leaders({"library": [1.0], "a": [2.0]}, "library") == ()


def test_a_candidate_far_ahead_still_races_the_library_kernel() -> None:
    assert race.leaders({"library": [9.0], "a": [1.0]}, "library") == ("a", "library")


def test_a_library_kernel_that_did_not_run_does_not_race() -> None:
    assert race.leaders({"a": [1.0], "b": [1.1]}, "library") == ("a", "b")


def test_who_is_beaten_beyond_the_quartiles_leaves() -> None:
    sampled = {"a": [1.0, 1.1, 1.2], "b": [1.1, 1.2, 1.3], "c": [2.0, 2.1, 2.2]}
    assert race.contenders(sampled, None) == ("a", "b")


def test_a_race_ends_when_the_leader_cannot_be_caught() -> None:
    sampled = {"a": [1.0, 1.1, 1.1], "library": [2.0, 2.1, 2.1]}
    assert race.contenders(sampled, "library") == ()


@pytest.mark.parametrize("samples", [1, 2])
def test_one_or_two_samples_end_no_race(samples: int) -> None:
    sampled = {"a": [1.0] * samples, "library": [2.0] * samples, "b": [9.0] * 3}
    assert race.contenders(sampled, "library") == ("a", "library", "b")
    assert race.contenders({name: [own[0]] * 3 for name, own in sampled.items()}, "library") == ()


def test_the_library_kernel_stays_as_the_yardstick_while_others_race() -> None:
    sampled = {"a": [1.0, 1.2, 1.2], "b": [1.0, 1.3, 1.3], "library": [2.0, 2.1, 2.1]}
    assert race.contenders(sampled, "library") == ("a", "b", "library")


def test_who_has_no_samples_is_no_contender() -> None:
    assert race.contenders({"a": [1.0], "b": [1.0], "c": []}, None) == ("a", "b")


@pytest.mark.parametrize(
    ("calm", "turns", "few"),
    [(3, 6, False), (2, 6, True), (0, 6, True), (1, 1, False), (1, 2, True), (2, 2, False)],
)
def test_a_median_needs_calm_turns(calm: int, turns: int, *, few: bool) -> None:
    assert race.too_few_calm(calm, turns) is few


def test_nobody_is_beaten_by_too_few_calm_turns() -> None:
    sampled = {"a": [1.0] * 3, "library": [2.0] * 3, "failed": []}
    assert race.contenders(sampled, "library", {}, {"library", "out"}) == ("a", "library")
    assert race.contenders(sampled, "library", {}, {"out"}) == ()
    assert race.contenders({"library": [2.0]}, "library", {}, {"library"}) == ()


@pytest.mark.parametrize(
    ("least_ms", "library_ms", "measured"),
    [
        (0.0, [1.0], True),  # nothing is known
        (2.0, [], True),  # the library kernel did not run
        (0.99, [5.0, 1.0, 0.5], True),
        (1.0, [5.0, 1.0, 0.5], False),
    ],
)
def test_who_takes_at_least_as_long_as_the_library_kernel_is_behind(
    least_ms: float, library_ms: list[float], measured: bool
) -> None:
    reason = race.beaten(least_ms, library_ms)
    assert (reason is None) is measured
    if reason:
        assert reason == "behind: it takes at least 1000.0 us, the library kernel 1000.0 us"


def test_a_gpu_is_sampled_shorter_than_a_cpu() -> None:
    for sampling in (race.screening, race.final_sampling):
        assert sampling(CUDA).min_sample_ms < sampling(CPU).min_sample_ms
        assert sampling(CPU).cold_cache
    assert race.final_sampling(CPU).samples == 1  # one sample a turn: turns interleave


def test_who_leads_only_where_the_host_launches_races_too() -> None:
    """``a`` is the fastest on the device, ``b`` where its launch counts, and no candidate is both."""
    screened = {"a": [0.005] * 5, "b": [0.009] * 5, "c": [0.05] * 5, "library": [0.01] * 5}
    launches = {"a": 0.030, "b": 0.006, "c": 0.006, "library": 0.004}
    assert set(race.leaders(screened, "library")) == {"a", "library"}
    assert set(race.leaders(screened, "library", launches)) == {"a", "b", "library"}
    noisy = {**screened, "b": [0.009, 0.010, 0.011], "library": [0.0095, 0.0105, 0.0115]}
    assert race.contenders(noisy, "library") == ()
    assert set(race.contenders(noisy, "library", launches)) == {"b", "library"}
