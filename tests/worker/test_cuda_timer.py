"""The timer of a GPU, on a GPU and a host that are simulated: each has a clock of its own."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.worker import cuda_timer
from inductor_plugin.worker.cuda_timer import CudaTimer, uuid_of
from inductor_plugin.worker.nvml import Reading
from inductor_plugin.worker.timer import release_timers, take_samples, timer_for
from tests.support.worker.sampling import sampling

FLUSH_S = 65e-6


@dataclass
class Simulated:
    """A host and a GPU that runs what is launched in order.

    Attributes:
        host_s: The host's clock.
        device_s: When the GPU will have run all that has been launched.
        mhz: The GPU's clock at each look; the last one stays.
        readings: What it reports at each reading; the last one stays.
        slept: How often it was kept busy on purpose.
        since_s: From when on other processes counted in each reading.
    """

    host_s: float = 100.0
    device_s: float = 0.0
    mhz: list[int | None] = field(default_factory=lambda: [None])
    readings: list[Reading] = field(default_factory=lambda: [Reading()])
    slept: int = 0
    since_s: list[float] = field(default_factory=list[float])

    def run(self, seconds: float) -> None:
        self.device_s = max(self.device_s, self.host_s) + seconds

    def kernel(self, host_s: float, device_s: float) -> Callable[[], None]:
        """Return a call that takes so long on the host, and then launches so long a kernel."""

        def call() -> None:
            self.host_s += host_s
            self.run(device_s)

        return call

    def synchronize(self, _device: object = None) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def sleep(self, cycles: int) -> None:
        self.slept += 1
        self.run(cycles / 2e9)

    def sm_clock_mhz(self) -> int | None:
        return self.mhz.pop(0) if len(self.mhz) > 1 else self.mhz[0]

    def read(self, since_us: int) -> Reading:
        self.since_s.append(since_us / 1e6)
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


class Event:
    """An event of the simulated GPU."""

    gpu: Simulated

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = max(self.gpu.device_s, self.gpu.host_s)

    def query(self) -> bool:
        return self.gpu.host_s >= self.at_s

    def elapsed_time(self, last: Event) -> float:
        return 1e3 * (last.at_s - self.at_s)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    simulated = Simulated()
    monkeypatch.setattr(Event, "gpu", simulated, raising=False)
    for name, value in (
        ("Event", Event),
        ("device", lambda _: nullcontext()),
        ("synchronize", simulated.synchronize),
        ("_sleep", simulated.sleep),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    clock = SimpleNamespace(
        perf_counter=lambda: simulated.host_s,
        monotonic=lambda: simulated.host_s,
        time=lambda: simulated.host_s,
    )
    monkeypatch.setattr(cuda_timer, "time", clock)
    monkeypatch.setattr(cuda_timer, "Gpu", lambda _uuid: simulated)
    return simulated


@pytest.fixture
def timer(gpu: Simulated) -> CudaTimer:
    measured: Any = CudaTimer("cuda:0")
    measured._buffer = SimpleNamespace(zero_=lambda: gpu.run(FLUSH_S))
    return measured


@pytest.mark.parametrize("host_us", [10, 64, 66, 200, 600])
def test_time_of_the_host_is_hidden(gpu: Simulated, timer: CudaTimer, host_us: int) -> None:
    """A kernel of 5 us, launched by an operator that takes up to 600 us of Python."""
    call = gpu.kernel(host_us * 1e-6, 5e-6)
    for _ in range(3):
        assert timer.sample(call, 3, cold=True) == pytest.approx(5e-3)
        assert not timer.host_bound
    assert (gpu.slept > 0) is (host_us > 65)


def test_what_cannot_be_hidden_is_said(gpu: Simulated, timer: CudaTimer) -> None:
    call = gpu.kernel(0.05, 5e-6)
    assert timer.sample(call, 3, cold=True) > 10.0
    assert timer.host_bound
    assert take_samples(timer, call, sampling(cold_cache=True)).host_bound
    assert timer.sample(gpu.kernel(1e-5, 5e-6), 3, cold=True) == pytest.approx(5e-3)
    assert not timer.host_bound


@pytest.mark.parametrize("cold", [True, False])
def test_what_a_launch_takes_the_host_is_measured(
    gpu: Simulated, timer: CudaTimer, *, cold: bool
) -> None:
    """The shortest counts: other work on the machine only prolongs it."""
    took = iter([4e-5, 2e-5, 3e-5])

    def call() -> None:
        gpu.kernel(next(took, 2e-5), 5e-6)()

    timer.sample(call, 3, cold=cold)
    assert timer.host_ms == pytest.approx(0.020 if cold else 0.030)
    samples = take_samples(timer, gpu.kernel(2e-5, 5e-6), sampling(cold_cache=cold))
    assert samples.host_ms == pytest.approx(0.020)


def test_a_launch_that_was_late_once_is_repeated(gpu: Simulated, timer: CudaTimer) -> None:
    """The worker has waited for a core, longer than any lead."""
    late = iter([5e-4, 5e-4, 5e-3, 5e-3, 5e-4, 5e-3])

    def call() -> None:
        gpu.kernel(next(late, 5e-4), 5e-6)()

    for _ in range(4):
        assert timer.sample(call, 1, cold=True) == pytest.approx(5e-3)
        assert not timer.host_bound


def test_before_a_late_launch_is_repeated_the_gpu_has_finished(
    gpu: Simulated, timer: CudaTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the work of the first try would hide the host of the next one, whatever its lead."""
    pending: list[float] = []
    sleep = gpu.sleep

    def noted(cycles: int) -> None:
        pending.append(gpu.device_s - gpu.host_s)
        sleep(cycles)

    monkeypatch.setattr(torch.cuda, "_sleep", noted)
    timer.sample(gpu.kernel(2e-4, 0.5), 1, cold=True)
    assert pending
    assert max(pending) <= 0


