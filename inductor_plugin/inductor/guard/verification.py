"""The comparison of one graph: what is run, what the graph gives up, and the record of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cache import Decision
from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED, HeldProblems, held
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph.record import (
    CUT,
    PLAIN,
    is_firm,
    record_of,
    row,
)
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.inductor.guard.bench import CompiledGraph, GraphBench
from inductor_plugin.inductor.guard.comparison import MOST_RUNS, Comparison, search
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.environment import provenance
from inductor_plugin.tuning.report.terminal import show
from inductor_plugin.tuning.validity import disturbance

logger = logging.getLogger(__name__)

_ALL = HeldProblems(everything=True)
_DISTURBED = "other work on the machine has disturbed a comparison of graphs"


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
        runs_after: Returns for how many further compiles and runs there is time after so many seconds.
    """

    compiled: CompiledGraph
    trial: Trial
    again: Callable[[HeldProblems], CompiledGraph]
    plain: Callable[[], CompiledGraph] | None
    bench: GraphBench
    problem: Mapping[str, Any]
    config: Config
    limit_s: float
    runs_after: Callable[[float], int]


@dataclass(frozen=True)
class VerifiedGraph:
    """A graph as it is to run.

    Attributes:
        code: What Inductor returned, a `CompiledFxGraph`.
        given_up: The problems whose library kernel runs in it.
        is_settled: False if other work has disturbed a comparison, so that a later compile is to compare the graph again.
        is_cut: True if there was no time to search for the choices that cost time, so that all may have been given up.
        is_failed: True if it was to be compared, and the worker crashed, took too long, or could not load it.
    """

    code: Any
    given_up: HeldProblems
    is_settled: bool = True
    is_cut: bool = False
    is_failed: bool = False


def verified(graph: GuardedGraph, choices: Mapping[str, str]) -> VerifiedGraph:
    """Return the graph as it is to run, and write its record.

    A disturbed comparison replaces nothing that an earlier one has found out: a firm record of other choices, or what the
    graph gives up. Without such a record the graph runs as it was tuned until it can be compared.

    Args:
        graph: The graph.
        choices: Its winners that are no library kernels, by the digests of their problems.

    Raises:
        NotComparedError: It was not run in turns with the same graph of library kernels.
        CannotDescribeError: It cannot be sent to the worker.
    """
    margin, started = graph.config.never_slower_margin, time.perf_counter()
    graph.bench.prepare()
    library = graph.again(_ALL)
    tuned = graph.again(HeldProblems()) if graph.trial.is_reduced else graph.compiled
    others = [graph.plain()] if graph.plain is not None else []
    tried: dict[frozenset[str], tuple[CompiledGraph, Comparison]] = {}

    def is_fast(given_up: frozenset[str]) -> bool:
        try:
            compiled = graph.again(held(given_up))
            comparison = graph.bench.compare([compiled, library], graph.limit_s)
        except Exception as error:  # noqa: BLE001  the border around one half: the graph is slower, and library kernels are there
            logger.debug("a graph with some library kernels was not run: %s", error)
            return False
        tried[given_up] = compiled, comparison
        return comparison.is_firm and not comparison.is_slower(margin)

    whole = graph.bench.compare([tuned, library, *others], graph.limit_s)
    if not whole.is_firm and (graph.trial.is_reduced or is_firm(graph.trial.record)):
        COUNTERS.add(graphs_left_out=1)
        logger.info("%s; what was found out before stays", _DISTURBED)
        return VerifiedGraph(graph.compiled.code, graph.trial.in_effect, is_settled=False)
    compiled, best, given_up, is_short = tuned, whole, HeldProblems(), False
    if whole.is_slower(margin):
        runs = graph.runs_after(time.perf_counter() - started)
        digests = search(_most_suspicious_first(graph.trial, choices), is_fast, runs)
        is_short = len(choices) > 1 and len(tried) >= runs < MOST_RUNS
        compiled, best, given_up = (
            (library, whole, _ALL)
            if digests == frozenset(choices)
            else (*tried[digests], held(digests))
        )
    is_settled = whole.is_firm and all(comparison.is_firm for _, comparison in tried.values())
    facts = {CHOICES: dict(choices), **({CUT: True} if is_short else {})}
    _keep(graph, facts, given_up, whole, best, is_settled=is_settled)
    return VerifiedGraph(compiled.code, given_up, is_settled, is_short)


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
    own: Mapping[str, Any],
    given_up: HeldProblems,
    whole: Comparison,
    best: Comparison,
    *,
    is_settled: bool,
) -> None:
    """Write the graph's record, with what only the tuned graph's provenance has, and log it."""
    facts = dict(provenance(graph.trial.tickets[0].problem.output.device))
    late, before = not is_settled, graph.trial.record
    if late:  # a machine that is always busy compares less and less often
        own = {**own, **disturbance(before.candidates.get(TUNED) if before is not None else None)}
    rows = [
        row(TUNED, whole.tuned_ms, {**facts, **own}, disturbed=late),
        row(LIBRARY, whole.library_ms, facts, disturbed=late),
    ]
    if whole.plain_ms:
        rows.append(row(PLAIN, whole.plain_ms, facts, disturbed=late))
    speedup, reason = whole.speedup, said_of(whole)
    if given_up.everything:
        reason = f"{reason}, so that all library kernels stay"
        speedup = 1.0
    elif given_up.digests:
        rows.append(row(given_up.candidate, best.tuned_ms, facts, disturbed=late))
        speedup = best.speedup
        reason = f"{reason}, {speedup:.3f}x with library kernels for {len(given_up.digests)} of {len(own[CHOICES])} problems"
    if late:
        reason = f"{reason} (provisional: {_DISTURBED})"
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
