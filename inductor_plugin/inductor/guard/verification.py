"""The comparison of one graph: what is run, what the graph gives up, and the record of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cache import Decision
from inductor_plugin.cache.graph import CHOICES, TUNED
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph.graph_record import (
    LIBRARY,
    PLAIN,
    HeldProblems,
    held,
    record_of,
    row,
)
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.inductor.guard.bench import CompiledGraph, GraphBench, NotComparedError
from inductor_plugin.inductor.guard.comparison import Comparison, search
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.environment import provenance
from inductor_plugin.tuning.report.terminal import show

logger = logging.getLogger(__name__)

_ALL = HeldProblems(everything=True)


@dataclass(frozen=True)
class GuardedGraph:
    """A graph that was compiled and tuned, and what it takes to compile it again.

    Attributes:
        compiled: The compiled graph.
        trial: Its compile.
        again: Compiles a copy of the graph in which the library kernels of problems are held.
        plain: Compiles a copy of the graph without any autotuning; None if that is not compared.
        bench: Runs compiled graphs.
        problem: The graph's facts.
        config: The options.
        limit_s: Seconds in which graphs are run in turns.
    """

    compiled: CompiledGraph
    trial: Trial
    again: Callable[[HeldProblems], CompiledGraph]
    plain: Callable[[], CompiledGraph] | None
    bench: GraphBench
    problem: Mapping[str, Any]
    config: Config
    limit_s: float


def verified(graph: GuardedGraph, choices: Mapping[str, str]) -> tuple[Any, HeldProblems]:
    """Return the graph as it is to run and what it gives up, and write its record.

    Args:
        graph: The graph.
        choices: Its winners that are no library kernels, by the digests of their problems.

    Raises:
        NotComparedError: It was not run in turns with the same graph of library kernels.
        CannotDescribeError: It cannot be sent to the worker.
    """
    margin = graph.config.never_slower_margin
    graph.bench.prepare()
    library = graph.again(_ALL)
    tuned = graph.again(HeldProblems()) if graph.trial.is_reduced else graph.compiled
    others = [graph.plain()] if graph.plain is not None else []
    tried: dict[frozenset[str], tuple[CompiledGraph, Comparison]] = {}

    def is_fast(given_up: frozenset[str]) -> bool:
        compiled = graph.again(held(given_up))
        try:
            comparison = graph.bench.compare([compiled, library], graph.limit_s)
        except NotComparedError as error:
            logger.debug("a graph with some library kernels was not run: %s", error)
            return False
        tried[given_up] = compiled, comparison
        return not (comparison.is_slower(margin) or comparison.disturbed)

    whole = graph.bench.compare([tuned, library, *others], graph.limit_s)
    if not whole.is_slower(margin):
        _keep(graph, choices, HeldProblems(), whole, whole)
        return tuned.code, HeldProblems()
    given_up = search(_most_suspicious_first(graph.trial, choices), is_fast)
    if given_up == frozenset(choices):
        _keep(graph, choices, _ALL, whole, whole)
        return library.code, _ALL
    compiled, best = tried[given_up]
    _keep(graph, choices, held(given_up), whole, best)
    return compiled.code, held(given_up)


def _most_suspicious_first(trial: Trial, choices: Mapping[str, str]) -> list[str]:
    """Return the problems with choices of ours, those that gain the least alone first."""
    gains = {
        ticket.digest: ticket.verdict.speedup or 1.0
        for ticket in trial.tickets
        if ticket.verdict is not None
    }
    return sorted(choices, key=lambda digest: (gains[digest], digest))


def _keep(
    graph: GuardedGraph,
    choices: Mapping[str, str],
    given_up: HeldProblems,
    whole: Comparison,
    best: Comparison,
) -> None:
    """Write the graph's record, and log it."""
    facts = dict(provenance(graph.trial.tickets[0].problem.output.device))
    rows = [
        row(TUNED, whole.tuned_ms, {**facts, CHOICES: dict(choices)}, disturbed=whole.disturbed),
        row(LIBRARY, whole.library_ms, facts, disturbed=whole.disturbed),
    ]
    if whole.plain_ms:
        rows.append(row(PLAIN, whole.plain_ms, facts, disturbed=whole.disturbed))
    speedup, reason = whole.speedup, said_of(whole)
    if given_up.everything:
        reason = f"{reason}, so that all library kernels stay"
        speedup = 1.0
    elif given_up.digests:
        rows.append(row(given_up.candidate, best.tuned_ms, facts, disturbed=best.disturbed))
        speedup = best.speedup
        reason = f"{reason}, {speedup:.3f}x with library kernels for {len(given_up.digests)} of {len(choices)} problems"
    decision = Decision(
        winner=given_up.candidate,
        library=LIBRARY,
        reason=reason,
        margin=graph.config.never_slower_margin,
        speedup=speedup,
        decided_at=time.time(),
        candidates=len(rows),
    )
    record = record_of((graph.trial.environment, graph.trial.digest), graph.problem, rows, decision)
    assert graph.trial.store is not None
    graph.trial.store.put_record(record)
    library_ms = record.candidates[LIBRARY].median_ms or 0.0
    COUNTERS.add(
        graphs_compared=1,
        graphs_reduced=int(given_up != HeldProblems()),
        tuned_graph_ms=library_ms / speedup,
        library_graph_ms=library_ms,
    )
    line = f"inductor-plugin: {record.describe}: {reason}"
    logger.info("%s", line)
    show([line], graph.config, measured=True)


def said_of(whole: Comparison) -> str:
    """Return how fast a tuned graph is, in words."""
    text = f"the tuned graph is {whole.speedup:.3f}x faster than with library kernels"
    over_plain = whole.speedup_over_plain
    return (
        text if over_plain is None else f"{text}, {over_plain:.3f}x faster than without autotuning"
    )
