"""Which pins do not apply on a machine, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.tuning.pins.check import stale
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import Pin, pin_file

HERE: dict[str, Any] = {
    "device": {"type": "cpu", "name": "Z80", "threads": 2},
    "software": {"torch": "2.14.1"},
    "numerics": {"deterministic": False},
}
PIN = Pin("e", "mm", "d", "mm(8x8)", "x-1", "rivals")
REGISTERED = {"rivals": "module.Rivals 2"}


def why(there: dict[str, Any], templates: dict[str, str] = REGISTERED, **known: Any) -> str:
    file = pin_file([PIN], {"e": there}, [("rivals", "module.Rivals", "2")])
    return "".join(reason for _, reason in stale(file, {"here": HERE}, templates, known))


def other(**tables: dict[str, Any]) -> dict[str, Any]:
    return {**HERE, **{name: {**HERE[name], **values} for name, values in tables.items()}}


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (other(software={"torch": "2.13.0"}), "software.torch: '2.13.0' -> '2.14.1'"),
        (other(device={"name": "6502"}), "device.name: '6502' -> 'Z80'"),
        (
            other(device={"threads": 8}),
            "device.threads: 8 -> 2 (a program may set that)",
        ),
        (other(device={"type": "cuda"}), "this machine has no cuda device"),
        ({}, "of which the file says nothing"),
    ],
)
def test_the_field_in_which_an_environment_differs_is_named(
    there: dict[str, Any], expected: str
) -> None:
    assert expected in why(there)


def test_a_pin_of_this_machine_with_its_template_applies() -> None:
    file = pin_file([PIN], {"e": HERE}, [("rivals", "module.Rivals", "2")])
    assert stale(file, {"e": HERE}, REGISTERED, {}) == []


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ({}, "template 'rivals' is not registered"),
        (
            {"rivals": "module.Rivals 3"},
            "template 'rivals' is module.Rivals 3 here, and was module.Rivals 2",
        ),
    ],
)
def test_a_template_that_is_gone_or_another_one_is_named(
    templates: dict[str, str], expected: str
) -> None:
    file = pin_file([PIN], {"e": HERE}, [("rivals", "module.Rivals", "2")])
    assert stale(file, {"e": HERE}, templates, {}) == [(*file.pins.values(), expected)]


def test_a_pin_of_an_earlier_version_is_named_beside_those_of_this_one() -> None:
    old, new = PIN, replace(PIN, digest="d2")
    parts = [
        pin_file([pin], {"e": HERE}, [("rivals", "module.Rivals", version)])
        for pin, version in ((old, "1"), (new, "2"))
    ]
    ((pin, reason),) = stale(merge(parts), {"e": HERE}, REGISTERED, {})
    assert pin.digest == old.digest
    assert reason == "template 'rivals' is module.Rivals 2 here, and was module.Rivals 1"


def test_a_long_text_of_an_environment_is_compared_though_it_is_abbreviated() -> None:
    text = "a compiler that says much of itself, " * 9
    there = other(software={"cpp": text})
    assert "software.cpp" in why(there)
    same = pin_file([PIN], {"e": there})
    assert len(str(same.environments["e"]["software"]["cpp"])) < len(text)
    changed = other(software={"cpp": f"{text}!"})
    assert "software.cpp" in stale(same, {"here": changed}, REGISTERED, {})[0][1]


def test_an_environment_that_the_file_does_not_describe_is_looked_up() -> None:
    file = pin_file([PIN], {})
    known = {"e": other(software={"torch": "2.13.0"})}
    ((_, reason),) = stale(file, {"here": HERE}, REGISTERED, known)
    assert "software.torch" in reason


def test_only_where_all_that_differs_is_set_by_a_program_is_that_said() -> None:
    assert "a program may set that" in why(other(numerics={"deterministic": True}))
    both = why(other(device={"threads": 8}, software={"torch": "2.13.0"}))
    assert "device.threads: 8 -> 2" in both
    assert "a program may set that" not in both


def test_of_several_devices_of_a_kind_the_nearest_is_named() -> None:
    far = other(device={"name": "6502", "threads": 1}, software={"torch": "1.0"})
    there = other(software={"torch": "2.13.0"})
    file = pin_file([PIN], {"e": there}, [("rivals", "module.Rivals", "2")])
    for order in (("far", "near"), ("near", "far")):
        machines = {name: {"far": far, "near": HERE}[name] for name in order}
        ((_, reason),) = stale(file, machines, REGISTERED, {})
        assert reason.endswith("from there to here software.torch: '2.13.0' -> '2.14.1'")


def test_a_file_that_says_nothing_of_a_template_takes_any_version_of_it() -> None:
    assert stale(pin_file([PIN], {"e": HERE}), {"e": HERE}, REGISTERED, {}) == []
    without = pin_file([replace(PIN, template="")], {"e": HERE})
    assert stale(without, {"e": HERE}, {}, {}) == []


def test_who_is_not_offered_any_more_is_asked_of_pins_of_this_machine_alone() -> None:
    elsewhere = replace(PIN, environment="f", op="bmm")
    first = replace(PIN, op="addmm")
    file = pin_file([PIN, elsewhere, first], {"e": HERE, "f": other(device={"type": "cuda"})})
    rows = stale(file, {"e": HERE}, REGISTERED, {}, lambda pin: f"not {pin.winner}")
    assert rows == [
        (first, "not x-1"),
        (PIN, "not x-1"),
        (elsewhere, "this machine has no cuda device"),
    ]
