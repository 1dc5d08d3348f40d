"""How much slower the recorded winners are than the fastest candidates, by samples taken now. Pure.

Regret is the term of the bandit literature: what a choice costs compared with the best one in hindsight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from inductor_plugin.cache import Record, report
from inductor_plugin.cache.layout import place_of
from inductor_plugin.errors import printable

NEAR = 1.02
"""A choice is near the fastest candidate up to this multiple of its time."""
_FAR = 2.0
"""Candidates whose shortest recorded sample is longer than this multiple of the winner's median are not timed again: other
work only prolongs samples. Those of which all samples are disturbed, by any factor, are."""
_NORMAL_95 = 1.96
_LEAST_VALUES = 6
"""Values that a 95 % interval of their median needs: between the least and the largest of five it is with 94 %."""
_MOST = 8
"""Most candidates that are timed for one record, the fastest by the record: each is compiled for itself."""


@dataclass(frozen=True)
class Regret:
    """The regret of one record.

    Attributes:
        winner: The candidate that the record chose.
        fastest: The candidate that is the fastest now; the winner if none is faster.
        winner_ms: Milliseconds a call of the winner, the median, with what the compiled graph does around it.
        ratio: The winner's time over that of the fastest, the median of turns; 1 if the winner is the fastest.
        low: Lower bound of the ratio's 95 % interval; 0 where there are too few turns for one.
        high: Upper bound; infinite likewise.
        timed: Number of candidates that were timed, the winner included.
    """

    winner: str
    fastest: str
    winner_ms: float
    ratio: float
    low: float
    high: float
    timed: int

    @property
    def lost_ms(self) -> float:
        """Milliseconds a call that the fastest candidate would save."""
        return self.winner_ms * (1.0 - 1.0 / self.ratio)

    @property
    def near(self) -> bool:
        """True if the winner takes at most 2 % longer than the fastest; of few turns nobody knows."""
        return self.ratio <= NEAR and math.isfinite(self.high)

    @property
    def unclear(self) -> bool:
        """True if the winner is not known to be near, and its interval agrees with no loss at all, too."""
        return not self.near and self.low <= 1.0


def rivals(record: Record) -> list[str]:
    """Return the candidates that are worth timing besides the winner, those with the shortest recorded samples first."""
    decision = record.valid_decision
    winner = record.candidates.get(decision.winner) if decision else None
    if decision is None or winner is None or winner.median_ms is None:
        return []
    limit = _FAR * winner.median_ms
    shortest_ms = {
        name: min((*measured.samples_ms, measured.median_ms))
        for name, measured in record.candidates.items()
        if measured.status == "ok" and measured.median_ms is not None and name != decision.winner
    }
    close = [
        (ms, name)
        for name, ms in shortest_ms.items()
        if ms <= limit or name == decision.library or record.candidates[name].noisy
    ]
    return [name for _, name in sorted(close)[: _MOST - 1]]


def regret(winner: str, samples_ms: Mapping[str, Sequence[float]]) -> Regret:
    """Return the regret of a winner.

    The fastest is found by every second turn, and how much faster it is by the others: the least of many noisy medians is
    too low by chance, and would look like regret.

    Args:
        winner: The candidate that the record chose.
        samples_ms: Milliseconds by candidate, in the turns in which they were taken; four or more, and of fewer than twelve
            there is no interval.
    """
    fastest = min(samples_ms, key=lambda name: (median(samples_ms[name][::2]), name != winner))
    pairs = zip(samples_ms[winner][1::2], samples_ms[fastest][1::2], strict=True)
    ratio, low, high = interval([own / best for own, best in pairs])
    if ratio < 1.0:  # the other turns do not confirm it
        fastest, ratio = winner, 1.0
        low, high = (1.0, 1.0) if math.isfinite(high) else (low, high)
    winner_ms = median(samples_ms[winner])
    return Regret(winner, fastest, winner_ms, ratio, low, high, len(samples_ms))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, by the ranks of the binomial distribution: 0 to infinity of fewer than six values."""
    if len(values) < _LEAST_VALUES:
        return median(values), 0.0, math.inf
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    low, high = int(len(values) / 2 - half), int(len(values) / 2 + half + 1)
    return median(ordered), ordered[max(low, 0)], ordered[min(high, len(ordered) - 1)]


def bound(value: float) -> float | None:
    """Return an end of an interval as JSON has it: None if there is none."""
    return value if math.isfinite(value) else None


def sureness(times: Mapping[str, Any]) -> str:
    """Return the interval of a speedup in words; ``times`` has its ends as ``low`` and ``high``."""
    if times["high"] is None:
        return "in too few turns without other work for an interval"
    return f"with 95 % between {times['low']:.3f}x and {times['high']:.3f}x"


