"""Rules of the race: sampling, which candidates are measured again, and when to stop. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median, quantiles

from inductor_plugin.cost.host import sample_costs
from inductor_plugin.device import Device
from inductor_plugin.worker.jobs import Sampling

LEAD = 1.30
"""A candidate this many times slower than the fastest in screening is dropped.

Screening medians of one kernel differ by up to 1.2x on a busy two-core machine (5 samples of 1 ms),
so 1.3x keeps every candidate that could still win.
"""
MAX_LEADERS = 4
RETAKE_S = 0.5
"""`Sampling.retake_s`: beside two busy processes on two cores a sample of a call of 0.1 to 1 ms is calm in 51 to 73 % of tries."""
CALM_TURNS = 3
"""Turns of the finals without other work that a median needs: of a single pair, measured beside two busy processes, the wrong
kernel was 1.06x faster. Of four kernels as fast as the library's, samples of which vary by 1 %, one replaces it in 21 % of
the races of one turn, in 6 % of those of three."""
ROUNDS_PER_LEG = 6
MAX_LEGS = 4


def screening(device: Device) -> Sampling:
    """Return the sampling of screening: enough to drop slow candidates, at most 0.25 s."""
    return Sampling(
        warmup=device.warmup,
        samples=5,
        min_sample_ms=device.sample_ms[0],
        max_total_s=0.25,
        cold_cache=True,
        retake_s=RETAKE_S,
    )


def final_sampling(device: Device) -> Sampling:
    """Return the sampling of one turn of the finals."""
    return Sampling(
        warmup=1,
        samples=1,
        min_sample_ms=device.sample_ms[1],
        max_total_s=0.5,
        cold_cache=True,
        retake_s=RETAKE_S,
    )


@dataclass(frozen=True)
class SampleStats:
    """Median and quartiles of a candidate's samples, in milliseconds.

    Attributes:
        median_ms: Median.
        low_ms: Lower quartile.
        high_ms: Upper quartile.
    """

    median_ms: float
    low_ms: float
    high_ms: float

    @property
    def spread_ms(self) -> float:
        """Interquartile range."""
        return self.high_ms - self.low_ms


def sample_stats(samples_ms: Sequence[float]) -> SampleStats:
    """Return median and quartiles of the samples.

    Raises:
        ValueError: There is no sample.
    """
    if not samples_ms:
        raise ValueError("a candidate without samples has no standing")
    if len(samples_ms) == 1:
        return SampleStats(samples_ms[0], samples_ms[0], samples_ms[0])
    low, _, high = quantiles(samples_ms, n=4, method="inclusive")
    return SampleStats(median(samples_ms), low, high)


def beaten(least_ms: float, library_ms: Sequence[float]) -> str | None:
    """Return why a candidate need not be measured, given the least time it takes; None if it must be.

    Times measured at different moments need no tolerance: to win, the candidate would have to beat the
    library kernel by the option ``never_slower_margin``, and its own least time by more.

    Args:
        least_ms: Milliseconds it takes at least, measured earlier; 0 if not known.
        library_ms: Samples of the library kernel, which it has to beat.
    """
    if not least_ms or not library_ms or least_ms < median(library_ms):
        return None
    return (
        f"behind: it takes at least {1e3 * least_ms:.1f} us, "
        f"the library kernel {1e3 * median(library_ms):.1f} us"
    )


def lead_ms(screened: Iterable[Sequence[float]]) -> float:
    """Return the milliseconds that a candidate's shortest sample may take to be among `leaders`; infinite without rivals.

    Args:
        screened: The samples of each rival, in milliseconds.
    """
    stats = [sample_stats(samples) for samples in screened if samples]
    return LEAD * min(stats, key=lambda each: each.low_ms).median_ms if stats else inf


def leaders(
    screened: Mapping[str, Sequence[float]],
    library: str | None,
    launches_ms: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Return the candidates for the finals, fastest first; empty when the race is already decided.

    They are the leaders on the device, and those where the host has to launch them, too: both are asked for, with CUDA
    graphs and without.

    Args:
        screened: Samples of each candidate that ran, in milliseconds.
        library: The library kernel, which always takes part if it was screened.
        launches_ms: Milliseconds the host takes to launch each.
    """
    on_device = _leaders(screened, library)
    by_cost = _leaders(sample_costs(screened, launches_ms or {}), library)
    return tuple(dict.fromkeys((*on_device, *by_cost)))


def _leaders(screened: Mapping[str, Sequence[float]], library: str | None) -> tuple[str, ...]:
    if len(screened) < 2:
        return ()
    stats = {name: sample_stats(samples) for name, samples in screened.items()}
    ranked = sorted(stats, key=lambda name: stats[name].low_ms)
    limit_ms = lead_ms(screened.values())
    chosen = [name for name in ranked if min(screened[name]) <= limit_ms][:MAX_LEADERS]
    if library in stats and library not in chosen:
        chosen.append(library)
    if chosen == [library]:
        return ()
    return tuple(chosen) if len(chosen) > 1 else ()


def too_few_calm(calm: int, turns: int) -> bool:
    """Return True if other work has disturbed so many turns that the calm ones decide nothing.

    Turns are few where a kernel is slow: calm ones alone are enough then.

    Args:
        calm: Turns of all legs without other work.
        turns: All turns.
    """
    return calm < min(CALM_TURNS, turns)


def contenders(
    sampled: Mapping[str, Sequence[float]],
    library: str | None,
    launches_ms: Mapping[str, float] | None = None,
    disturbed: Collection[str] = frozenset(),
) -> tuple[str, ...]:
    """Return the candidates that can still win after some rounds; empty when none can catch up.

    A candidate is beaten when its lower quartile is above the leader's upper quartile. The library
    kernel stays in the race, because the never-slower guard compares with it. No candidate is
    beaten while a racer has too few calm turns, or fewer than `CALM_TURNS` samples: where kernels take half a second, a leg has
    a single turn, and the quartiles of one sample are that sample. `MAX_LEGS` ends such a race, too. Other arguments are as in `leaders`.

    Args:
        sampled: Samples of each racer, in milliseconds.
        library: The library kernel.
        launches_ms: Milliseconds the host takes to launch each.
        disturbed: Candidates with too few calm turns.
    """
    racing = tuple(name for name, samples in sampled.items() if samples)
    few = any(len(sampled[name]) < CALM_TURNS for name in racing)
    if len(racing) > 1 and (few or not frozenset(racing).isdisjoint(disturbed)):
        return racing
    on_device = _contenders(sampled, library)
    by_cost = _contenders(sample_costs(sampled, launches_ms or {}), library)
    return tuple(dict.fromkeys((*on_device, *by_cost)))


def _contenders(sampled: Mapping[str, Sequence[float]], library: str | None) -> tuple[str, ...]:
    stats = {name: sample_stats(samples) for name, samples in sampled.items() if samples}
    if len(stats) < 2:
        return ()
    leader = min(stats, key=lambda name: stats[name].median_ms)
    alive = [n for n, s in stats.items() if s.low_ms <= stats[leader].high_ms]
    if len(alive) < 2:
        return ()
    if library in stats and library not in alive:
        alive.append(library)
    return tuple(alive)
