"""What runs, and why."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.decision import Verdict, decide, guarded, without_choice


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
    held = without_choice(won)
    assert (held.winner, held.given_up) == ("library", "a")
    assert (held.speedup, held.rejected_speedup) == (1.0, 1.5)
    assert without_choice(decide({"a": 1.0}, ["library"], 1.02)).speedup is None


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
