"""Choice of the winner, with the never-slower guard, and the reason for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What runs, and why.

    Attributes:
        winner: The candidate that runs; None if nothing could be measured and there is no library kernel.
        library: The fastest library kernel among the offered candidates, if any.
        reason: One sentence for people.
        speedup: Library time over winner time; None if one of them is not known.
    """

    winner: str | None
    library: str | None
    reason: str
    speedup: float | None = None


def decide(
    medians_ms: Mapping[str, float],
    libraries: Collection[str],
    margin: float,
    spreads: Mapping[str, float] | None = None,
) -> Verdict:
    """Return which candidate runs, and why.

    Args:
        medians_ms: Milliseconds of every offered candidate with valid measurements.
        libraries: The library kernels among the offered candidates, measured or not, in Inductor's
            order of preference.
        margin: A candidate must be this many times faster than the library kernel to replace it.
        spreads: Interquartile range of candidates' samples as a share of their median, for noisy
            samples: the gain must exceed the mean of both ranges.
    """
    measured_libraries = [name for name in libraries if name in medians_ms]
    library = min(measured_libraries, key=medians_ms.__getitem__, default=None)
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
    winner = min(medians_ms, key=medians_ms.__getitem__)
    speedup = medians_ms[library] / medians_ms[winner] if medians_ms[winner] > 0 else 1.0
    if winner == library:
        return Verdict(library, library, "the library kernel is the fastest", 1.0)
    unsteady = 1 + sum((spreads or {}).get(name, 0.0) for name in (library, winner)) / 2
    if speedup < max(margin, unsteady):
        why = (
            f"below the margin of {margin:g}x"
            if unsteady <= margin
            else f"less than the samples vary ({unsteady:.3f}x)"
        )
        reason = f"the library kernel stays: {winner} is {speedup:.3f}x faster, {why}"
        return Verdict(library, library, reason, speedup)
    return Verdict(winner, library, f"{speedup:.3f}x faster than the library kernel", speedup)


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
