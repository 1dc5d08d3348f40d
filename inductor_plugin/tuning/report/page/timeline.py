"""A trace of tuning as lanes of spans: what was compiled, measured and waited for, and when. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inductor_plugin.cache.document import is_array, is_object
from inductor_plugin.cache.report import number
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.report.page.summary import total
from inductor_plugin.tuning.report.page.texts import Texts
from inductor_plugin.tuning.report.trace import MAIN_TRACK

MOST_SPANS = 20_000
"""Spans of a page; of more, the longest are in it."""
COMPILE, MEASURE, WAIT = "compile", "measure", "wait"


def timeline(trace: Any, texts: Texts) -> dict[str, Any]:
    """Return the lanes of a trace file, and how long each kind of work took.

    Args:
        trace: What the option ``trace_path`` had written, as JSON.
        texts: Texts of the page.

    Raises:
        CacheError: It is no trace.
    """
    events = trace.get("traceEvents") if is_object(trace) else None
    if not is_array(events):
        raise CacheError(
            "it has no traceEvents; write one with the option trace_path, as in "
            "INDUCTOR_PLUGIN_TRACE_PATH=trace.json"
        )
    every = [event for event in events if is_object(event)]
    spans = list(_spans(every))
    begins = min((start for _, _, start, _, _ in spans), default=0.0)
    kept = sorted(spans, key=lambda span: -span[3])[:MOST_SPANS]
    lanes: dict[tuple[int, int], list[list[Any]]] = defaultdict(list)
    for lane, kind, start, duration, event in sorted(kept, key=lambda span: span[2]):
        arguments = event.get("args")
        problem = arguments.get("problem", "") if is_object(arguments) else ""
        row = [round(start - begins, 2), round(duration, 2), texts.place(kind)]
        lanes[lane].append(
            [*row, texts.place(str(event.get("name", ""))), texts.place(str(problem))]
        )
    named = _names(every)
    return {
        "lanes": [
            {"name": texts.place(_lane(named, lane)), "spans": lanes[lane]}
            for lane in sorted(lanes, key=lambda lane: _order(named, lane))
        ],
        "span_ms": round(max((s + d for _, _, s, d, _ in spans), default=begins) - begins, 2),
        "left_out": len(spans) - len(kept),
        "totals": {kind: _totals(spans, kind) for kind in (COMPILE, MEASURE, WAIT)},
    }


_Span = tuple[tuple[int, int], str, float, float, Mapping[str, Any]]
"""Process and track, kind, start and duration in milliseconds, and the event."""


def _spans(events: Iterable[Mapping[str, Any]]) -> Iterable[_Span]:
    for event in events:
        start, duration = number(event.get("ts")), number(event.get("dur"))
        if event.get("ph") == "X" and start is not None and duration is not None and duration >= 0:
            yield _place(event), _kind(event), start / 1e3, duration / 1e3, event


def _place(event: Mapping[str, Any]) -> tuple[int, int]:
    pid, tid = (number(event.get(name)) for name in ("pid", "tid"))
    return int(pid or 0), int(tid or 0)


def _kind(event: Mapping[str, Any]) -> str:
    if str(event.get("name", "")).startswith("wait"):
        return WAIT
    return MEASURE if event.get("cat") == MEASURE else COMPILE


def _totals(spans: Sequence[_Span], kind: str) -> dict[str, float]:
    """Return the number of spans of a kind, the sum of their milliseconds, and those in which at least one was open."""
    intervals = sorted((start, start + took) for _, other, start, took, _ in spans if other == kind)
    open_ms, until = 0.0, float("-inf")
    for start, end in intervals:
        open_ms += max(0.0, end - max(start, until))
        until = max(until, end)
    times = {"sum_ms": total(end - start for start, end in intervals), "open_ms": total([open_ms])}
    return {"count": len(intervals), **{name: round(time, 1) for name, time in times.items()}}


def _names(events: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], str]:
    names: dict[tuple[int, int], str] = {}
    for event in events:
        arguments = event.get("args")
        if event.get("ph") == "M" and is_object(arguments):
            pid, tid = _place(event)
            kind = event.get("name")
            key = (pid, -1) if kind == "process_name" else (pid, tid)
            names[key] = str(arguments.get("name", ""))
    return names


def _lane(named: Mapping[tuple[int, int], str], lane: tuple[int, int]) -> str:
    """Return the name of a lane, with its process where there are several."""
    name = named.get(lane, f"track {lane[1]}").replace(MAIN_TRACK, "waiting")
    processes = {pid for pid, tid in named if tid == -1}
    return f"{name} · {named.get((lane[0], -1), lane[0])}" if len(processes) > 1 else name


def _order(named: Mapping[tuple[int, int], str], lane: tuple[int, int]) -> tuple[int, int, str]:
    """Return what lanes are sorted by: processes, then waiting, compiling and measuring."""
    name = named.get(lane, "")
    rank = 0 if name == MAIN_TRACK else 1 if name.startswith(COMPILE) else 2
    return lane[0], rank, name.zfill(20)
