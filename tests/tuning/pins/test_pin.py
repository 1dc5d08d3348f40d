"""The decision about one problem, as a value."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED, held
from inductor_plugin.cache.record import GRAPH, TEMPLATE_FIELD
from inductor_plugin.tuning.pins.pin import (
    brief,
    environment_name,
    pin_file,
    pin_of,
    pin_of_record,
    template_in,
    time_of,
)
from tests.support.cache.records import decision, measured, record

KNOWN = record(measured("t.x-1", 1.23456, kind="template", name="t::x"), measured("mm-1", 2.0))


def test_a_pin_has_the_times_of_its_winner_and_of_the_library_kernel() -> None:
    pin = pin_of(KNOWN, "t.x-1", "mm-1", "why")
    assert (pin.winner, pin.winner_ms, pin.library, pin.library_ms) == ("t.x-1", 1.235, "mm-1", 2.0)
    assert (pin.samples, pin.reason, pin.place) == (4, "why", KNOWN.place)
    assert pin_of(KNOWN, "mm-1", "mm-1", "why").samples == 2
    gone = pin_of(KNOWN, "gone", None, "why")
    assert (gone.winner_ms, gone.samples, gone.library, gone.library_ms) == (None, 0, None, None)


@pytest.mark.parametrize("name", ["winner_ms", "library_ms"])
@pytest.mark.parametrize("time_ms", [math.inf, math.nan, -1.0])
def test_what_is_no_time_is_refused_by_its_name(name: str, time_ms: float) -> None:
    pin = pin_of(KNOWN, "t.x-1", "mm-1", "why")
    with pytest.raises(ValueError, match=f"{name} of a pin is {time_ms}, which is no time"):
        replace(pin, **{name: time_ms})


def test_a_time_is_of_the_type_in_which_a_file_gives_it_back() -> None:
    pin = replace(pin_of(KNOWN, "t.x-1", "mm-1", "why"), winner_ms=1, library_ms=2)
    assert [type(pin.winner_ms), type(pin.library_ms)] == [float, float]


def test_a_measurement_without_a_finite_time_has_none() -> None:
    assert time_of(measured("a", math.inf)) is None
    assert time_of(measured("a", 0.123456)) == 0.1235


def test_a_pin_keeps_the_versions_it_was_tuned_with_and_others_get_those_of_today() -> None:
    pin = pin_of(KNOWN, "t.x-1", "mm-1", "why")
    today = [("t", "module.T", "2"), ("u", "module.U", "")]
    (fresh,) = pin_file([pin], {}, today).pins.values()
    assert fresh.identities == ("module.T 2",)
    (replayed,) = pin_file([replace(pin, identities=("module.T 1",))], {}, today).pins.values()
    assert replayed.identities == ("module.T 1",)


def test_a_template_can_be_asked_again_about_a_problem_of_known_sizes_alone() -> None:
    pin = pin_of(KNOWN, "t.x-1", "mm-1", "why")
    assert (pin.template, pin.fields) == ("t", KNOWN.problem)
    assert pin_of(KNOWN, "mm-1", "mm-1", "why").fields == {}
    odd: list[dict[str, Any]] = [{"dynamic": [[0, 0]]}, {"epilogue": "relu-1"}]
    for more in odd:
        changed = replace(KNOWN, problem={**KNOWN.problem, **more})
        assert pin_of(changed, "t.x-1", "mm-1", "why").fields == {}


@pytest.mark.parametrize(
    ("fields", "template"),
    [
        ({"kind": "template", "name": "fused.t::x"}, "t"),
        ({"kind": "template", "name": "no separator"}, ""),
        ({"kind": "cpp", "name": "std::x"}, ""),
        ({"kind": "cpp", "provenance": {TEMPLATE_FIELD: "stated"}}, "stated"),
        ({"kind": "template", "name": "t::x", "provenance": {TEMPLATE_FIELD: 3}}, "t"),
    ],
)
def test_the_template_is_what_was_recorded_or_what_the_name_says(
    fields: dict[str, Any], template: str
) -> None:
    assert template_in(measured("a", **fields)) == template
    assert template_in(None) == ""


def test_a_record_without_a_valid_decision_has_no_pin() -> None:
    assert pin_of_record(KNOWN) is None
    at_fault = record(measured("bad", None, status="wrong"), decision=decision("bad"))
    assert pin_of_record(at_fault) is None
    pin = pin_of_record(replace(KNOWN, decision=replace(decision("t.x-1"), library="mm-1")))
    assert pin is not None
    assert (pin.winner, pin.library, pin.samples) == ("t.x-1", "mm-1", 4)


@pytest.mark.parametrize(
    ("winner", "choices", "pinned"),
    [
        (LIBRARY, ["b" * 64, "a" * 64], held(["a" * 64, "b" * 64]).candidate),
        (LIBRARY, [], LIBRARY),
        (TUNED, ["a" * 64], TUNED),
        (held(["a" * 64]).candidate, ["a" * 64, "b" * 64], held(["a" * 64]).candidate),
    ],
)
def test_the_pin_of_a_graph_names_the_problems_that_it_gives_up(
    winner: str, choices: list[str], pinned: str
) -> None:
    """A pin of all of them would take choices of other sizes with it."""
    provenance = {CHOICES: dict.fromkeys(choices, "a rival")}
    rows = [
        measured(TUNED, 3.0, provenance=provenance),
        *(measured(name, 2.0) for name in {winner, LIBRARY} - {TUNED}),
    ]
    graph = record(*rows, op=GRAPH, decision=replace(decision(winner), library=LIBRARY))
    pin = pin_of_record(graph)
    assert pin is not None
    assert (pin.winner, pin.library) == (pinned, LIBRARY)
    assert pin.winner_ms == (3.0 if winner == TUNED else 2.0)


def test_an_environment_is_named_in_a_few_words() -> None:
    software = {"torch": "2.14.1", "cuda": "13.0", "triton": "3.9"}
    cpu: dict[str, Any] = {"device": {"name": "Z80", "threads": 1}, "software": software}
    assert environment_name("d" * 64, cpu) == "Z80, 1 thread, torch 2.14.1, cuda 13.0"
    cpu["device"]["threads"] = 2
    assert environment_name("d" * 64, cpu).startswith("Z80, 2 threads, ")
    assert environment_name("d" * 64, {"device": "odd"}) == "environment dddddddddddd"


def test_only_a_long_text_is_abbreviated() -> None:
    assert brief({"a": {"b": "x" * 96}, "c": 5}) == {"a": {"b": "x" * 96}, "c": 5}
    assert brief("x" * 97).startswith(f"... {'x' * 48} (sha256 ")
