"""Choice of the winner, with the never-slower guard, and the reason for it. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median


@dataclass(frozen=True)
class Verdict:
    """What runs, and why.

    Attributes:
        winner: The candidate that runs; None if nothing could be measured and there is no library kernel.
        library: The fastest library kernel among the offered candidates, if any.
        reason: One sentence for people.
        speedup: Library time over winner time: 1.0 where the library kernel stays. None if one of them is not known.
        rejected_speedup: Where the library kernel stays, its time over that of the fastest other candidate; None if one of
            them is not known.
        given_up: The candidate that would run if the graph were not slower with it.
        provisional: True if a later compile is to decide again: other work has prolonged samples, or the tuning budget ended
            before the finals, or a gain was less than the samples vary.
        unproven: The candidate that would have run, had its samples varied less.
    """

    winner: str | None
    library: str | None
    reason: str
    speedup: float | None = None
    rejected_speedup: float | None = None
    given_up: str | None = None
    provisional: bool = False
    unproven: str | None = None

    def __post_init__(self) -> None:
        """Let a library kernel that stays be as fast as itself: the factor is that of the candidate that was rejected."""
        stays = self.winner is not None and self.winner == self.library
        if stays and self.speedup not in (None, 1.0):
            if self.rejected_speedup is None:
                object.__setattr__(self, "rejected_speedup", self.speedup)
            object.__setattr__(self, "speedup", 1.0)


@dataclass(frozen=True)
class Gain:
    """By what factor a candidate was faster than the library kernel in the turns of a race, each turn compared by itself.

    What prolongs a whole turn (a hypervisor, another clock, traffic in memory) prolongs both samples, and drops out.

    Attributes:
        factor: The median of the turns' factors.
        low: The lower end of its 95 % interval, by ranks: no distribution of the noise is assumed. 0 in fewer than six
            turns, which have no such interval.
    """

    factor: float
    low: float


def gain_of(library_ms: Sequence[float], candidate_ms: Sequence[float]) -> Gain | None:
    """Return the gain of a candidate; None without a turn that both took.

    Args:
        library_ms: The library kernel's samples, one a turn.
        candidate_ms: The candidate's in the same turns, or in the first of them: after a leg of the race it may have been
            out, and only the library kernel goes on to the end.
    """
    pairs = zip(library_ms, candidate_ms, strict=False)
    factors = sorted(a / b for a, b in pairs if b > 0)
    if not factors:
        return None
    rank = _rank(len(factors))
    return Gain(median(factors), factors[rank - 1] if rank else 0.0)


@functools.cache
def _rank(count: int) -> int:
    """Return the rank, from 1, of the lower end of the 95 % interval of the median of ``count`` sorted values; 0 for too few values."""
    below, rank = 1, 0
    while 40 * below <= 2**count:  # 2.5 %
        rank += 1
        below += math.comb(count, rank)
    return rank


_PROLONGED = "other work on the machine has prolonged samples"
_CUT_SHORT = "the tuning budget ended before the finals"
_MEASURED_AGAIN = "it is measured again"
_WORTH_MORE = 1.05
"""A factor from which a gain that the samples do not prove is worth another measurement."""


def decide(
    medians_ms: Mapping[str, float],
    libraries: Collection[str],
    margin: float,
    spreads: Mapping[str, float] | None = None,
    disturbed: Collection[str] = frozenset(),
    turns: Mapping[str, Sequence[float]] | None = None,
    apart: Collection[str] = frozenset(),
) -> Verdict:
    """Return which candidate runs, and why.

    Other work on the machine only prolongs samples. So a candidate whose shortest disturbed sample beats the calm ones that the
    library kernel has in the same race wins: undisturbed it would be faster still. Of another race that concludes nothing,
    since clocks change. A library kernel without an undisturbed sample stays.

    Args:
        medians_ms: Milliseconds of every offered candidate with valid measurements; the shortest sample of those that
            are disturbed.
        libraries: The library kernels among the offered candidates, measured or not, in Inductor's
            order of preference.
        margin: A candidate must be this many times faster than the library kernel to replace it.
        spreads: Interquartile range of candidates' samples as a share of their median, for noisy
            samples: the gain must exceed the mean of both ranges.
        disturbed: Candidates all of whose samples are disturbed.
        turns: Samples of candidates that were measured in the same turns, one a turn, from the first turn on: where the
            library kernel is among them, they are compared turn by turn, and a gain may be smaller than the samples vary
            if it is there in enough of the turns.
        apart: Disturbed candidates that were measured in another race than the library kernel: they do not replace it.
    """
    calm = {n: ms for n, ms in (turns or {}).items() if n not in disturbed}
    verdict = _decided(medians_ms, libraries, margin, spreads or {}, disturbed, calm, apart)
    if medians_ms.keys().isdisjoint(disturbed) or len(medians_ms) < 2:
        return verdict
    return _provisional(verdict, _PROLONGED)


def _provisional(verdict: Verdict, why: str) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason} (provisional, {why})", provisional=True)


def open_to(
    verdict: Verdict,
    late: Collection[str],
    undecided: Collection[str] = frozenset(),
    unproven: Collection[str] = frozenset(),
) -> Verdict:
    """Return a decision as a provisional one, if candidates are out only by other work, or were not in enough turns.

    How fast these candidates are is not known, so a later compile measures them again.

    Args:
        verdict: The decision among the others.
        late: Candidates that ran, took no part in the decision, and have no undisturbed sample.
        undecided: Candidates that the end of the tuning budget kept from the finals.
        unproven: Candidates whose gain was less than their samples vary, and that are measured again.
    """
    if verdict.provisional or not (late or undecided or unproven):
        return verdict
    why = _PROLONGED if late else _CUT_SHORT if undecided else _MEASURED_AGAIN
    return _provisional(verdict, why)


def _decided(
    medians_ms: Mapping[str, float],
    libraries: Collection[str],
    margin: float,
    spreads: Mapping[str, float],
    disturbed: Collection[str],
    turns: Mapping[str, Sequence[float]],
    apart: Collection[str],
) -> Verdict:
    measured_libraries = [name for name in libraries if name in medians_ms]
    calm = [name for name in measured_libraries if name not in disturbed]
    library = min(calm or measured_libraries, key=medians_ms.__getitem__, default=None)
    if library is None:
        fallback = next(iter(libraries), None)
        if fallback is not None:
            return Verdict(fallback, fallback, "the library kernel was not measured, so it stays")
        winner = min(medians_ms, key=medians_ms.__getitem__, default=None)
        reason = (
            "fastest; there is no library kernel to compare it with"
            if winner
            else "nothing was measured"
        )
        return Verdict(winner, None, reason)
    others = medians_ms.keys() - set(libraries)
    rivals = others - set(apart)
    if others and not (calm and rivals):
        return Verdict(library, library, "the library kernel stays for now")
    contending = {n: medians_ms[n] for n in medians_ms if n in rivals or n in (calm or [library])}
    gains = _gains(library, rivals, turns)
    factors = {
        name: gains[name].factor if name in gains else medians_ms[library] / ms if ms > 0 else 1.0
        for name, ms in contending.items()
    }
    fastest = max(factors, key=factors.__getitem__)
    if fastest == library:
        rejected = max((f for name, f in factors.items() if name not in libraries), default=None)
        return Verdict(library, library, "the library kernel is the fastest", 1.0, rejected)
    # Samples of the fastest may vary too much to prove its gain, and those of the next prove theirs.
    unsteady = {
        # Faster in enough of the turns, however long they were, is proof enough.
        name: 1.0
        if name in gains and gains[name].low > 1.0
        else 1 + sum(spreads.get(each, 0.0) for each in (library, name)) / 2
        for name in factors
        if name not in libraries
    }
    proven = [name for name in unsteady if factors[name] >= max(margin, unsteady[name])]
    winner = max(proven, key=factors.__getitem__, default=None)
    if winner is not None:
        speedup = factors[winner]
        return Verdict(winner, library, f"{speedup:.3f}x faster than the library kernel", speedup)
    speedup = factors[fastest]
    why = (
        f"below the margin of {margin:g}x"
        if unsteady[fastest] <= margin
        else f"less than the samples vary ({unsteady[fastest]:.3f}x)"
    )
    reason = f"the library kernel stays: {fastest} is {speedup:.3f}x faster, {why}"
    unproven = fastest if speedup >= max(margin, _WORTH_MORE) else None
    return Verdict(library, library, reason, 1.0, speedup, unproven=unproven)


def _gains(
    library: str, rivals: Collection[str], turns: Mapping[str, Sequence[float]]
) -> dict[str, Gain]:
    """Return the gain over a library kernel of those that were measured in its turns, or in the first of them."""
    own = turns.get(library, ())
    paired = [name for name in rivals if len(turns.get(name, ())) <= len(own)]
    gains = {name: gain_of(own, turns.get(name, ())) for name in paired}
    return {name: gain for name, gain in gains.items() if gain is not None}


def explained(verdict: Verdict, on_device: Verdict, launches_ms: Mapping[str, float]) -> Verdict:
    """Return a decision by cost with its reason, where the device alone would have decided otherwise."""
    other = on_device.winner
    if other is None or other == verdict.winner:
        return verdict
    launch = 1e3 * launches_ms.get(other, 0.0)
    why = f"{other} is faster on the device, but its launch takes the host {launch:.1f} us"
    return replace(verdict, reason=f"{verdict.reason}; {why}")


def of_graph(verdict: Verdict, *, held: bool) -> Verdict:
    """Return a decision as it applies in one graph.

    Args:
        verdict: Which candidate is the best alone.
        held: Whether the graph is slower with it: the library kernel runs there, if there is one.
    """
    if not held or verdict.library in (None, verdict.winner):
        return verdict
    reason = f"the library kernel stays: the graph is slower with {verdict.winner}"
    return replace(verdict, winner=verdict.library, given_up=verdict.winner, reason=reason)


def upper_bounds(
    medians_ms: Mapping[str, float],
    samples_ms: Mapping[str, Sequence[float]],
    libraries: Collection[str],
    disturbed: Collection[str],
) -> dict[str, float]:
    """Return milliseconds that disturbed candidates take at most: their shortest sample.

    The shortest of many is below the median of calm ones: it is compared with the library kernel's shortest.
    """
    calm = [name for name in libraries if name in medians_ms and name not in disturbed]
    library = min(calm, key=medians_ms.__getitem__, default=None)
    shortest = min(samples_ms.get(library, ()), default=0.0) if library is not None else 0.0
    factor = medians_ms[library] / shortest if library is not None and shortest > 0 else 1.0
    return {
        name: max(factor, 1.0) * min(samples_ms[name]) for name in disturbed if samples_ms.get(name)
    }


def guarded(medians_ms: Mapping[str, float], verdict: Verdict) -> dict[str, float]:
    """Return timings in which the winner is the minimum.

    Inductor estimates epilogue fusions from the timings of all candidates, so the others keep theirs;
    a candidate that was faster than the winner, but not by the margin, is reported slightly slower.
    """
    if verdict.winner is None or verdict.winner not in medians_ms:
        return dict(medians_ms)
    floor = medians_ms[verdict.winner]
    return {
        name: value if name == verdict.winner else max(value, floor * 1.000001)
        for name, value in medians_ms.items()
    }
