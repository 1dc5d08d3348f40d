"""How fast networks are in one arm against another, and how sure that is. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.models.plan import GUARDED, Run

LIMIT = 1.02
"""A network is slower in an arm if it takes more than this multiple of the other arm's time."""
RATIOS = {
    "to_plain": ("ours", "plain"),
    "to_stock": ("ours", "stock"),
    "stock_to_plain": ("stock", "plain"),
    "guarded_to_plain": (GUARDED, "plain"),
    "guarded_to_ours": (GUARDED, "ours"),
}
"""Ratios by name: an arm's time in that of another."""
CLAIMED = ("to_plain", "to_stock")
WITHIN, SLOWER, OPEN = "within", "slower", "open"
"""Verdicts by the interval of a ratio: below the limit, above it, or on both sides."""
LOOKS = (3, 6)
"""Launches after which it is looked whether further ones are wanted; the last ends it."""
_STUDENT = (25.452, 6.205, 4.177, 3.495, 3.163, 2.969, 2.841, 2.752, 2.685)
"""0.9875 quantiles of Student's t by degrees of freedom, from 1 on: at each of two looks an interval is wrong in 2.5 % of cases, so
that the figure where it ends is in at most 5 %."""

Launch = Mapping[str, Sequence[float]]
"""The samples of one process an arm, by arm, in milliseconds and in turns."""


def ratios(launches: Sequence[Launch]) -> dict[str, dict[str, Any]]:
    """Return the time of one arm in that of another, with its interval and verdict, where both have samples in all launches."""
    result: dict[str, dict[str, Any]] = {}
    for name, (arm, other) in RATIOS.items():
        if launches and all(each.get(arm) and each.get(other) for each in launches):
            pairs = [
                [a / b for a, b in zip(each[arm], each[other], strict=False)] for each in launches
            ]
            result[name] = interval(pairs)
    return result


