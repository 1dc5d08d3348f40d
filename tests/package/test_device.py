"""Who registers a device, and what is said of registrations that are wrong."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest

from inductor_plugin import device, registry
from inductor_plugin.device import GROUP, Device, Devices, DeviceSource, entry_points
from inductor_plugin.errors import DeviceError, RegistrationError
from inductor_plugin.worker.event_timer import EventTimer
from tests.support.fakes.devices import HERE, NPU
from tests.support.own_device import describe
from tests.support.warned import forget


@pytest.fixture(autouse=True)
def silent() -> None:
    forget()


def devices(*sources: tuple[str, str]) -> Devices:
    """Return devices of entry points, given as names and values."""
    return Devices(
        lambda: [DeviceSource(name, value, f"entry point {name}") for name, value in sources]
    )


@pytest.mark.parametrize("attribute", ["NPU", "from_function"])
def test_an_entry_point_names_a_device_or_a_function_that_returns_one(attribute: str) -> None:
    described = devices(("npu", f"{HERE}:{attribute}"))
    assert described.get("npu") is NPU
    assert described.get("xpu") is None
    assert described.names() == ("npu",)
    assert described.fault("npu") == ""


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    asked: list[str] = []

    def points() -> Iterable[DeviceSource]:
        asked.append("listed")
        yield DeviceSource("npu", f"{HERE}:broken", "entry point npu")

    described = Devices(points)
    assert asked == []
    assert described.names() == ("npu",)
    assert described.names() == ("npu",)
    assert asked == ["listed"]
    assert described.fault("npu") == ""  # not loaded


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (f"{HERE}:broken", "OSError: libnpu.so: cannot open shared object file"),
        (f"{HERE}:gone", "AttributeError: module 'tests.support.fakes.devices' has no attribute 'gone'"),
        ("no_such_module:X", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{HERE}:NO_DEVICE", "TypeError: 'dict' object is not callable"),
        (f"{HERE}:dict", "AttributeError"),
        ("without_a_colon", "'without_a_colon' is not of the form module:attribute"),
    ],
)  # fmt: skip
def test_a_wrong_entry_point_is_one_warning_that_says_what_and_where(
    reference: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    described = devices(("npu", reference))
    with caplog.at_level(logging.WARNING):
        assert described.get("npu") is None
        assert described.get("npu") is None
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("inductor-plugin: device 'npu' (entry point npu) cannot be ")
    assert said in text
    assert text.endswith("uninstall the package: until then Inductor alone serves the device")
    assert text == f"inductor-plugin: {described.fault('npu')}"
    assert described.names() == ("npu",)


def test_of_two_packages_for_a_device_none_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    described = devices(
        ("npu", f"{HERE}:NPU"), ("npu", f"{HERE}:from_function"), ("npu", f"{HERE}:NPU")
    )
    assert described.get("npu") is None
    assert "describes it, too; uninstall one of them" in described.fault("npu")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "reference", "said"),
    [
        ("cuda", f"{HERE}:NPU", "'cuda' is built in; an AMD GPU is registered as 'hip'"),
        ("cpu", f"{HERE}:NPU", "'cpu' is built in"),
        ("My NPU", f"{HERE}:NPU", "its name is not a type of device as torch writes it"),
        ("npu", "NPU", "'NPU' is not of the form module:attribute"),
        ("npu", "__main__:NPU", "the benchmark worker cannot import __main__"),
        ("npu", f"{HERE}:broken", "OSError: libnpu.so"),
    ],
)
def test_a_wrong_registration_by_hand_raises_and_changes_nothing(
    name: str, reference: str, said: str
) -> None:
    described = devices()
    with pytest.raises(RegistrationError, match=said):
        described.register(name, reference)
    assert described.names() == ()


def test_by_hand_is_above_an_entry_point_and_mends_it() -> None:
    described = devices(("npu", f"{HERE}:broken"))
    assert described.get("npu") is None
    assert described.register("npu", f"{HERE}:NPU") is NPU
    assert described.get("npu") is NPU
    assert described.fault("npu") == ""
    described.unregister("npu")
    assert described.get("npu") is None


def test_what_a_function_of_a_description_raises_names_the_package() -> None:
    def driverless(_device: str) -> dict[str, str]:
        raise ValueError("no driver")

    source = DeviceSource("npu", f"{HERE}:NPU", "entry point npu")
    with pytest.raises(
        DeviceError,
        match=r"^device 'npu' \(entry point npu\): facts\('npu:0'\) raised ValueError: no driver$",
    ):
        source.ask("facts", driverless, "npu:0")


def test_entry_points_are_those_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path, "my_npu.plugin:DEVICE", package="my_npu")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (source,) = (each for each in entry_points() if each.name == "npu")
    assert source.reference == "my_npu.plugin:DEVICE"
    assert source.origin == "entry point npu = my_npu.plugin:DEVICE of my_npu 1.0"
    assert GROUP == "inductor_plugin.devices"  # packages have it in their metadata


def test_templates_and_devices_are_listed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing takes 7 ms of a first compile."""
    listings = mock.Mock(wraps=metadata.entry_points)
    monkeypatch.setattr(metadata, "entry_points", listings)
    monkeypatch.setattr(sys, "path", [*sys.path, "/another/folder"])
    assert "npu" not in {source.name for source in entry_points()}
    assert [*registry.entry_points()] == []
    listings.assert_called_once()


def test_three_functions_are_enough() -> None:
    device = Device(lambda _: {"name": "x"}, dict, lambda _: NPU.timer("x"))
    assert device.compared
    assert not device.on_host
    assert device.target("x:0") is None
    assert list(device.templates()) == []


def test_the_contract_is_imported_without_torch() -> None:
    code = "import sys, inductor_plugin.device; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_timer_to_derive_from_is_public() -> None:
    assert device.EventTimer is EventTimer
    assert set(device.__all__) <= {*dir(device), "EventTimer"}
    with pytest.raises(AttributeError, match="has no attribute 'Timer2'"):
        device.Timer2  # noqa: B018


def test_threads_that_ask_for_a_device_at_once_load_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, loads = threading.Barrier(2), list[str]()

    def load(source: DeviceSource) -> Device:
        loads.append(source.name)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)  # for the other thread, which waits itself
        return NPU

    monkeypatch.setattr(DeviceSource, "load", load)
    described = devices(("npu", f"{HERE}:NPU"))
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(described.get, ["npu", "npu"])] == [NPU, NPU]
    assert loads == ["npu"]
