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


@pytest.mark.parametrize(
    ("bit", "what"),
    [
        (0x08, "hardware slowdown"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
    ],
)
def test_each_slowdown_disturbs(monkeypatch: pytest.MonkeyPatch, bit: int, what: str) -> None:
    install(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=bit | 0x04)
    reading = Gpu("12-ab").read(0)
    assert reading.slowdowns == (what,)
    assert what in reading.disturbance


def in_a_container(monkeypatch: pytest.MonkeyPatch, *shares: int) -> Reading:
    """Return a reading where NVML has the host's numbers of processes, with their shares of the GPU."""
    pids = range(OWN + 1, OWN + 1 + len(shares))
    install(
        monkeypatch,
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=pid) for pid in pids],
        nvmlDeviceGetProcessUtilization=[
            SimpleNamespace(pid=pid, smUtil=share, timeStamp=2_000_000)
            for pid, share in zip(pids, shares, strict=True)
        ],
    )
    return Gpu("12-ab").read(0)


def test_in_a_container_one_busy_process_is_this(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's numbers are those of this process, too: each measurement would be disturbed."""
    assert in_a_container(monkeypatch, 90, 0) == Reading(busy=1)
    assert not Reading(busy=1).disturbance


def test_in_a_container_of_two_busy_processes_another_is_none_of_this(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = in_a_container(monkeypatch, 90, 40, 0)
    assert reading == Reading(busy=2)
    assert reading.disturbance == "2 processes compute on it"
    assert reading.plain() == {"busy": 2}


def test_where_no_process_is_listed_at_all_none_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML names none in some containers, but counts their use."""
    install(
        monkeypatch,
        nvmlDeviceGetComputeRunningProcesses=[],
        nvmlDeviceGetProcessUtilization=[
            SimpleNamespace(pid=pid, smUtil=50, timeStamp=2_000_000) for pid in (1, 2)
        ],
    )
    assert Gpu("12-ab").read(0) == Reading(busy=2)


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