def interval(launches: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the geometric mean of the medians of launches, and its 95 % interval by Student's t.

    Two processes of the same code differ by the places of their memory, which rounds of one process share: each launch is one
    observation, however many its rounds. A bootstrap of three of them covers the mean in 75 % of cases.

    Args:
        launches: Ratios of the rounds of each launch; of a single one the interval is unbounded: 0 to None.
    """
    logs = [math.log(statistics.median(values)) for values in launches]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return {"median": round(math.exp(middle), 4), "low": 0.0, "high": None, "verdict": OPEN}
    quantile = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(middle - half), math.exp(middle + half)
    return {
        "median": round(math.exp(middle), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "verdict": verdict(low, high),
    }


def verdict(low: float, high: float, limit: float = LIMIT) -> str:
    """Return whether an interval is within a limit, above it, or neither."""
    if high <= limit:
        return WITHIN
    return SLOWER if low > limit else OPEN


def is_settled(figures: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if further launches would decide nothing that is claimed."""
    return all(figures[name]["verdict"] != OPEN for name in CLAIMED if name in figures)


def configuration(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of the networks of one configuration, and what comparing graphs has cost.

    Means are those of networks in which there is something to choose: of the others all arms run the same code, and what their
    times differ in is chance. Whether a network is slower is said of all.

    Args:
        rows: The rows, with a ratio each where its arms have samples.
    """
    fixed = [row["network"] for row in rows if not has_choices(row)]
    result: dict[str, Any] = {"networks": len(rows), "without_choices": fixed}
    for name in RATIOS:
        known = {row["network"]: row[name] for row in rows if name in row}
        if known:
            result[name] = _of_networks(known, fixed)
    later_s = sum(row["later_guard_s"] for row in rows)
    result |= {**_guard(rows, "ours"), "later_guard_s": round(later_s, 2)}
    if any(GUARDED in row["tuning"] for row in rows):
        result[GUARDED] = _guard(rows, GUARDED)
    return result


def has_choices(row: Mapping[str, Any]) -> bool:
    """Return True if the plugin had a call with more than one candidate in a network."""
    return row["tuning"].get("ours", {}).get("problems", 0) > 0


def _guard(rows: Sequence[Mapping[str, Any]], arm: str) -> dict[str, Any]:
    """Return what comparing graphs has cost an arm in seconds and as a share of its compiles, and how many it has compared."""
    reports = [report for row in rows if (report := row["tuning"].get(arm)) and "guard_s" in report]
    guard_s, compile_s = (sum(r[field] for r in reports) for field in ("guard_s", "first_call_s"))
    return {
        "guard_s": round(guard_s, 2),
        "guard_share": round(guard_s / compile_s, 4) if compile_s else None,
        **{
            name: sum(report[name] for report in reports)
            for name in ("graphs_compared", "graphs_reduced", "graphs_left_out")
        },
    }


def _of_networks(known: Mapping[str, Mapping[str, Any]], fixed: Collection[str]) -> dict[str, Any]:
    """Return the geometric mean of a ratio over networks with its interval, the largest, and who is slower or may be.

    Args:
        known: The ratios by network.
        fixed: Networks without choices, which are not in the mean; it is None where no others are, or one has no interval.
    """
    chosen = [each for name, each in known.items() if name not in fixed]
    return {
        **_mean_of(chosen),
        "largest": max(each["median"] for each in known.values()),
        "slower": [name for name, each in known.items() if each["verdict"] == SLOWER],
        "open": [name for name, each in known.items() if each["verdict"] == OPEN],
    }


def _mean_of(ratios: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    if not ratios or any(each["high"] is None for each in ratios):
        return dict.fromkeys(("mean", "low", "high", "without_the_fastest"))
    logs = sorted(math.log(each["median"]) for each in ratios)
    errors = [math.log(each["high"] / each["low"]) / 2 for each in ratios]
    middle = statistics.fmean(logs)
    half = math.sqrt(sum(error**2 for error in errors)) / len(errors)
    return {
        "mean": round(math.exp(middle), 4),
        "low": round(math.exp(middle - half), 4),
        "high": round(math.exp(middle + half), 4),
        "without_the_fastest": round(math.exp(statistics.fmean(logs[1:] or logs)), 4),
    }


def by_configuration(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of each configuration, with its name, in the order of the rows."""
    names = dict.fromkeys(row["configuration"] for row in rows)
    return [
        {"name": name, **configuration([row for row in rows if row["configuration"] == name])}
        for name in names
    ]


def summary(figures: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the geometric means and the largest ratios of the first configuration that was measured."""
    usual = Run("").configuration
    measured = [each for each in figures if each["name"] == usual] or [*figures]
    first: Mapping[str, Any] = measured[0] if measured else {}
    known = {name: first[name] for name in RATIOS if name in first}
    means = {name: each["mean"] for name, each in known.items()}
    return means | {f"largest_{name}": each["largest"] for name, each in known.items()}


def claims(figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is claimed of each configuration, and whether it holds by the intervals; None where they leave it open.

    Of the guarded arm it is None, too, where no graph was compared: nothing is known of what did not run.
    """
    result: list[dict[str, Any]] = []
    for each in figures:
        for name in CLAIMED:
            if name not in each:
                continue
            result.append(
                {
                    "name": f"{each['name']}: {name}",
                    "networks": each["networks"],
                    **_held(each[name]),
                }
            )
        if GUARDED in each:
            result.append(_of_guard(each))
    return result


def _held(ratio: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether no network is slower by a ratio, and whether all are as fast on average."""
    return {
        "largest": ratio["largest"],
        "none_slower": False if ratio["slower"] else (None if ratio["open"] else True),
        "mean": ratio["mean"],
        "mean_at_most_1": _is_at_most_1(ratio),
    }


def _is_at_most_1(ratio: Mapping[str, Any]) -> bool | None:
    """Return whether a mean is at most 1; None where its interval leaves that open, or there is no mean."""
    if ratio["mean"] is None:
        return None
    return {WITHIN: True, SLOWER: False}.get(verdict(ratio["low"], ratio["high"], 1.0))


def _of_guard(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether graphs were compared in the guarded arm, what that costs, and whether no network is slower there."""
    guard = figure[GUARDED]
    known = _held(figure["guarded_to_plain"]) if "guarded_to_plain" in figure else {}
    if not guard["graphs_compared"]:
        known |= dict.fromkeys(("none_slower", "mean_at_most_1"))
    return {
        "name": f"{figure['name']}: guarded",
        "networks": figure["networks"],
        "compares": guard["graphs_compared"] > 0,
        **guard,
        **known,
    }