def share(marks: Sequence[tuple[str, bool]]) -> tuple[float, float, float] | None:
    """Return the share of choices that are marked, and its 95 % interval (Wilson); None of no choice.

    Choices of one problem are not independent, so the interval is that of as many choices as there are problems.

    Args:
        marks: Of each choice its problem, and whether it is marked.
    """
    if not marks:
        return None
    part = sum(mark for _, mark in marks) / len(marks)
    count, square = len({name for name, _ in marks}), _NORMAL_95**2
    middle = (part + square / (2 * count)) / (1 + square / count)
    half = _NORMAL_95 * math.sqrt(part * (1 - part) / count + square / (4 * count * count))
    half /= 1 + square / count
    return round(part, 4), round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def row(record: Record, result: Regret, missing: Sequence[str] = ()) -> dict[str, Any]:
    """Return the regret of a record as plain values.

    Args:
        record: The record.
        result: Its regret.
        missing: Candidates that did not run where they were named: they are not offered any more, or quarantined.
    """
    return {
        "key": record.digest,
        "op": record.op,
        "environment": record.environment,
        "describe": record.describe,
        "noisy": record.noisy,
        "winner": result.winner,
        "fastest": result.fastest,
        "winner_ms": result.winner_ms,
        "ratio": result.ratio,
        "low": result.low,
        "high": bound(result.high),
        "lost_ms": result.lost_ms,
        "near": result.near,
        "unclear": result.unclear,
        "timed": result.timed,
        "missing": list(missing),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the regret of all rows: how many are near the fastest, and the milliseconds that one call of each loses.

    ``near_low`` and ``near_high`` are the 95 % interval of the share that is near, None without rows.
    """
    firm = [r for r in rows if not r["noisy"]]
    _, low, high = share([(_place(r), r["near"]) for r in rows]) or (None, None, None)
    return {
        "timed": len(rows),
        "near": sum(r["near"] for r in rows),
        "near_low": low,
        "near_high": high,
        "unclear": sum(r["unclear"] for r in rows),
        "firm": len(firm),
        "firm_near": sum(r["near"] for r in firm),
        **_loss(rows),
    }


def losses(
    rows: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return what one call of each problem of a model or graph loses, the most first; groups none of whose problems was timed are left out.

    Args:
        rows: As from `row`.
        groups: Places of problems (`Record.place`) by the name of what they are of; a problem may be of several.
    """
    timed = {_place(r): r for r in rows}
    own = {
        name: [timed[place] for place in set(places) & timed.keys()]
        for name, places in groups.items()
    }
    lost = [{"name": name, "timed": len(of), **_loss(of)} for name, of in own.items() if of]
    return sorted(lost, key=lambda each: (-each["lost_ms"], each["name"]))


def _loss(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    total, lost = sum(r["winner_ms"] for r in rows), sum(r["lost_ms"] for r in rows)
    return {
        "total_ms": total,
        "lost_ms": lost,
        "ratio": total / (total - lost) if total else 1.0,
    }


def _place(of: Mapping[str, Any]) -> str:
    return place_of(of["environment"], of["op"], of["key"])


def text(
    rows: Sequence[Mapping[str, Any]],
    left_out: Sequence[tuple[str, str]],
    alone: int,
    models: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the table that people read.

    Args:
        rows: As from `row`.
        left_out: Records that could not be timed, in words, and why.
        alone: Number of records with a single candidate.
        models: As from `losses`.
    """
    heads = ("KEY", "MS", "REGRET", "95 %", "RUNS", "FASTEST", "PROBLEM")
    table = report.columns(
        heads,
        (
            (
                r["key"][:12],
                report.number_text(r["winner_ms"]),
                f"{r['ratio']:.3f}x",
                "-" if r["high"] is None else f"{r['low']:.3f}-{r['high']:.3f}",
                r["winner"],
                "-" if r["fastest"] == r["winner"] else r["fastest"],
                f"{r['describe']}{' noisy' if r['noisy'] else ''}",
            )
            for r in sorted(rows, key=lambda r: -r["lost_ms"])
        ),
    )
    facts = summary(rows)
    lines = [table] if rows else []
    lines += [f"not timed: {what}: {why}" for what, why in left_out]
    lines += [
        f"not timed: {name} of {r['describe']}: it is not offered any more, or in quarantine"
        for r in rows
        for name in r["missing"]
    ]
    unclear = f", of {facts['unclear']} others it is unclear" if facts["unclear"] else ""
    sure = f" (95 %: {facts['near_low']:.0%} to {facts['near_high']:.0%})" if rows else ""
    lines.append(
        f"{facts['near']} of {facts['timed']} winners are within {NEAR - 1:.0%} of the fastest{sure}{unclear}; "
        f"one call of each takes {facts['total_ms']:.4g} ms, {facts['lost_ms']:.4g} ms of it lost"
    )
    lines += [
        f"{printable(each['name'])}: {each['timed']} problems, {each['lost_ms']:.4g} of {each['total_ms']:.4g} ms lost"
        for each in models
    ]
    if alone:
        lines.append(f"{alone} records have one candidate, or no valid decision")
    return "\n".join(lines)