def test_warm_samples_have_no_flush(gpu: Simulated, timer: CudaTimer) -> None:
    assert timer.sample(gpu.kernel(1e-6, 5e-6), 10, cold=False) == pytest.approx(5e-3, rel=0.3)
    assert gpu.slept == 0


def test_an_idle_gpu_gets_warm_first(gpu: Simulated, timer: CudaTimer) -> None:
    gpu.mhz = [345, 900, 1980, 1980, 5000]
    timer.warm(gpu.kernel(1e-6, 5e-6))
    assert gpu.mhz == [5000]  # it looked until the clock rose no more
    assert 0.03 < gpu.host_s - 100.0 < 0.1


def test_a_gpu_whose_clock_is_not_known_is_kept_busy_for_a_moment(
    gpu: Simulated, timer: CudaTimer
) -> None:
    timer.warm(gpu.kernel(1e-6, 5e-6))
    assert 0.01 <= gpu.host_s - 100.0 < 0.02


def test_a_long_kernel_warms_it_alone(gpu: Simulated, timer: CudaTimer) -> None:
    gpu.mhz = [345, 1980, 2500]
    timer.warm(gpu.kernel(1e-6, 1.0))
    assert gpu.host_s - 100.0 < 1.1


def test_screening_is_done_at_a_warm_clock(gpu: Simulated, timer: CudaTimer) -> None:
    take_samples(timer, gpu.kernel(1e-6, 5e-6), sampling())
    assert gpu.host_s - 100.0 > 0.01


def test_a_slow_or_shared_gpu_disturbs_a_sample(gpu: Simulated, timer: CudaTimer) -> None:
    call = gpu.kernel(1e-5, 1e-2)
    gpu.readings = [
        Reading(),
        Reading(slowdowns=("hardware thermal slowdown",)),
        Reading(others=(4242,)),
        Reading(1980, 40, 300.0, (), ()),
    ]
    seen = list[bool]()
    for _ in range(4):
        timer.sample(call, 3, cold=True)
        seen.append(timer.disturbed)
    assert seen == [False, True, True, False]
    assert timer.conditions() == {"sm_clock_mhz": 1980, "temperature_c": 40, "power_w": 300.0}


def test_what_others_did_before_the_job_or_long_ago_is_over(
    gpu: Simulated, timer: CudaTimer
) -> None:
    gpu.host_s = 200.0
    timer.prepare()
    timer.conditions()
    gpu.host_s = 300.0
    timer.conditions()
    assert gpu.since_s == pytest.approx([200.25, 299.0])


def test_others_count_from_the_beginning_of_a_job_where_the_gpu_was_not_another_processes(
    gpu: Simulated, timer: CudaTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a job of a quarter of a second sees nobody."""
    monkeypatch.setattr(cuda_timer, "taken_over_us", lambda _: 199_500_000)
    gpu.host_s = 200.0
    timer.prepare()
    timer.conditions()
    gpu.host_s = 300.0
    timer.prepare()
    timer.conditions()
    assert gpu.since_s == pytest.approx([199.75, 299.0])


def test_others_count_from_the_takeover_also_where_nothing_was_prepared(
    gpu: Simulated, timer: CudaTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples with a warm cache need no buffer; who has just handed the GPU over disturbs none of them."""
    monkeypatch.setattr(cuda_timer, "taken_over_us", lambda _: 199_500_000)
    gpu.host_s = 200.0
    timer.sample(gpu.kernel(1e-6, 5e-6), 1, cold=False)
    assert gpu.since_s == pytest.approx([199.75])


def test_readings_hold_for_a_moment(gpu: Simulated, timer: CudaTimer) -> None:
    gpu.readings = [Reading(), Reading(others=(1,))]
    for _ in range(20):
        timer.sample(gpu.kernel(1e-6, 5e-6), 1, cold=True)
        assert not timer.disturbed
    assert timer.conditions() == {"others": [1]}


def test_the_buffer_is_freed(timer: CudaTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    release_timers()
    timer.release()
    assert timer._buffer is None  # pyright: ignore[reportPrivateUsage]
    assert timer_for("cuda:0") is timer_for("cuda:0")


def test_a_gpu_has_a_uuid_where_torch_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for properties, uuid in ((SimpleNamespace(uuid="12-ab"), "12-ab"), (SimpleNamespace(), "")):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, p=properties: p)
        assert uuid_of("cuda:0") == uuid
