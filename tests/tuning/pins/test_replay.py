"""What a pin file decides, and why not."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.measurement import unmeasured
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.pins.document import dump
from inductor_plugin.tuning.pins.pin import Pin, PinFile
from inductor_plugin.tuning.pins.replay import Pins, pinned, read_pins
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import DISTURBED, NOT_CHECKED, REFUSED
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


def pin_of(environment: str, op: str = "mm", winner: str = "a") -> Pin:
    return Pin(environment, op, "d", "mm(8x8, 8x8)", winner)


def pins_of(*pins: Pin, **environments: Any) -> Pins:
    return Pins("pins.json", {pin.place: pin for pin in pins}, environments)


def test_a_pin_is_of_an_environment_an_operator_and_a_problem() -> None:
    pins = pins_of(pin_of("e", "mm"), pin_of("e", "bmm", "b"))
    assert pins.pin("e", "bmm", "d") == pin_of("e", "bmm", "b")
    assert (pins.winner("e", "mm", "d"), pins.winner("e", "bmm", "d")) == ("a", "b")
    for place in (("other", "mm", "d"), ("e", "addmm", "d"), ("e", "mm", "other")):
        assert pins.pin(*place) is None
        assert pins.winner(*place) is None
    assert pins.has("mm")
    assert pins.has("bmm")
    assert not pins.has("addmm")


def test_why_there_is_no_pin_names_the_environment_nearest_to_this_one() -> None:
    here = {"device": {"name": "Z80"}, "software": {"torch": "1.0", "triton": "2"}}
    near = {"device": {"name": "Z80"}, "software": {"torch": "0.9", "triton": "2"}}
    far = {"device": {"name": "6502"}, "software": {"torch": "0.9", "triton": "1"}}
    both = pins_of(pin_of("far"), pin_of("near"), far=far, near=near)
    why = both.absence("here", here, "mm", "d")
    assert "Z80" in why
    assert "6502" not in why
    assert why.endswith("from there to here software.torch: '0.9' -> '1.0'")
    # An environment that the file knows, but has no pin of, is no candidate.
    assert "6502" in pins_of(pin_of("far"), far=far, near=near).absence("here", here, "mm", "d")


def test_why_there_is_no_pin_is_said_in_a_few_words_where_little_is_known() -> None:
    assert pins_of().absence("here", {}, "mm", "d") == "the pin file has no pins"
    assert pins_of(pin_of("here")).absence("here", {}, "mm", "d") == "it is not in the pin file"
    unknown = pins_of(pin_of("elsewhere")).absence("here", {}, "mm", "d")
    assert unknown == "the pin file is of another environment"


def test_a_problem_whose_pin_the_file_calls_failed_runs_the_library_kernel_and_says_why(
    tmp_path: Path,
) -> None:
    """What the file does not use is no decision, either: it decides after a merge alone."""
    ticket = rig(tmp_path).plan(offers("a", "b"))
    (pin,) = pinned_to(ticket, "a").pins.values()
    failed, spare = {pin.tried: "wrong"}, (pin, replace(pin, winner="b"))
    file = tmp_path / "pins.json"
    for unused in (spare[:1], spare):
        file.write_text(dump(PinFile({}, {}, failed, {pin.place: unused})))
        pins = read_pins(str(file))
        bench = rig(tmp_path, pins, policy="pinned", pin_file=str(file))
        again = bench.plan(offers("a", "b"))
        assert again.pin is None
        verdict = bench.selection.decide(again)
        assert (verdict.winner, again.task) == ("library", None)
        assert again.unpinned == "what the pin file had for it was seen to fail: a (wrong)"
        assert again.unpinned in verdict.reason
        assert not pins.has(pin.op)


def test_a_pin_decides_beside_failures_and_decisions_that_are_not_used(tmp_path: Path) -> None:
    ticket = rig(tmp_path).plan(offers("a", "b"))
    (pin,) = pinned_to(ticket, "b").pins.values()
    other = replace(pin, winner="a", samples=99)
    file = tmp_path / "pins.json"
    file.write_text(
        dump(PinFile({pin.place: pin}, {}, {other.tried: "wrong"}, {pin.place: (other,)}))
    )
    bench = rig(tmp_path, read_pins(str(file)), policy="pinned", pin_file=str(file))
    again = bench.plan(offers("a", "b"))
    verdict = bench.selection.decide(again)
    assert (verdict.winner, verdict.reason, again.unpinned) == ("b", "pinned", "")


def ticket_of(offered: list[CandidateOffer], winner: str | None, **statuses: str) -> TuningTicket:
    """Return a problem with a pin, and measurements without samples."""
    selection: Any = None
    measured = {
        each.candidate_id: unmeasured(each, statuses[each.candidate_id], "why", {}, 0.0)
        for each in offered
        if each.candidate_id in statuses
    }
    ticket = TuningTicket(selection, problem(), "d", tuple(offered), measured, {})
    ticket.pin = None if winner is None else pin_of("e", winner=winner)
    return ticket


def test_a_pinned_candidate_that_failed_here_does_not_run_and_its_status_is_the_reason() -> None:
    ticket = ticket_of(offers("a", "b"), "a", a="raised")
    verdict = pinned(ticket, "")
    assert (verdict.winner, verdict.library) == ("library", "library")
    assert ticket.unpinned == "pinned a is not used: raised (why)"
    assert verdict.reason == f"the library kernel runs: {ticket.unpinned}"


@pytest.mark.parametrize("status", ["skipped", "pruned", "ok"])
def test_a_pinned_candidate_that_was_not_measured_here_runs(status: str) -> None:
    ticket = ticket_of(offers("a"), "a", a=status)
    assert pinned(ticket, "").winner == "a"
    assert ticket.unpinned == ""


def test_without_a_library_kernel_the_pinned_candidate_runs_though_it_failed() -> None:
    ticket = ticket_of([offer("a"), offer("b")], "b", b="crashed")
    verdict = pinned(ticket, "")
    assert (verdict.winner, verdict.library, verdict.reason) == ("b", None, "pinned")


def test_without_a_pin_and_a_library_kernel_the_first_that_has_not_failed_runs() -> None:
    three = [offer("a"), offer("b"), offer("c")]
    ticket = ticket_of(three, None, a="wrong", b="skipped")
    verdict = pinned(ticket, "it is not in the pin file")
    assert (verdict.winner, verdict.library) == ("b", None)
    assert verdict.reason == "b, offered first, runs: it is not in the pin file"
    everything_failed = ticket_of(three, None, a="wrong", b="hung", c="raised")
    assert pinned(everything_failed, "it is not in the pin file").winner is None


@pytest.mark.parametrize(
    ("void", "why"),
    [(DISTURBED, ""), (NOT_CHECKED, "its numbers were not checked here"), (REFUSED, REFUSED)],
)
def test_a_pinned_candidate_runs_if_its_numbers_are_right_here(void: str, why: str) -> None:
    ticket = ticket_of(offers("a"), "a", a="ok")
    ticket.void = {"a": void}
    assert pinned(ticket, "").winner == ("library" if why else "a")
    assert ticket.unpinned == (f"pinned a is not used: {why}" if why else "")


def test_each_problem_without_a_pin_is_warned_of_unless_the_whole_file_is_for_another_machine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for rows, absence in ((8, "it is not in the pin file"), (16, "it is not in the pin file")):
        ticket = ticket_of(offers("a"), None)
        ticket.problem = problem(rows=rows)
        pinned(ticket, absence)
    assert len(caplog.records) == 2
    for rows in (8, 16):
        ticket = ticket_of(offers("a"), None)
        ticket.problem = problem(rows=rows)
        pinned(ticket, "the pin file is of another environment")
    assert len(caplog.records) == 3
