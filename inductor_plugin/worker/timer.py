"""Timers by device, and sampling."""

from __future__ import annotations

import functools
import math
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from inductor_plugin.worker.cuda_timer import CudaTimer
from inductor_plugin.worker.disturbance import is_disturbed, waits_ns
from inductor_plugin.worker.jobs import Sampling

Call = Callable[[], object]

MAX_REPEATS = 10_000
COLD_REPEATS = 3
"""Maximum calls per sample when the cache is evicted before each; evicting costs more than the calls."""

_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_CACHE_BYTES = (32 << 20, 256 << 20)
_MOST_DISTURBED = 60
"""Disturbed samples after which no more are taken."""


class Timer(Protocol):
    """Measures calls on one device."""

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine has prolonged the last sample, as far as it is known."""
        ...

    @property
    def host_bound(self) -> bool:
        """Whether the last sample holds time of the host, which was not hidden behind other work of the device."""
        ...

    @property
    def host_ms(self) -> float:
        """Milliseconds the host took to launch a call of the last sample; 0 where the host computes it."""
        ...

    def conditions(self) -> dict[str, object]:
        """Return how the device is now, for a record's provenance."""
        ...

    def warm(self, call: Call) -> None:
        """Bring the device to the clock at which it computes."""
        ...

    def prepare(self) -> None:
        """Allocate what a sample needs, so that no sample does."""
        ...

    def release(self) -> None:
        """Free it."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished; raises errors of earlier kernels."""
        ...

    def sample(self, call: Call, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call: the mean of ``repeats`` calls, or the median of cold calls."""
        ...


class CpuTimer:
    """Wall-clock timer; reading a buffer as large as the last-level cache evicts the cache."""

    host_bound, host_ms = False, 0.0
    """The call's own time counts: it is computed by the host."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self.disturbed = False

    def conditions(self) -> dict[str, object]:
        """Return nothing: a record says what a CPU is."""
        return {}

    def warm(self, call: Call) -> None:
        """Do nothing: its clock is not known."""

    def prepare(self) -> None:
        """Allocate the buffer that evicts the cache."""
        if self._buffer is None:
            self._buffer = torch.ones(last_level_cache_bytes() // 8, dtype=torch.int64)

    def release(self) -> None:
        """Free it."""
        self._buffer = None

    def synchronize(self) -> None:
        """Do nothing: a CPU kernel has finished when its call returns."""

    def sample(self, call: Call, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call: of ``repeats`` calls the median of those that were not disturbed.

        Other work only prolongs a call: if it has disturbed all of them, the shortest counts.
        """
        if cold:
            spans = [self._span(call, 1, cold=True) for _ in range(repeats)]
        else:
            elapsed_ns, disturbed = self._span(call, repeats, cold=False)
            spans = [(elapsed_ns / repeats, disturbed)]
        calm = [elapsed_ns for elapsed_ns, disturbed in spans if not disturbed]
        self.disturbed = not calm
        return (statistics.median(calm) if calm else min(spans)[0]) / 1e6

    def _span(self, call: Call, repeats: int, *, cold: bool) -> tuple[float, bool]:
        """Return nanoseconds that calls took, and whether a thread waited for a core meanwhile.

        With more threads than cores they wait for each other: that is how fast the call is here.
        """
        if cold:
            self._evict()
        alone = torch.get_num_threads() <= len(os.sched_getaffinity(0))
        before = waits_ns() if alone else {}
        started = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        elapsed_ns = time.perf_counter_ns() - started
        return elapsed_ns, bool(before) and is_disturbed(elapsed_ns, before, waits_ns())

    def _evict(self) -> None:
        self.prepare()
        assert self._buffer is not None
        self._buffer.sum()


_TIMERS: dict[str, Timer] = {}


def timer_for(device: str) -> Timer:
    """Return the timer of a device, ``cpu`` or ``cuda:0`` ...; the same object for each call."""
    if device not in _TIMERS:
        _TIMERS[device] = CudaTimer(device) if device.startswith("cuda") else CpuTimer()
    return _TIMERS[device]


def release_timers() -> None:
    """Free the buffers of all timers of this process."""
    for timer in _TIMERS.values():
        timer.release()


@functools.cache
def last_level_cache_bytes() -> int:
    """Return the size of the largest CPU cache, clamped to a size that is practical to overwrite."""
    sizes = [
        int(match[1]) << {"K": 10, "M": 20}[match[2]]
        for path in _CPU_CACHES.glob("index*/size")
        if (match := re.fullmatch(r"(\d+)([KM])\s*", path.read_text()))
    ]
    low, high = _CPU_CACHE_BYTES
    return min(max([low, *sizes]), high)


def repeats_for(timer: Timer, call: Call, sampling: Sampling) -> int:
    """Warm up, and return how many calls make a sample long enough for the clock's resolution."""
    for _ in range(max(1, sampling.warmup)):
        call()
    timer.synchronize()
    if sampling.min_sample_ms <= 0:
        return 1
    once_ms = timer.sample(call, 1, cold=sampling.cold_cache)
    limit = COLD_REPEATS if sampling.cold_cache else MAX_REPEATS
    return min(limit, max(1, math.ceil(sampling.min_sample_ms / max(once_ms, 1e-4))))


@dataclass
class Samples:
    """Samples of one candidate; those that other work has disturbed count only where there are no others.

    Attributes:
        calm_ms: Undisturbed samples, in milliseconds.
        disturbed_ms: The others.
        host_bound: True if any holds time of the host.
        host_ms: Milliseconds the host took to launch a call, in the sample where it took least.
    """

    calm_ms: list[float] = field(default_factory=list[float])
    disturbed_ms: list[float] = field(default_factory=list[float])
    host_bound: bool = False
    host_ms: float = math.inf

    def add(self, value_ms: float, *, disturbed: bool) -> None:
        """Add a sample."""
        (self.disturbed_ms if disturbed else self.calm_ms).append(value_ms)

    @property
    def disturbed(self) -> bool:
        """True if there is no undisturbed sample."""
        return not self.calm_ms and bool(self.disturbed_ms)

    @property
    def used_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        return tuple(self.calm_ms or self.disturbed_ms)


def take_samples(timer: Timer, call: Call, sampling: Sampling) -> Samples:
    """Warm up and take samples: fewer if the time limit is reached, but at least one.

    Disturbed ones are taken again, as `Sampling.retake_s` allows.
    """
    started = time.monotonic()
    timer.warm(call)
    repeats = repeats_for(timer, call, sampling)
    samples = Samples()
    wanted = max(1, sampling.samples)
    while len(samples.calm_ms) < wanted:
        value_ms = timer.sample(call, repeats, cold=sampling.cold_cache)
        samples.add(value_ms, disturbed=timer.disturbed and sampling.retake_s > 0)
        samples.host_bound |= timer.host_bound
        samples.host_ms = min(samples.host_ms, timer.host_ms)
        elapsed_s = time.monotonic() - started
        more_s = 0.0 if samples.calm_ms else sampling.retake_s
        if (
            elapsed_s > sampling.max_total_s + more_s
            or len(samples.disturbed_ms) >= _MOST_DISTURBED
        ):
            break
    samples.disturbed_ms = sorted(samples.disturbed_ms)[:wanted]
    return samples
