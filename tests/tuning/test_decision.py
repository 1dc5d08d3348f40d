"""What runs, and why."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import pytest

from inductor_plugin.tuning.decision import Gain, Verdict, decide, gain_of, guarded, of_graph
from inductor_plugin.tuning.race import sample_stats


def test_a_candidate_beyond_the_margin_replaces_the_library_kernel() -> None:
    verdict = decide({"library": 1.10, "a": 1.0}, ["library"], 1.05)
    assert (verdict.winner, verdict.library) == ("a", "library")
    assert verdict.speedup == pytest.approx(1.10)
    assert "1.100x" in verdict.reason


def test_a_candidate_below_the_margin_does_not() -> None:
    verdict = decide({"library": 1.04, "a": 1.0}, ["library"], 1.05)
    assert (verdict.winner, verdict.library) == ("library", "library")
    assert verdict.reason == (
        "the library kernel stays: a is 1.040x faster, below the margin of 1.05x"
    )
    assert (verdict.speedup, verdict.rejected_speedup) == (1.0, pytest.approx(1.04))


def test_a_candidate_exactly_at_the_margin_wins() -> None:
    assert decide({"library": 1.5, "a": 1.0}, ["library"], 1.5).winner == "a"


def test_a_library_kernel_that_is_fastest_stays() -> None:
    verdict = decide({"library": 1.0, "a": 2.0, "b": 1.25}, ["library"], 1.02)
    assert verdict == Verdict("library", "library", "the library kernel is the fastest", 1.0, 0.8)
    alone = decide({"first": 1.0, "second": 1.5}, ["first", "second"], 1.02)
    assert (alone.speedup, alone.rejected_speedup) == (1.0, None)


def test_the_fastest_of_several_library_kernels_is_the_yardstick() -> None:
    verdict = decide({"addmm": 2.0, "bias_addmm": 1.0, "a": 0.99}, ["addmm", "bias_addmm"], 1.02)
    assert (verdict.winner, verdict.library) == ("bias_addmm", "bias_addmm")


def test_a_library_kernel_that_was_not_measured_stays() -> None:
    verdict = decide({"a": 0.001}, ["first", "second"], 1.02)
    assert (verdict.winner, verdict.library, verdict.speedup) == ("first", "first", None)
    assert "not measured" in verdict.reason


def test_a_library_kernel_never_has_the_speedup_of_a_rejected_candidate() -> None:
    stays = Verdict("library", "library", "it stays", 2.21)
    assert (stays.speedup, stays.rejected_speedup) == (1.0, 2.21)
    won = decide({"library": 1.5, "a": 1.0}, ["library"], 1.02)
    assert (won.speedup, won.rejected_speedup) == (1.5, None)
    held = of_graph(won, held=True)
    assert (held.winner, held.given_up) == ("library", "a")
    assert (held.speedup, held.rejected_speedup) == (1.0, 1.5)
    assert of_graph(decide({"a": 1.0}, ["library"], 1.02), held=True).speedup is None


def test_a_decision_applies_in_a_graph_unless_that_is_slower_with_it() -> None:
    won, alone = decide({"library": 1.5, "a": 1.0}, ["library"], 1.02), decide({"a": 1.0}, [], 1.02)
    assert of_graph(won, held=False) is won
    assert of_graph(alone, held=True) is alone  # there is no library kernel


def test_without_a_library_kernel_the_fastest_runs() -> None:
    verdict = decide({"a": 2.0, "b": 1.0}, [], 1.02)
    assert (verdict.winner, verdict.library) == ("b", None)


def test_nothing_measured_and_no_library_kernel_is_no_winner() -> None:
    verdict = decide({}, [], 1.02)
    assert verdict == Verdict(None, None, "nothing was measured")


def test_in_guarded_timings_the_verdict_is_the_minimum_and_others_keep_their_order() -> None:
    medians = {"library": 1.01, "a": 1.0, "b": 1.005, "slow": 3.0}
    shown = guarded(medians, decide(medians, ["library"], 1.05))
    assert min(shown, key=shown.__getitem__) == "library"
    assert shown["library"] == 1.01
    assert shown["slow"] == 3.0
    assert 1.01 < shown["a"] < 1.0101


@pytest.mark.parametrize("winner", [None, "unknown"])
def test_timings_without_a_measured_winner_stay_as_they_are(winner: str | None) -> None:
    medians = {"a": 1.0, "b": 2.0}
    assert guarded(medians, Verdict(winner, None, "")) == medians


def test_a_gain_within_the_spread_of_the_samples_is_none():
    medians = {"library": 1.2, "a": 1.0}
    verdict = decide(medians, ["library"], 1.02, {"library": 0.3, "a": 0.2})
    assert verdict.winner == "library"
    assert verdict.reason.endswith("less than the samples vary (1.250x)")
    assert decide(medians, ["library"], 1.02, {"library": 0.2, "a": 0.1}).winner == "a"
    assert decide(medians, ["library"], 1.02, {"other": 9.0}).winner == "a"


def test_a_steady_candidate_wins_where_a_faster_one_varies_too_much() -> None:
    medians = {"library": 1.0, "noisy": 0.85, "steady": 0.9, "slower": 0.95}
    turns = {"library": [1.0] * 12, "steady": [0.9] * 12}
    verdict = decide(medians, ["library"], 1.02, {"noisy": 0.6}, (), turns)
    assert (verdict.winner, verdict.speedup) == ("steady", pytest.approx(1 / 0.9))
    spreads = {"noisy": 0.6, "steady": 0.6, "slower": 0.6}
    rejected = decide(medians, ["library"], 1.02, spreads)
    assert (rejected.winner, rejected.rejected_speedup) == ("library", pytest.approx(1 / 0.85))
    assert "noisy is 1.176x faster" in rejected.reason


MARGIN, RACES = 1.02, 200
Noise = Callable[[random.Random], tuple[float, float]]
"""Factors by which other work prolongs the two samples of a turn."""


def common(rng: random.Random) -> tuple[float, float]:
    """What prolongs a whole turn: traffic in memory, another machine on the cores."""
    turn = 1 + abs(rng.gauss(0, 0.4))
    return turn * (1 + abs(rng.gauss(0, 0.01))), turn * (1 + abs(rng.gauss(0, 0.01)))


def bursts(rng: random.Random) -> tuple[float, float]:
    """What meets a third of all samples, each by itself."""

    def factor() -> float:
        burst = rng.expovariate(2) if rng.random() < 0.3 else 0.0
        return 1 + burst + abs(rng.gauss(0, 0.01))

    return factor(), factor()


def right(noise: Noise, gain: float, *, paired: bool) -> int:
    """Return in how many races the right one of two is chosen: a candidate with this gain, if it is above the margin."""
    rng, count = random.Random(16), 0
    for _ in range(RACES):
        turns = [noise(rng) for _ in range(24)]
        samples = {"library": [gain * a for a, _ in turns], "a": [b for _, b in turns]}
        stats = {name: sample_stats(values) for name, values in samples.items()}
        verdict = decide(
            {name: each.median_ms for name, each in stats.items()},
            ["library"],
            MARGIN,
            {name: each.spread_ms / each.median_ms for name, each in stats.items()},
            (),
            samples if paired else None,
        )
        count += (verdict.winner == "a") == (gain > MARGIN)
    return count


@pytest.mark.parametrize("noise", [common, bursts])
@pytest.mark.parametrize("gain", [1.05, 1.1])
def test_turns_that_are_compared_one_by_one_are_right_oftener(noise: Noise, gain: float) -> None:
    assert right(noise, gain, paired=True) > right(noise, gain, paired=False) + RACES // 10


@pytest.mark.parametrize("noise", [common, bursts])
@pytest.mark.parametrize("gain", [0.9, 0.97, 1.0])
def test_turns_that_are_compared_one_by_one_choose_no_slower_candidate(
    noise: Noise, gain: float
) -> None:
    assert right(noise, gain, paired=True) >= RACES * 0.97


def test_a_candidate_that_was_slower_in_every_turn_never_wins() -> None:
    rng = random.Random(16)
    for _ in range(RACES):
        own = [rng.uniform(1, 9) for _ in range(rng.randrange(1, 30))]
        other = [ms * rng.uniform(1.001, 2) for ms in own]
        samples = {"library": own, "a": other}
        medians = {"library": median(own) * rng.uniform(1, 3), "a": median(other)}
        gain = gain_of(own, other)
        assert gain is not None
        assert gain.factor < 1.0
        assert decide(medians, ["library"], MARGIN, {}, (), samples).winner == "library"


def test_the_interval_of_a_gain_is_by_ranks() -> None:
    assert gain_of([1.0] * 5, []) is None
    assert gain_of([1.5] * 5, [1.0] * 5) == Gain(1.5, 0.0)
    gain = gain_of([1.1, 1.2, 1.3, 1.4, 1.5, 1.6], [1.0] * 6)
    assert gain is not None
    assert (gain.factor, gain.low) == (pytest.approx(1.35), pytest.approx(1.1))
    longer = gain_of([float(n) for n in range(1, 25)], [1.0] * 24)
    assert longer is not None
    assert (longer.factor, longer.low) == (12.5, 7.0)


def test_what_was_not_measured_in_the_same_turns_is_compared_by_medians() -> None:
    medians = {"library": 1.5, "a": 1.0, "b": 1.2}
    turns = {"library": [1.0] * 6, "a": [2.0] * 6, "b": [0.5] * 7}
    assert decide(medians, ["library"], MARGIN, {}, (), turns).winner == "b"
    assert decide(medians, ["library"], MARGIN, {}, {"a"}, turns).winner == "a"
    assert decide(medians, ["library"], MARGIN, {}, (), {"a": [2.0] * 6}).winner == "a"


def test_who_left_the_race_early_is_compared_in_the_turns_that_it_took() -> None:
    """From the second leg on all take 1.1x as long: the library kernel is no slower for that than who was out by then."""
    turns = {
        "library": [0.905] * 6 + [0.905 * 1.1] * 18,
        "b": [0.900] * 6 + [0.900 * 1.1] * 18,
        "early": [0.950] * 6,
        "once": [0.952],
    }
    medians = {name: median(samples) for name, samples in turns.items()}
    assert medians["early"] * 1.04 < medians["library"]
    verdict = decide(medians, ["library"], MARGIN, {}, (), turns)
    assert (verdict.winner, verdict.rejected_speedup) == ("library", pytest.approx(0.905 / 0.9))


def test_a_large_gain_that_the_samples_do_not_prove_has_the_candidates_name() -> None:
    spreads = {"library": 0.4, "a": 0.35}
    assert decide({"library": 1.3, "a": 1.0}, ["library"], MARGIN, spreads).unproven == "a"
    assert decide({"library": 1.04, "a": 1.0}, ["library"], MARGIN, spreads).unproven is None
    assert decide({"library": 1.3, "a": 1.0}, ["library"], 1.5).unproven is None
    assert decide({"library": 1.3, "a": 1.0}, ["library"], MARGIN).unproven is None
