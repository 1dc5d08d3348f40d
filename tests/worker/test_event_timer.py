"""The timer of any device that has an interface, on fake ones with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.worker import event_timer, interface
from inductor_plugin.worker.event_timer import EventTimer
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import take_samples


class FakeDevice:
    """A device that computes what it was told when it is waited for; its clock is in milliseconds."""

    def __init__(self, *, timed: bool = True) -> None:
        self.now_ms = 0.0
        self.queue: list[Callable[[], None]] = []
        self.waits = 0
        device = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                if not timed:
                    raise NotImplementedError
                self.at_ms = float("nan")

            def record(self) -> None:
                device.queue.append(self._take)

            def _take(self) -> None:
                self.at_ms = device.now_ms

            def elapsed_time(self, last: Event) -> float:
                return last.at_ms - self.at_ms

        self.Event = Event

    def launch(self, takes_ms: float) -> None:
        self.queue.append(lambda: self._pass(takes_ms))

    def _pass(self, takes_ms: float) -> None:
        self.now_ms += takes_ms

    def synchronize(self, device: str) -> None:
        self.waits += 1
        queue, self.queue = self.queue, []
        for work in queue:
            work()


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the buffers that are overwritten."""
    sizes: list[int] = []

    def empty(size: int, **_: Any) -> Any:
        return SimpleNamespace(zero_=lambda: sizes.append(size))

    monkeypatch.setattr(event_timer.torch, "empty", empty)
    return sizes


def timer_of(device: FakeDevice, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> EventTimer:
    monkeypatch.setattr(event_timer, "interface_of", lambda name: device)  # pyright: ignore
    return EventTimer("npu:0", **arguments)


@pytest.mark.parametrize(("cold", "count"), [(False, 4), (True, 4)])
def test_the_devices_own_time_counts(
    monkeypatch: pytest.MonkeyPatch, flushed: list[int], cold: bool, count: int
) -> None:
    device = FakeDevice()
    timer = timer_of(device, monkeypatch, flush_bytes=1 << 10)
    assert timer.sample(lambda: device.launch(2.5), count, cold=cold) == pytest.approx(2.5)
    assert flushed == ([1 << 10] * count if cold else [])
    assert 0 < timer.host_ms < 2.5  # it only launches
    assert not timer.host_bound


def test_without_a_buffer_nothing_is_flushed(
    monkeypatch: pytest.MonkeyPatch, flushed: list[int]
) -> None:
    timer = timer_of(FakeDevice(), monkeypatch, flush_bytes=0)
    timer.sample(lambda: None, 2, cold=True)
    timer.release()
    assert flushed == []


def test_where_there_are_no_events_the_hosts_clock_counts(
    monkeypatch: pytest.MonkeyPatch, flushed: list[int]
) -> None:
    device = FakeDevice(timed=False)
    timer = timer_of(device, monkeypatch)
    clock = iter(range(100))
    monkeypatch.setattr(event_timer.time, "perf_counter", lambda: float(next(clock)))
    assert timer.sample(lambda: device.launch(9.0), 4, cold=False) == pytest.approx(250.0)
    assert timer.host_ms == 0.0
    assert device.queue == []  # it was waited for


def test_errors_of_earlier_kernels_are_raised_by_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    timer = timer_of(device, monkeypatch)

    def fault() -> None:
        raise RuntimeError("NPU error: illegal address")

    device.queue.append(fault)
    with pytest.raises(RuntimeError, match="illegal address"):
        timer.synchronize()


def test_samples_of_a_device_are_taken_as_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, flushed: list[int]
) -> None:
    device = FakeDevice()
    timer = timer_of(device, monkeypatch)
    how = Sampling(warmup=3, samples=5, min_sample_ms=0.2, max_total_s=10.0, cold_cache=True)
    samples = take_samples(timer, lambda: device.launch(0.125), how)
    assert samples.used_ms == pytest.approx((0.125,) * 5)
    assert not samples.disturbed


def test_a_device_that_torch_does_not_know_has_no_interface() -> None:
    assert interface.interface_of("npu:0") is None
    assert interface.count("npu") == 0
    interface.start("npu:0")
    interface.give_back("npu:0")
    assert interface.count("cpu") == 1


def test_unused_memory_is_given_back_where_the_module_of_a_device_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    module = SimpleNamespace(empty_cache=lambda: given.append("npu"))
    monkeypatch.setattr(torch, "npu", module, raising=False)
    interface.give_back("npu:0")
    assert given == ["npu"]


def test_a_device_is_counted_started_and_waited_for_by_its_own_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []

    def uncounted() -> int:
        raise NotImplementedError

    xpu = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 3,
        set_device=done.append,
        synchronize=done.append,
    )
    monkeypatch.setattr(interface, "interface_of", lambda name: xpu)  # pyright: ignore
    interface.start("xpu:2")
    interface.start("xpu")
    assert done == [2, "xpu:2", 0, "xpu"]
    assert interface.count("xpu") == 3
    xpu.device_count = uncounted
    assert interface.count("xpu") == 1
    xpu.is_available = lambda: False
    assert interface.count("xpu") == 0
