"""The record of a whole graph: how fast it is tuned and with library kernels, and which choices it gives up. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from inductor_plugin.cache import Decision, Measured, Record
from inductor_plugin.cache.graph import TUNED, choices_in
from inductor_plugin.cache.record import DISTURBED_FIELD, GRAPH
from inductor_plugin.tuning.validity import attempts, due_at, is_provisional
from inductor_plugin.worker.graph_job import FEWEST_TURNS

PLAIN = "no autotuning"
"""The graph without any autotuning, which changes layouts and fusions around templates, too."""
CUT = "search_cut"
"""Field of the tuned graph's provenance that is True if its search ended for want of time."""
FAILED = "search_failures"
"""Field of the tuned graph's provenance with how many searches in a row had a graph that could not be run; missing for none."""
_DAY_S, _LATER, _MOST_FAILURES = 86400.0, 7.0, 4
"""Seconds after which a comparison that failed is repeated, and how many times as long after each further failure: a day, a week,
seven weeks, then eleven months. The worker may have been killed by chance, but what always fails ends as good as never."""


def is_firm(record: Record | None) -> bool:
    """Return True if nothing has disturbed a record, and it rests on enough turns: an earlier version was content with one."""
    if record is None or record.decision is None or record.noisy:
        return False
    compared = (record.decision.winner, record.decision.library, TUNED)
    rows = [measured for name, measured in record.candidates.items() if name in compared]
    return all(len(measured.samples_ms) >= FEWEST_TURNS for measured in rows)


def is_cut(record: Record | None) -> bool:
    """Return True if more choices may have been given up than cost time: there was no time left to search."""
    tuned = record.candidates.get(TUNED) if record is not None else None
    return tuned is not None and tuned.provenance.get(CUT) is True


def failures_in(record: Record | None) -> int:
    """Return how many searches in a row had a graph that could not be run, so that more choices may have been given up than cost time."""
    tuned = record.candidates.get(TUNED) if record is not None else None
    count: object = tuned.provenance.get(FAILED) if tuned is not None else None
    return count if isinstance(count, int) else 0


def failure_wait_s(failures: int) -> float:
    """Return the seconds after which a graph is compared again whose comparison has failed so often in a row."""
    return _DAY_S * _LATER ** (min(failures, _MOST_FAILURES) - 1)


def again_at(record: Record | None) -> float:
    """Return when the choices of a graph's record are compared again, in seconds since 1970; 0 if nothing asks for it."""
    tuned = record.candidates.get(TUNED) if record is not None else None
    if tuned is None:
        return 0.0
    times: list[float] = []
    if failures := failures_in(record):
        times.append(tuned.measured_at + failure_wait_s(failures))
    if is_provisional(tuned):
        times.append(due_at(tuned))
    return min(times, default=0.0)


def tries_in(record: Record | None) -> int:
    """Return how many comparisons in a row a graph's record says were in vain: disturbed, or with a search that failed."""
    tuned = record.candidates.get(TUNED) if record is not None else None
    return 0 if tuned is None else max(failures_in(record), attempts(tuned))


def is_settled(record: Record | None, choices: Mapping[str, str]) -> bool:
    """Return True if the record is firm, about these choices, and its search was neither cut nor had a failure."""
    if record is None or not is_firm(record) or is_cut(record) or failures_in(record):
        return False
    return choices_in(record) == dict(choices)


def row(
    candidate: str, samples_ms: Sequence[float], provenance: Mapping[str, Any], *, disturbed: bool
) -> Measured:
    """Return the measurement of a graph.

    Args:
        candidate: `HeldProblems.candidate`.
        samples_ms: Milliseconds per call.
        provenance: Facts about the machine.
        disturbed: True if other work has prolonged all of them.
    """
    low, _, high = quantiles(samples_ms, n=4) if len(samples_ms) > 1 else (0.0, 0.0, 0.0)
    return Measured(
        candidate=candidate,
        name=candidate,
        kind="graph",
        description="",
        status="ok",
        reason="",
        samples_ms=tuple(samples_ms),
        median_ms=median(samples_ms),
        spread_ms=high - low,
        error=None,
        compile_s=None,
        kernel=None,
        measured_at=time.time(),
        provenance={**provenance, **({DISTURBED_FIELD: True} if disturbed else {})},
    )


def record_of(
    place: tuple[str, str], problem: Mapping[str, Any], rows: Sequence[Measured], decision: Decision
) -> Record:
    """Return a graph's record.

    Args:
        place: Digests of the environment and of the graph.
        problem: The graph's facts.
        rows: The measurements of the graph, tuned, with library kernels, and with what it gives up.
        decision: What runs.
    """
    environment, digest = place
    return Record(
        environment=environment,
        op=GRAPH,
        digest=digest,
        problem=problem,
        describe=f"graph of {problem['nodes']} nodes",
        candidates={measured.candidate: measured for measured in rows},
        decision=decision,
        created=decision.decided_at,
        updated=decision.decided_at,
    )
