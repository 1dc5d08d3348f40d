"""What `doctor` says of devices and templates that packages bring."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cli import devices
from inductor_plugin.device import DEVICES
from inductor_plugin.problem import Problem
from inductor_plugin.registry import GROUP, default_registry
from inductor_plugin.worker.devices import lookup
from tests.support.fakes import templates as fakes
from tests.support.fakes.devices import HERE, described
from tests.support.fakes.templates import Misnamed, Plain
from tests.support.own_device import describe


def raises(*_: object) -> Any:
    raise ValueError("no driver")


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts = {"npu": 2}
    monkeypatch.setattr(lookup.interface, "count", lambda kind: counts.get(kind, 0))  # pyright: ignore
    return counts


def test_without_any_it_says_where_to_read_how() -> None:
    finding = devices.devices()
    assert finding.state == "ok"
    assert "docs/own-device.md" in finding.detail
    assert devices.environments() == []


def test_each_is_named_with_its_software_and_its_package(two_cards: dict[str, int]) -> None:
    with described():
        origin = f"registered as {HERE}:_CHOSEN"
        finding = devices.devices()
        assert finding.state == "ok"
        assert finding.detail == (
            f"npu:0: Fake NPU, npu_driver 3 ({origin}); npu:1: Fake NPU, npu_driver 3 ({origin})"
        )
        assert [each["device"]["type"] for each in devices.environments()] == ["npu", "npu"]
        two_cards.clear()
        assert devices.devices().detail == f"no npu here ({origin})"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"facts": raises}, "facts('npu:0') raised ValueError: no driver"),
        ({"target": raises}, "target('npu:0') raised ValueError: no driver"),
        ({"timer": raises}, "timer('npu:0') raised ValueError: no driver"),
        ({"templates": raises}, "templates() raised ValueError: no driver"),
        ({"templates": lambda: [Misnamed()]}, "its name is 'Not A Name'"),
        ({"templates": lambda: [Plain(), Plain()]}, "'plain' is already registered"),
        ({"templates": lambda: 7}, "'int' object is not iterable"),
        ({"refusal": raises}, "raised ValueError: no driver"),
        ({"conditions": raises}, "conditions('npu:0') raised ValueError: no driver"),
        ({"scarcity": raises}, "scarcity('npu:0') raised ValueError: no driver"),
        ({"turn": raises}, "turn('npu:0') raised ValueError: no driver"),
    ],
)
def test_a_wrong_description_is_broken(fields: dict[str, Any], said: str) -> None:
    with described(**fields):
        finding = devices.devices()
        assert finding.state == "broken"
        assert said in finding.detail
        assert "uninstall" in finding.remedy
        assert len(devices.environments()) == (0 if {"facts", "target"} & fields.keys() else 2)
        assert DEVICES.fault("npu") == ""  # it was asked, and not given up


def test_the_guardrail_is_asked_about_a_small_product_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Problem, str]] = []

    def refusal(problem: Problem, template: str) -> str:
        asked.append((problem, template))
        return "it does not fit"

    describe(tmp_path, f"{fakes.__name__}:OTHER", "x", "kernels", GROUP)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with described(templates=lambda: [Plain()], refusal=refusal):
        assert devices.devices().state == "ok"
    assert {problem.describe() for problem, _ in asked} == {"mm(64x64, 64x64)"}
    assert {problem.output.device for problem, _ in asked} == {"npu"}
    names = [template for _, template in asked[: len(asked) // 2]]
    assert names[-2:] == ["other", "plain"]  # those of packages, and those of the device
    assert set(names) <= {*default_registry().names(), "other", "plain"}


def test_without_templates_of_packages_it_says_where_to_read_how() -> None:
    finding = devices.templates()
    assert finding.state == "ok"
    assert "docs/own-kernel.md" in finding.detail


def test_templates_that_are_offered_are_named_and_a_wrong_entry_point_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    describe(tmp_path / "fine", f"{fakes.__name__}:several", "fine", "fine", GROUP)
    describe(tmp_path / "faulty", f"{fakes.__name__}:broken", "faulty", "faulty", GROUP)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "fine"), *sys.path])
    finding = devices.templates()
    assert (finding.state, finding.detail) == ("ok", "plain, other")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "faulty"), *sys.path])
    finding = devices.templates()
    assert finding.state == "broken"
    assert f"entry point faulty = {fakes.__name__}:broken of faulty 1.0" in finding.detail
    assert "OSError: libkernels.so: cannot open shared object file" in finding.detail
    assert "uninstall" in finding.remedy
    assert "plain" not in default_registry().names()
    assert caplog.records == []  # it is said once
