from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest import mock

import pytest

from inductor_plugin.errors import KernelError
from inductor_plugin.worker import cpu_timer
from inductor_plugin.worker import timer as timer_module
from inductor_plugin.worker.disturbance import ThreadWaits
from inductor_plugin.worker.failure import one_line, status_of
from tests.support.worker.sampling import sampling


class FakeTimer:
    """A device on which every call takes so long."""

    def __init__(self, call_ms: float, disturbed: Iterable[bool] = ()) -> None:
        self.call_ms = call_ms
        self.samples: list[tuple[int, bool]] = []
        self._disturbed = iter(disturbed)
        self.disturbed = False

    def prepare(self) -> None:
        pass

    host_bound, host_ms = False, 0.0

    def conditions(self) -> dict[str, object]:
        """Nothing is known."""
        return {}

    def warm(self, call: Callable[[], object]) -> None:
        """It is."""

    def release(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def sample(self, call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        self.samples.append((repeats, cold))
        call()
        self.disturbed = next(self._disturbed, False)
        return self.call_ms


@pytest.mark.parametrize(
    ("call_ms", "min_sample_ms", "cold", "repeats"),
    [
        (0.1, 1.0, False, 10),
        (5.0, 1.0, False, 1),
        (0.0, 1.0, False, timer_module.MAX_REPEATS),
        (0.1, 0.0, False, 1),
        (0.1, 1.0, True, timer_module.COLD_REPEATS),
        (5.0, 1.0, True, 1),
    ],
)
def test_a_sample_lasts_long_enough(call_ms: float, min_sample_ms: float, cold: bool, repeats: int):
    how = sampling(min_sample_ms=min_sample_ms, cold_cache=cold)
    assert timer_module.repeats_for(FakeTimer(call_ms), lambda: None, how) == repeats


def test_warm_up_comes_first_and_each_sample_is_kept():
    timer, calls = FakeTimer(0.5), list[int]()
    samples = timer_module.take_samples(timer, lambda: calls.append(len(timer.samples)), sampling())
    assert samples.used_ms == (0.5,) * 4
    assert not samples.disturbed
    assert calls[:2] == [0, 0]
    assert timer.samples == [(1, False)] + [(2, False)] * 4


def test_time_that_is_over_leaves_one_sample():
    samples = timer_module.take_samples(FakeTimer(0.5), lambda: None, sampling(max_total_s=0.0))
    assert samples.used_ms == (0.5,)


def test_disturbed_samples_are_taken_again():
    timer = FakeTimer(
        0.5, [False, True, False, True, True, False, True, False]
    )  # the first finds the repeats
    samples = timer_module.take_samples(timer, lambda: None, sampling(retake_s=1.0))
    assert len(samples.calm_ms) == 4
    assert len(samples.disturbed_ms) == 4
    assert samples.used_ms == (0.5,) * 4


def test_but_not_for_ever_and_not_unless_asked():
    timer, how = FakeTimer(0.5, itertools.repeat(True)), sampling(max_total_s=0.01, retake_s=0.02)
    samples = timer_module.take_samples(timer, lambda: time.sleep(0.002), how)
    assert samples.disturbed
    assert samples.used_ms == (0.5,) * 4
    samples = timer_module.take_samples(timer, lambda: None, sampling())
    assert not samples.disturbed
    assert len(timer.samples) >= 8


@pytest.mark.parametrize(
    ("late", "calm", "disturbed"),
    [([True, False, True, False, False], 3, False), ([True, False, True], 1, True)],
)
def test_a_few_calm_samples_beside_disturbed_ones_are_too_few(
    late: list[bool], calm: int, *, disturbed: bool
) -> None:
    """One was enough: of a library kernel and of a rival that were measured apart, beside other work."""
    timer = FakeTimer(0.5, itertools.chain([False], late, itertools.repeat(True)))
    how = sampling(max_total_s=0.0, retake_s=60.0)
    samples = timer_module.take_samples(timer, lambda: None, how)
    assert (len(samples.calm_ms), samples.disturbed) == (calm, disturbed)
    assert samples.used_ms == (0.5,) * calm
    once = timer_module.take_samples(
        FakeTimer(0.5, [False, True]), lambda: None, sampling(samples=1, retake_s=60.0)
    )
    assert (len(once.calm_ms), once.disturbed) == (1, False)  # no more were asked for


def test_and_no_longer_than_the_limit_where_none_is_disturbed():
    """The time for retakes is for a candidate that has too few calm samples because others were disturbed."""
    timer = FakeTimer(0.5, itertools.chain([False, False], itertools.repeat(True)))
    how = sampling(max_total_s=0.0, retake_s=60.0)
    samples = timer_module.take_samples(timer, lambda: None, how)
    assert samples.used_ms == (0.5,)
    assert len(timer.samples) == 2


def test_a_wait_for_a_core_disturbs_a_sample(monkeypatch: pytest.MonkeyPatch):
    """Of three calls behind a read of the caches one has waited: it does not count. Where all have, the shortest does."""
    waits = itertools.count(1, step=10**9)
    timer = cpu_timer.CpuTimer()
    monkeypatch.setattr(timer, "_evict", lambda: None)
    monkeypatch.setattr(ThreadWaits, "ns", mock.Mock(return_value={"1": 5}))
    timer.sample(lambda: None, 3, cold=True)
    assert not timer.disturbed
    monkeypatch.setattr(
        ThreadWaits, "ns", mock.Mock(side_effect=lambda: {"1": next(waits), "2": 0})
    )
    # One behind the read, and of a short call one that is not timed; then those with operands in the caches.
    of_each = ([0.02] * 2, [0.001] * 8, [0.02] * 2)
    durations = itertools.chain.from_iterable(of_each)
    assert timer.sample(lambda: time.sleep(next(durations)), 3, cold=True) < 15
    assert timer.disturbed


def test_a_sample_in_which_the_process_was_stopped_is_disturbed():
    """For a page of memory, by a signal, with the whole machine: no thread waits for a core then."""
    timer = cpu_timer.CpuTimer()

    def is_calm() -> bool:
        timer.sample(lambda: time.sleep(0.01), 1, cold=False)
        return not timer.disturbed

    assert any(is_calm() for _ in range(50))  # other tests on this core disturb some
    timer.sample(lambda: time.sleep(0.2), 1, cold=False)
    assert timer.disturbed


def test_the_wait_of_two_busy_threads_on_one_core_is_seen():
    if not (Path("/proc/self/schedstat")).exists():
        pytest.skip("this kernel does not count how long threads wait")
    code = (
        "import os, threading, time\n"
        "from inductor_plugin.worker.disturbance import ThreadWaits, is_disturbed\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "def spin(ends):\n"
        "    while time.monotonic() < ends: pass\n"
        "waits, start = ThreadWaits(), time.monotonic()\n"
        "before = waits.ns()\n"
        "pid = os.fork()\n"
        "spin(start + 0.3)\n"
        "if pid: print(is_disturbed(3e8, before, waits.ns()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("cold", [False, True])
def test_the_cpu_timer_measures_a_call(cold: bool):
    timer = timer_module.timer_for("cpu")
    assert timer is timer_module.timer_for("cpu")
    taken_ms = timer.sample(lambda: time.sleep(0.01), 20, cold=cold)
    assert 9 < taken_ms < 100


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no"), "raised"),
        (MemoryError(), "out_of_memory"),
        (KernelError("CUTLASS status 7, CUDA error 0", cuda_error=0), "raised"),
        (KernelError("CUTLASS status 7, CUDA error 9", cuda_error=9), "raised"),
        (KernelError("CUTLASS status 7, CUDA error 700", cuda_error=700), "sticky_error"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "sticky_error"),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), "sticky_error"),
        (type("AcceleratorError", (RuntimeError,), {})("bad"), "sticky_error"),
        (type("OutOfMemoryError", (RuntimeError,), {})("bad"), "out_of_memory"),
    ],
)
def test_what_is_raised_has_a_status(error: Exception, status: str):
    assert status_of(error) == status


def test_a_reason_is_one_line_of_sensible_length():
    assert one_line("\n  first\nsecond") == "first"
    assert len(one_line("x" * 1000)) == 300
    assert one_line("") == ""


def test_of_disturbed_samples_as_many_count_as_were_wanted_the_shortest_of_sixty() -> None:
    """Other work only prolongs them; it may go on for hours."""
    timer = FakeTimer(100.0, itertools.repeat(True))
    how = sampling(max_total_s=60.0, retake_s=60.0, min_sample_ms=0.0)

    def shorter() -> None:
        timer.call_ms -= 1.0

    samples = timer_module.take_samples(timer, shorter, how)
    assert len(timer.samples) == 60
    assert samples.used_ms == (38.0, 39.0, 40.0, 41.0)  # two calls to warm up, then sixty
    assert samples.disturbed


def test_a_call_is_made_before_its_first_sample_in_any_case() -> None:
    timer, calls = FakeTimer(0.5), list[int]()
    how = sampling(warmup=0, min_sample_ms=0.0)
    assert timer_module.repeats_for(timer, lambda: calls.append(1), how) == 1
    assert (len(calls), timer.samples) == (1, [])
