from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inductor_plugin.aot import standard, targets
from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.device import Device, Devices, DeviceSource
from inductor_plugin.errors import TargetError
from inductor_plugin.problem.target import Target, target
from tests.support.fakes.devices import NPU
from tests.support.warned import forget

HERE = "tests.aot.test_targets"
NEW = replace(target("H100"), name="N1", device_name="NVIDIA N1", arch="sm_110a")
TOY = replace(NEW, name="Toy", device_name="Toy NPU", arch="toy")


def _driverless(_device: str) -> Target:
    raise OSError("no driver")


def _new(_device: str) -> Target:
    return NEW


def _toy(_device: str) -> Target:
    return TOY


NEW_DEVICE: Device = replace(NPU, target=_new)
TOY_DEVICE: Device = replace(NPU, target=_toy)
BROKEN_DEVICE: Device = replace(NPU, target=_driverless)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let three packages describe a device, one of them wrongly; a fourth has no figures."""
    forget()
    described = ("NEW_DEVICE", "TOY_DEVICE", "BROKEN_DEVICE", "NPU")
    sources = [
        DeviceSource(f"npu{place}", f"{HERE}:{name}", f"entry point {name}")
        for place, name in enumerate(described)
    ]
    monkeypatch.setattr(targets, "DEVICES", Devices(lambda: sources))
    yield
    forget()


@pytest.mark.parametrize(("name", "meant"), [("n1", NEW), ("NVIDIA N1", NEW), ("toy npu", TOY)])
def test_a_target_that_a_package_describes_has_a_name(name: str, meant: Target) -> None:
    assert targets.named(name) == meant
    with pytest.raises(TargetError):
        target(name)


def test_no_package_is_asked_for_a_known_gpu(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert targets.named("h100") == target("H100")
        assert standard.for_arch("sm_90a") == target("H100")
    assert caplog.records == []


def test_an_unknown_name_lists_those_of_packages_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(TargetError, match=r"'Toy'\?.*B200, N1"):
        targets.named("to y1")
    (warning,) = caplog.records
    assert "OSError: no driver; it is no target" in warning.message


def test_a_standard_set_may_be_for_the_architecture_of_a_package() -> None:
    assert standard.for_arch("sm_110a") == NEW
    with pytest.raises(TargetError, match=r"known are: .*sm_110a, .*toy"):
        standard.for_arch("sm_1")


def test_a_device_that_is_no_nvidia_gpu_is_not_lowered_for() -> None:
    said = r"Toy is of architecture 'toy'.*tune on the machine"
    with pytest.raises(TargetError, match=said), as_target("Toy"):
        pytest.fail("the block ran")
