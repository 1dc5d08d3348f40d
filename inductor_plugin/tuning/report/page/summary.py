"""The figures at the head of a report. Pure."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from inductor_plugin.cache import Measured, Record
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.errors import printable
from inductor_plugin.tuning.pins.pin import Pin

_Times = tuple[float, float, bool]
"""Milliseconds of the library kernel and of what runs, and whether they are the same."""
_MOST_STATUSES = 10
"""As many as there are besides ``ok``."""


@dataclass(frozen=True)
class Summary:
    """What tuning has decided, and what it took.

    Attributes:
        problems: Problems, whole graphs not counted.
        decided: Those with a decision that is valid.
        faster: Those in which another kernel than the library's runs.
        stays: Those in which the library kernel runs.
        gain: Geometric mean of the gains of those that are faster, as their rows have them.
        library_ms: Sum of the library kernels' times where both are known, each problem called once.
        chosen_ms: Sum of the chosen kernels' times of the same problems.
        candidates: Candidates of all problems.
        measured: Those that were measured.
        others: How many of each other status there are, the most frequent first; with ``measured`` they are all candidates.
        noisy: Problems whose comparison other work has disturbed.
        compile_s: Seconds that compiling the candidates took, summed over workers.
        samples_s: Seconds of the samples themselves; warming up and checking numbers come on top.
    """

    problems: int = 0
    decided: int = 0
    faster: int = 0
    stays: int = 0
    gain: float | None = None
    library_ms: float = 0.0
    chosen_ms: float = 0.0
    candidates: int = 0
    measured: int = 0
    others: tuple[tuple[str, int], ...] = ()
    noisy: int = 0
    compile_s: float = 0.0
    samples_s: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def summary_of_records(records: Iterable[Record]) -> Summary:
    """Return the figures of records."""
    calls = [record for record in records if record.op != GRAPH]
    rows = [measured for record in calls for measured in record.candidates.values()]
    times = [pair for record in calls if (pair := _times(record)) is not None]
    decided = [decision for record in calls if (decision := record.valid_decision) is not None]
    return Summary(
        problems=len(calls),
        decided=len(decided),
        faster=sum(_is_faster(decision.winner, decision.library) for decision in decided),
        stays=sum(decision.winner == decision.library for decision in decided),
        gain=_mean(
            [
                decision.speedup
                for decision in decided
                if _is_faster(decision.winner, decision.library)
            ]
        ),
        library_ms=total(library for library, _, _ in times),
        chosen_ms=total(winner for _, winner, _ in times),
        candidates=len(rows),
        measured=sum(row.status == "ok" for row in rows),
        others=_others(rows),
        noisy=sum(record.noisy for record in calls),
        compile_s=total(row.compile_s or 0.0 for row in rows),
        samples_s=total(total(row.samples_ms) for row in rows) / 1e3,
    )


def _others(rows: Iterable[Measured]) -> tuple[tuple[str, int], ...]:
    """Return how many candidates have each status but ``ok``; those of the rarest together, since a record can hold any text."""
    counts = Counter(printable(row.status) for row in rows if row.status != "ok")
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(number for _, number in ranked[_MOST_STATUSES:])
    return (*ranked[:_MOST_STATUSES], *([("of other statuses", rest)] if rest else []))


def summary_of_pins(pins: Sequence[Pin]) -> Summary:
    """Return the figures of pins."""
    calls = [pin for pin in pins if pin.op != GRAPH]
    known: list[_Times] = []
    for pin in calls:
        stays = pin.winner == pin.library
        library_ms = pin.winner_ms if stays else pin.library_ms
        if library_ms and pin.winner_ms:
            known.append((library_ms, pin.winner_ms, stays))
    return Summary(
        problems=len(calls),
        decided=len(calls),
        faster=sum(_is_faster(pin.winner, pin.library) for pin in calls),
        stays=sum(pin.winner == pin.library for pin in calls),
        gain=_mean([library / winner for library, winner, stays in known if not stays]),
        library_ms=total(library for library, _, _ in known),
        chosen_ms=total(winner for _, winner, _ in known),
    )


def _is_faster(winner: str, library: str | None) -> bool:
    return library is not None and winner != library


def _times(record: Record) -> _Times | None:
    """Return the milliseconds of the library kernel and of what runs, None unless both are known."""
    decision = record.valid_decision
    if decision is None or decision.library is None:
        return None
    library, winner = (record.candidates.get(name) for name in (decision.library, decision.winner))
    if library is None or winner is None or not library.median_ms or not winner.median_ms:
        return None
    return library.median_ms, winner.median_ms, library is winner


def total(values: Iterable[float]) -> float:
    """Return a sum, the greatest finite number if it is greater: a record may hold any finite numbers."""
    return min(sum(values), sys.float_info.max)


def _mean(gains: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the gains that are known, None where there is none or it is no number."""
    logs = [math.log(gain) for gain in gains if gain is not None and 0.0 < gain < math.inf]
    if not logs:
        return None
    with suppress(OverflowError):
        return math.exp(sum(logs) / len(logs))
    return None
