"""What NVIDIA's management library says of a GPU, as far as there is such a library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.worker import nvml
from inductor_plugin.worker.nvml import Gpu, Reading

OWN = os.getpid()


class FakeNvml:
    """The library, for one GPU; what it lacks raises."""

    NVMLError = RuntimeError

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: object) -> Any:
            self.asked.append((name, arguments))
            if name not in self.answers:
                raise RuntimeError("Not Supported")
            return self.answers[name]

        return ask


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    nvml._library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    yield
    nvml._library.cache_clear()  # pyright: ignore[reportPrivateUsage]


def install(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> FakeNvml:
    fake = FakeNvml(nvmlInit=None, nvmlDeviceGetHandleByUUID="handle", **answers)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_all_that_is_known_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(
        monkeypatch,
        nvmlDeviceGetClockInfo=1980,
        nvmlDeviceGetTemperature=65,
        nvmlDeviceGetPowerUsage=612_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=0x04 | 0x40,
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=OWN), SimpleNamespace(pid=7)],
        nvmlDeviceGetProcessUtilization=[
            SimpleNamespace(pid=OWN, smUtil=90, timeStamp=2_000_000),
            SimpleNamespace(pid=7, smUtil=50, timeStamp=2_000_000),
            SimpleNamespace(pid=8, smUtil=50, timeStamp=999_999),  # of before
            SimpleNamespace(pid=9, smUtil=0, timeStamp=2_000_000),
        ],
    )
    reading = Gpu("12-ab").read(1_000_000)
    assert reading == Reading(1980, 65, 612.0, ("hardware thermal slowdown",), (7,))
    assert ("nvmlDeviceGetHandleByUUID", (b"GPU-12-ab",)) in fake.asked
    assert reading.plain()["others"] == [7]


def test_the_power_cap_is_how_a_gpu_works(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=0x04)
    reading = Gpu("12-ab").read(0)
    assert reading == Reading(slowdowns=())
    assert reading.disturbance == ""


def test_in_a_container_other_processes_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's numbers are those of this process, too: each measurement would be disturbed."""
    install(
        monkeypatch,
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=OWN + 1)],
        nvmlDeviceGetProcessUtilization=[
            SimpleNamespace(pid=OWN + 1, smUtil=90, timeStamp=2_000_000)
        ],
    )
    assert Gpu("12-ab").read(0) == Reading()


def test_where_nothing_is_reported_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert Gpu("12-ab").read(0) == Reading()
    assert Gpu("").read(0) == Reading()
    assert Reading().plain() == {}
    assert Gpu("12-ab").sm_clock_mhz() is None


@pytest.mark.parametrize("library", [None, FakeNvml()])
def test_without_the_library_or_the_driver_too(
    monkeypatch: pytest.MonkeyPatch, library: FakeNvml | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert Gpu("12-ab").read(0) == Reading()


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (Reading(), ""),
        (Reading(1980, 40, 300.0, (), ()), ""),
        (Reading(slowdowns=("power brake",)), "slowed down (power brake)"),
        (Reading(others=(7, 8)), "process 7 computes"),
    ],
)
def test_what_disturbs_is_said(reading: Reading, words: str) -> None:
    assert words in reading.disturbance
    assert bool(words) is bool(reading.disturbance)
