"""The record of a whole graph: how fast it is tuned and with library kernels, and which choices it gives up. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from inductor_plugin.cache import Decision, Measured, Record
from inductor_plugin.cache.graph import TUNED, choices_in
from inductor_plugin.cache.record import DISTURBED_FIELD, GRAPH
from inductor_plugin.worker.graph_job import FEWEST_TURNS

PLAIN = "no autotuning"
"""The graph without any autotuning, which changes layouts and fusions around templates, too."""
CUT = "search_cut"
"""Field of the tuned graph's provenance that is True if its search ended for want of time."""


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


def is_settled(record: Record | None, choices: Mapping[str, str]) -> bool:
    """Return True if the record is firm, about these choices, and its search was not cut."""
    if record is None or not is_firm(record) or is_cut(record):
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
