"""Choice of the winner, with the never-slower guard, and the reason for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Verdict:
    """What runs, and why.

    Attributes:
        winner: The candidate that runs; None if nothing could be measured and there is no library kernel.
        library: The fastest library kernel among the offered candidates, if any.
        reason: One sentence for people.
        speedup: Library time over winner time; None if one of them is not known.
        given_up: The candidate that would run if the graph were not slower with it.
        provisional: True if a later compile is to decide again, since other work has prolonged samples.
    """

    winner: str | None
    library: str | None
    reason: str
    speedup: float | None = None
    given_up: str | None = None
    provisional: bool = False


_PROVISIONAL = "provisional, other work on the machine has prolonged samples"


def decide(
    medians_ms: Mapping[str, float],
    libraries: Collection[str],
    margin: float,
    spreads: Mapping[str, float] | None = None,
    disturbed: Collection[str] = frozenset(),
) -> Verdict:
    """Return which candidate runs, and why.

    Other work on the machine only prolongs samples. So a candidate whose shortest disturbed sample beats the library
    kernel wins; a library kernel without an undisturbed sample stays.

    Args:
        medians_ms: Milliseconds of every offered candidate with valid measurements; the shortest sample of those that
            are disturbed.
        libraries: The library kernels among the offered candidates, measured or not, in Inductor's
            order of preference.
        margin: A candidate must be this many times faster than the library kernel to replace it.
        spreads: Interquartile range of candidates' samples as a share of their median, for noisy
            samples: the gain must exceed the mean of both ranges.
        disturbed: Candidates all of whose samples are disturbed.
    """
    verdict = _decided(medians_ms, libraries, margin, spreads or {}, disturbed)
    if medians_ms.keys().isdisjoint(disturbed) or len(medians_ms) < 2:
        return verdict
    return _provisional(verdict)


def _provisional(verdict: Verdict) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason} ({_PROVISIONAL})", provisional=True)


def open_to(verdict: Verdict, late: Collection[str]) -> Verdict:
    """Return a decision as a provisional one, if candidates are out only because other work has prolonged their samples.

    How fast they are is not known: each time of theirs is that beside other work. The decision holds until then.

    Args:
        verdict: The decision among the others.
        late: Candidates that ran, took no part in the decision, and have no undisturbed sample.
    """
    return verdict if verdict.provisional or not late else _provisional(verdict)


def _decided(
    medians_ms: Mapping[str, float],
    libraries: Collection[str],
    margin: float,
    spreads: Mapping[str, float],
    disturbed: Collection[str],
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
    contending = {n: ms for n, ms in medians_ms.items() if n not in libraries or n in calm}
    if not calm:
        if contending:
            return Verdict(library, library, "the library kernel stays for now")
        contending = {library: medians_ms[library]}
    winner = min(contending, key=contending.__getitem__)
    speedup = medians_ms[library] / medians_ms[winner] if medians_ms[winner] > 0 else 1.0
    if winner == library:
        return Verdict(library, library, "the library kernel is the fastest", 1.0)
    unsteady = 1 + sum(spreads.get(name, 0.0) for name in (library, winner)) / 2
    if speedup < max(margin, unsteady):
        why = (
            f"below the margin of {margin:g}x"
            if unsteady <= margin
            else f"less than the samples vary ({unsteady:.3f}x)"
        )
        reason = f"the library kernel stays: {winner} is {speedup:.3f}x faster, {why}"
        return Verdict(library, library, reason, speedup)
    return Verdict(winner, library, f"{speedup:.3f}x faster than the library kernel", speedup)


def explained(verdict: Verdict, on_device: Verdict, launches_ms: Mapping[str, float]) -> Verdict:
    """Return a decision by cost with its reason, where the device alone would have decided otherwise."""
    other = on_device.winner
    if other is None or other == verdict.winner:
        return verdict
    launch = 1e3 * launches_ms.get(other, 0.0)
    why = f"{other} is faster on the device, but its launch takes the host {launch:.1f} us"
    return replace(verdict, reason=f"{verdict.reason}; {why}")


def without_choice(verdict: Verdict) -> Verdict:
    """Return the decision for the library kernel in a graph that is slower with the winner."""
    reason = f"the library kernel stays: the graph is slower with {verdict.winner}"
    return replace(
        verdict, winner=verdict.library, given_up=verdict.winner, reason=reason, speedup=None
    )


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
