"""Pins with fields that describe no problem: anybody may have written the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.inductor.candidates import pinned
from inductor_plugin.inductor.candidates.pinned import OfferCheck, check_offer
from inductor_plugin.problem.definition import Problem, problem_in
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.tuning.pins.check import stale
from inductor_plugin.tuning.pins.document import dump, parse
from inductor_plugin.tuning.pins.merge import compare, merge
from inductor_plugin.tuning.pins.pin import Pin, pin_file
from inductor_plugin.tuning.pins.replay import Pins
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import PinSource
from tests.support.fakes.selection import offers, pinned_to, rig
from tests.support.fakes.tasks import problem

TEMPLATE = "triton_decode"


def fields_with(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    fields = problem(device="cpu").fields()
    change(fields)
    return fields


def everywhere(**values: Any) -> dict[str, Any]:
    def change(fields: dict[str, Any]) -> None:
        for operand in (*fields["inputs"], fields["output"]):
            operand.update(values)

    return fields_with(change)


NO_PROBLEMS = [
    everywhere(size=["x", "y"], device="nonsense"),
    everywhere(size=["x", "y"]),
    everywhere(size=[10**400, 1]),
    everywhere(size=[-1, 1]),
    everywhere(size=3),
    everywhere(stride=[1]),
    everywhere(dtype=None),
    everywhere(device=["cuda"]),
    everywhere(constant="yes"),
    everywhere(offset=1.5),
    everywhere(more=1),
    fields_with(lambda fields: fields.update(op=["mm"])),
    fields_with(lambda fields: fields.update(epilogue=None)),
    fields_with(lambda fields: fields.update(arguments=[["a"]])),
    fields_with(lambda fields: fields.update(inputs={"a": 1})),
]
NO_DEVICE = everywhere(device="nonsense")
NO_OPERANDS = fields_with(lambda fields: fields["inputs"].clear())
NO_MATRICES = everywhere(size=[4], stride=[1])


def pin_of(fields: dict[str, Any]) -> Pin:
    return Pin("e", "mm", "d", "mm(8x8)", "x-1", TEMPLATE, 1.0, 3, "library", 2.0, "won", fields)


class Compiled:
    """Offers a Triton kernel, whatever it is made of."""

    name = TEMPLATE
    ops = ("mm",)

    def reject(self, problem: Problem) -> str | None:
        return None if problem.op == "mm" else "products only"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        source = TritonSource(problem.op, "text", "tiles", (), num_stages=1, num_warps=4)
        return [Candidate(TEMPLATE, "x", {}, source)]


def test_of_a_kernel_that_is_compiled_only_the_template_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Registry()
    registry.register(Compiled())
    monkeypatch.setattr(pinned, "default_registry", lambda: registry)
    pin = pin_of(problem(device="cpu").fields())
    assert check_offer(pin) == OfferCheck("", is_complete=False)
    assert check_offer(replace(pin, template="")) == OfferCheck("", is_complete=True)


def test_fields_that_were_written_by_a_compile_are_a_problem() -> None:
    known = problem(device="cpu")
    assert problem_in(known.fields()) == replace(known, target=None)


@pytest.mark.parametrize("fields", NO_PROBLEMS)
def test_fields_of_other_types_are_no_problem(fields: dict[str, Any]) -> None:
    assert problem_in(fields) is None
    assert check_offer(pin_of(fields)).reason == ""


@pytest.mark.parametrize("fields", [NO_DEVICE, NO_OPERANDS, NO_MATRICES])
def test_a_template_that_cannot_be_asked_is_a_reason(fields: dict[str, Any]) -> None:
    assert f"template '{TEMPLATE}' " in check_offer(pin_of(fields)).reason
    assert "cannot be asked" in check_offer(pin_of(NO_DEVICE)).reason


@pytest.mark.parametrize("fields", [*NO_PROBLEMS, NO_DEVICE, NO_OPERANDS, NO_MATRICES])
def test_such_a_pin_ends_no_verb_and_no_compile(fields: dict[str, Any], tmp_path: Path) -> None:
    pin = pin_of(fields)
    file = parse(dump(pin_file([pin], {"e": {"device": "none"}})))
    assert file.pins == {pin.place: pin}
    templates = {TEMPLATE: "module.Decode"}
    rows = stale(file, {"e": {}}, templates, {}, lambda pin: check_offer(pin).reason)
    assert len(rows) <= 1
    other = pin_file([replace(pin, winner="y-2")], {})
    assert len(merge([file, other]).pins) == 1
    assert compare({"a": file, "b": other})[0].is_conflict
    json.dumps(page_model([PinSource("pins", file)]), allow_nan=False)
    ticket = rig(tmp_path).plan(offers("a"))
    (place,) = pinned_to(ticket, pin.winner, TEMPLATE).pins.values()
    pins = Pins("pins.json", {place.place: replace(place, fields=fields)})
    bench = rig(tmp_path, pins, policy="pinned", pin_file="pins.json")
    assert bench.selection.decide(bench.plan(offers("a"))).winner == "library"
