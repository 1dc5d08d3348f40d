"""What `doctor` says of devices that packages describe."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.cli import devices
from inductor_plugin.worker.devices import lookup
from tests.support.fakes.devices import HERE, described


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
    ],
)
def test_a_wrong_description_is_broken(fields: dict[str, Any], said: str) -> None:
    with described(**fields):
        finding = devices.devices()
        assert finding.state == "broken"
        assert said in finding.detail
        assert "uninstall" in finding.remedy
        assert len(devices.environments()) == (2 if "timer" in fields else 0)
