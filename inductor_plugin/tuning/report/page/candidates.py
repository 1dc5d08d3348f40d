"""Measured candidates in few numbers: what they are, how it went, and how their samples spread. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inductor_plugin.cache.record import Measured, Record, failed
from inductor_plugin.tuning.report.page.texts import Shared, Texts

CANDIDATE = ("form", "outcome", "median", "low", "q1", "q3", "high", "samples", "compile", "each")
"""The columns of a candidate. ``median`` is in milliseconds; ``low`` to ``high`` and each of ``each`` are thousandths of the
median away from it; ``compile`` in seconds."""
MOST_SAMPLES = 150_000
"""Samples of a page that are drawn each; with more, boxes alone are drawn."""
MOST_CANDIDATES = 120_000
"""Candidates of a page; with more, of each record the fastest `FASTEST` are in it, and what was compared."""
FASTEST = 10
_WHOLE = 2**53
"""From here on a whole number has more digits than it says."""


@dataclass(frozen=True)
class Detail:
    """How much of each candidate a page has.

    Attributes:
        every: Whether all candidates are in it.
        samples: Whether each sample is.
    """

    every: bool = True
    samples: bool = True


def detail_of(records: Iterable[Record]) -> Detail:
    """Return how much of the candidates of these records fits into a page."""
    candidates = samples = 0
    for record in records:
        candidates += len(record.candidates)
        samples += sum(len(measured.samples_ms) for measured in record.candidates.values())
    return Detail(candidates <= MOST_CANDIDATES, samples <= MOST_SAMPLES)


class Forms:
    """The candidates that a page names, and how candidates went, each written once."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.forms: Shared[tuple[int, int, int, int]] = Shared()
        """Identity, name, kind and configuration, as indices of texts."""
        self.outcomes: Shared[tuple[int, int, int]] = Shared()
        """Status, reason and whether it is noisy."""

    def form(self, candidate: str, name: str, kind: str, description: str) -> int:
        """Return the index of a candidate."""
        texts = (candidate, name, kind, description)
        a, b, c, d = (self._texts.place(text) for text in texts)
        return self.forms.place((a, b, c, d))

    def outcome(self, status: str, reason: str, *, noisy: bool = False) -> int:
        """Return the index of an outcome."""
        place = self._texts.place
        return self.outcomes.place((place(status), place(reason), int(noisy)))


def candidate_row(measured: Measured, forms: Forms, detail: Detail) -> list[object]:
    """Return a candidate in the order of `CANDIDATE`."""
    median = measured.median_ms
    return [
        forms.form(measured.candidate, measured.name, measured.kind, measured.description),
        forms.outcome(measured.status, measured.reason, noisy=measured.noisy),
        digits(median),
        *_spread(measured.samples_ms, median),
        len(measured.samples_ms),
        digits(measured.compile_s, 3),
        _each(measured.samples_ms, median) if detail.samples else 0,
    ]


def in_page(record: Record, detail: Detail) -> list[Measured]:
    """Return the candidates of a record that are in the page, the fastest first, then those that failed."""
    ranked = sorted(record.candidates.values(), key=_rank)
    if detail.every:
        return ranked
    decision = record.valid_decision
    named = (decision.winner, decision.library) if decision else ()
    kept = ranked[:FASTEST]
    return kept + [m for m in ranked[FASTEST:] if m.candidate in named or failed(m)]


def _rank(measured: Measured) -> tuple[bool, float, str]:
    usable = measured.status == "ok" and measured.median_ms is not None
    return not usable, measured.median_ms or 0.0, measured.candidate


def digits(value: float | None, count: int = 5) -> float | None:
    """Return a number with few significant digits, whole numbers without a point; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{count}g}")
    if not math.isfinite(short):  # rounded up, the greatest float is none
        return value
    return int(short) if short.is_integer() and abs(short) < _WHOLE else short


def _spread(samples: Sequence[float], median: float | None) -> list[int]:
    """Return the least sample, the quartiles and the greatest, in thousandths of the median away from it."""
    if not samples or not median:
        return [0, 0, 0, 0]
    quartiles = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else []
    low, high = (quartiles[0], quartiles[2]) if quartiles else (samples[0], samples[0])
    return [_away(value, median) for value in (min(samples), low, high, max(samples))]


def _each(samples: Sequence[float], median: float | None) -> list[int] | int:
    return [_away(sample, median) for sample in samples] if median else 0


def _away(value: float, median: float) -> int:
    share = 1e3 * (value / median - 1)
    return 0 if math.isnan(share) else round(max(-1000.0, min(share, 1e6)))
