"""Templates of devices that packages describe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.device import Devices, DeviceSource
from inductor_plugin.problem import Problem
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate
from inductor_plugin.worker.devices.templates import add_templates
from tests.support.fakes import devices as fakes
from tests.support.fakes import templates
from tests.support.fakes.devices import described
from tests.support.own_device import describe
from tests.support.warned import forget


class Product:
    """A template that has nothing to offer."""

    ops = ("mm",)

    def __init__(self, name: str) -> None:
        self.name = name

    def reject(self, problem: Problem) -> str | None:
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return ()


@pytest.fixture
def devices() -> Devices:
    forget()
    return Devices(lambda: [DeviceSource("npu", f"{fakes.HERE}:_CHOSEN", "entry point npu")])


def test_the_templates_of_a_device_are_registered_once(devices: Devices) -> None:
    asked: list[int] = []

    def templates() -> list[Any]:
        asked.append(1)
        return [Product("npu_fast"), Product("npu_wide")]

    registry = Registry()
    with described(templates=templates):
        add_templates(registry, devices)
        add_templates(registry, devices)
    assert registry.names() == ("npu_fast", "npu_wide")
    assert asked == [1]


def test_templates_that_installed_packages_bring_are_registered_too(
    devices: Devices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path, f"{templates.__name__}:several", "x", "kernels", "inductor_plugin.templates")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry = Registry()
    with described(templates=lambda: [Product("npu_fast")]):
        add_templates(registry, devices)
        add_templates(registry, devices)
    assert registry.names() == ("plain", "other", "npu_fast")


def unavailable() -> list[Any]:
    raise OSError("no kernels for this driver")


@pytest.mark.parametrize(
    ("templates", "said"),
    [
        (lambda: [Product("Not A Name")], "its name is 'Not A Name'"),
        (lambda: [Product("npu_fast"), Product("npu_fast")], "'npu_fast' is already registered"),
        (lambda: 7, "'int' object is not iterable"),
        (unavailable, "templates() raised OSError: no kernels for this driver"),
    ],
)
def test_a_device_whose_templates_are_wrong_is_left_to_inductor(
    devices: Devices, templates: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with described(templates=templates):
        add_templates(Registry(), devices)
        assert devices.get("npu") is None
    assert said in devices.fault("npu")
    assert len(caplog.records) == 1
