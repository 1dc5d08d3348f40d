"""Timers by device, and sampling."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from inductor_plugin.device import BoundCall, Timer
from inductor_plugin.worker.devices.lookup import known
from inductor_plugin.worker.jobs import Sampling

MAX_REPEATS = 10_000
COLD_REPEATS = 3
"""Most times that a sample evicts the cache, each with a call behind it; evicting costs more than the calls."""

_MOST_DISTURBED = 60
"""Disturbed samples after which no more are taken."""
_CALM_SAMPLES = 3
"""Calm samples beside disturbed ones that a median needs, as turns of the finals (`tuning.race.CALM_TURNS`)."""


_TIMERS: dict[str, Timer] = {}


def timer_for(device: str) -> Timer:
    """Return the timer of a device, ``cpu`` or ``cuda:0`` ...; the same object for each call.

    Raises:
        DeviceError: The device is not described.
    """
    if device not in _TIMERS:
        _TIMERS[device] = known(device).timer(device)
    return _TIMERS[device]


def synchronize() -> None:
    """Wait until all devices that this process measures on have finished; raises errors of their kernels."""
    for timer in _TIMERS.values():
        timer.synchronize()


def release_timers() -> None:
    """Free the buffers of all timers of this process."""
    for timer in _TIMERS.values():
        timer.release()


def repeats_for(timer: Timer, call: BoundCall, sampling: Sampling) -> int:
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
        fewest: Calm samples that are enough beside disturbed ones.
    """

    calm_ms: list[float] = field(default_factory=list[float])
    disturbed_ms: list[float] = field(default_factory=list[float])
    host_bound: bool = False
    host_ms: float = math.inf
    fewest: int = _CALM_SAMPLES

    def add(self, value_ms: float, *, disturbed: bool) -> None:
        """Add a sample."""
        (self.disturbed_ms if disturbed else self.calm_ms).append(value_ms)

    @property
    def disturbed(self) -> bool:
        """True if samples were disturbed, and too few were not."""
        taken = len(self.calm_ms) + len(self.disturbed_ms)
        return len(self.calm_ms) < min(self.fewest, taken)

    @property
    def used_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        return tuple(self.calm_ms or self.disturbed_ms)


def take_samples(timer: Timer, call: BoundCall, sampling: Sampling) -> Samples:
    """Warm up and take samples: fewer if the time limit is reached, but at least one.

    Disturbed ones are taken again, as `Sampling.retake_s` allows.
    """
    started = time.monotonic()
    timer.warm(call)
    repeats = repeats_for(timer, call, sampling)
    wanted = max(1, sampling.samples)
    samples = Samples(fewest=min(_CALM_SAMPLES, wanted))
    while len(samples.calm_ms) < wanted:
        value_ms = timer.sample(call, repeats, cold=sampling.cold_cache)
        samples.add(value_ms, disturbed=timer.disturbed and sampling.retake_s > 0)
        samples.host_bound |= timer.host_bound
        samples.host_ms = min(samples.host_ms, timer.host_ms)
        elapsed_s = time.monotonic() - started
        more_s = sampling.retake_s if samples.disturbed else 0.0
        if (
            elapsed_s > sampling.max_total_s + more_s
            or len(samples.disturbed_ms) >= _MOST_DISTURBED
        ):
            break
    samples.disturbed_ms = sorted(samples.disturbed_ms)[:wanted]
    return samples
