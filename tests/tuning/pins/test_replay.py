"""What a pin file decides, and why not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.pins.pin import Pin
from inductor_plugin.tuning.pins.replay import Pins
from tests.support.fakes.selection import (
    offers,
    pinned_to,
    race,
    rig,
)
from tests.support.fakes.tasks import offer, problem


def test_a_pinned_winner_runs_whatever_was_measured(tmp_path: Path) -> None:
    tuned = rig(tmp_path)
    ticket = tuned.plan(offers("a", "b"))
    race(ticket, {"library": 3.0, "a": 1.0, "b": 2.0})
    pins = pinned_to(ticket, "b")
    bench = rig(tmp_path, pins, policy="pinned", pin_file="pins.json")
    again = bench.plan(offers("a", "b", "unseen"))
    assert again.task is None
    verdict = bench.selection.decide(again)
    assert (verdict.winner, verdict.reason) == ("b", "pinned")


def test_what_is_not_pinned_runs_the_library_kernel_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = rig(tmp_path, Pins("pins.json", {}), policy="pinned", pin_file="pins.json")
    ticket = bench.plan(offers("a"))
    assert bench.selection.decide(ticket).winner == "library"
    bench.selection.decide(ticket)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_what_is_not_pinned_and_has_no_library_kernel_is_no_timed_choice(
    tmp_path: Path,
) -> None:
    race(rig(tmp_path).plan([offer("a"), offer("b")]), {"a": 2.0, "b": 1.0})
    bench = rig(tmp_path, Pins("pins.json", {}), policy="pinned", pin_file="pins.json")
    assert bench.selection.decide(bench.plan([offer("a"), offer("b")])).winner == "a"


def test_a_pinned_candidate_is_offered_whatever_the_limit(tmp_path: Path) -> None:
    ticket = rig(tmp_path).plan(offers("a", "b"))
    limits: dict[str, Any] = {"policy": "pinned", "pin_file": "pins.json", "max_candidates": 1}
    bench = rig(tmp_path, pinned_to(ticket, "b"), **limits)
    assert bench.selection.decide(bench.plan(offers("a", "b"))).winner == "b"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("", "it is not offered any more"),
        ("gone", "template 'gone' is not registered"),
        ("triton_decode", "template 'triton_decode' does not offer it any more"),
    ],
)
def test_a_pin_that_is_not_offered_says_why(tmp_path: Path, template: str, why: str) -> None:
    ticket = rig(tmp_path).plan(offers("a"))
    pins = pinned_to(ticket, "b", template)
    bench = rig(tmp_path, pins, policy="pinned", pin_file="pins.json")
    again = bench.plan(offers("a"))
    verdict = bench.selection.decide(again)
    assert verdict.winner == "library"
    assert again.unpinned == f"pinned b is not used: {why}"
    assert again.unpinned in verdict.reason


def test_a_pinned_library_kernel_runs_though_it_has_failed_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would run without a pin, too: that is no reason for a warning, or for an error with `strict`."""
    ticket = rig(tmp_path).plan(offers("a"))
    race(ticket, {"a": 1.0}, failed={"library": "crashed"})
    rig(tmp_path).selection.decide(ticket)
    pins = pinned_to(ticket, "library")
    again = rig(tmp_path, pins, policy="pinned", pin_file="pins.json").plan(offers("a"))
    verdict = again.selection.decide(again)
    assert (verdict.winner, verdict.reason, again.unpinned) == ("library", "pinned", "")
    assert "no pinned decision" not in caplog.text


def test_a_pin_file_of_another_environment_says_what_differs_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"device": {"type": "cpu", "name": "Z80"}, "software": {"torch": "1.0"}}
    pin = Pin("another", "mm", "d", "mm(8x8, 8x8)", "a")
    pins = Pins("pins.json", {pin.place: pin}, {"another": fields})
    bench = rig(tmp_path, pins, policy="pinned", pin_file="pins.json")
    for device in ("cpu", "cuda"):
        ticket = bench.plan(offers("a"), product=problem(device=device))
        assert bench.selection.decide(ticket).winner == "library"
        assert "of another environment (Z80, torch 1.0)" in ticket.unpinned
    assert len(caplog.records) == 1
