"""The comparison of one graph: what is run, what the graph gives up, and the record of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inductor_plugin.cache import Decision
from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED, HeldProblems, choices_in, held
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph.record import (
    CUT,
    FAILED,
    PLAIN,
    failures_in,
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
_NOT_RUN = "a graph with some of the library kernels could not be run"


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
        most_after: Returns how many seconds the fewest calls of graphs may take in all after so many seconds.
        runs_after: Returns for how many further compiles and runs there is time after so many seconds, by the seconds of a run.
    """

    compiled: CompiledGraph
    trial: Trial
    again: Callable[[HeldProblems], CompiledGraph]
    plain: Callable[[], CompiledGraph] | None
    bench: GraphBench
    problem: Mapping[str, Any]
    config: Config
    limit_s: float
    most_after: Callable[[float], float]
    runs_after: Callable[[float, float], int]


@dataclass(frozen=True)
class VerifiedGraph:
    """A graph as it is to run.

    Attributes:
        code: What Inductor returned, a `CompiledFxGraph`.
        given_up: The problems whose library kernel runs in it.
        is_compared: True if it was compared, and its record written.
        is_settled: False if a later compile is to compare the graph again: other work has disturbed a comparison, or a graph of
            the search could not be run.
        is_cut: True if there was no time to search for the choices that cost time, so that all may have been given up.
        is_failed: True if it was to be compared, and the worker crashed, took too long, or could not load it.
        need_s: Seconds that its fewest calls in turns take, where these were more than there was time for; else 0.
    """

    code: Any
    given_up: HeldProblems
    is_compared: bool = False
    is_settled: bool = True
    is_cut: bool = False
    is_failed: bool = False
    need_s: float = 0.0


@dataclass
class _Search:
    """The search for the choices that cost time.

    Attributes:
        graph: The tuned graph.
        library: The same with library kernels alone.
        most_s: As of `GraphBench.compare`.
        tried: The graphs that were run, by the problems that they give up.
        seen: What all runs said.
        failures: How many could not be run.
    """

    graph: GuardedGraph
    library: CompiledGraph
    most_s: float
    tried: dict[frozenset[str], CompiledGraph] = field(
        default_factory=dict[frozenset[str], CompiledGraph]
    )
    seen: list[Comparison] = field(default_factory=list[Comparison])
    failures: int = 0

    @property
    def runs(self) -> int:
        """How many graphs were to be run."""
        return len(self.seen) + self.failures

    @property
    def is_calm(self) -> bool:
        """Whether other work has disturbed none of them."""
        return all(comparison.is_firm for comparison in self.seen)

    def is_fast(self, given_up: frozenset[str]) -> bool:
        """Return True if the graph without these choices was as fast as with library kernels."""
        comparison = self._run(given_up)
        return comparison is not None and comparison.is_as_fast

    def confirmed(self, given_up: frozenset[str]) -> Comparison | None:
        """Return a further run of a graph that was as fast; None if it is not in that one.

        The first was chosen because of what it said: of several graphs that are slower by the noise, one is lucky.
        """
        comparison = self._run(given_up)
        return comparison if comparison is not None and comparison.is_as_fast else None

    def _run(self, given_up: frozenset[str]) -> Comparison | None:
        graph = self.graph
        try:
            if given_up not in self.tried:
                self.tried[given_up] = graph.again(held(given_up))
            graphs = [self.tried[given_up], self.library]
            comparison = graph.bench.compare(graphs, graph.limit_s, self.most_s)
        except Exception as error:  # noqa: BLE001  the border around one half: the graph is slower, and library kernels are there
            logger.debug("%s: %s", _NOT_RUN, error)
            self.failures += 1
            return None
        self.seen.append(comparison)
        return comparison


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
    part = _Search(graph, library, graph.most_after(time.perf_counter() - started))
    whole = graph.bench.compare([tuned, library, *others], graph.limit_s, part.most_s)
    if not whole.is_firm and (graph.trial.is_reduced or is_firm(graph.trial.record)):
        COUNTERS.add(graphs_left_out=1)
        logger.info("%s; what was found out before stays", _DISTURBED)
        return VerifiedGraph(graph.compiled.code, graph.trial.in_effect, is_settled=False)
    compiled, best, given_up, is_short = tuned, whole, HeldProblems(), False
    if whole.is_slower(margin):
        runs = graph.runs_after(time.perf_counter() - started, whole.run_s)
        digests = search(_most_suspicious_first(graph.trial, choices), part.is_fast, runs)
        is_short = len(choices) > 1 and part.runs >= runs < MOST_RUNS
        again = part.confirmed(digests) if digests != frozenset(choices) else None
        compiled, best, given_up = (
            (library, whole, _ALL) if again is None else (part.tried[digests], again, held(digests))
        )
    is_calm = whole.is_firm and part.is_calm
    facts = {
        CHOICES: dict(choices),
        **({CUT: True} if is_short else {}),
        **({FAILED: _failures(graph.trial, choices)} if part.failures else {}),
    }
    _keep(graph, facts, given_up, whole, best, is_calm=is_calm)
    return VerifiedGraph(
        compiled.code,
        # By name: other problems, of other sizes or chosen later, were not compared.
        held(choices) if given_up.everything else given_up,
        is_compared=True,
        is_settled=is_calm and not part.failures,
        is_cut=is_short,
    )


def _failures(trial: Trial, choices: Mapping[str, str]) -> int:
    """Return how many searches for these choices in a row have failed, with this one."""
    before = trial.record
    is_again = before is not None and choices_in(before) == dict(choices)
    return 1 + (failures_in(before) if is_again else 0)


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
    is_calm: bool,
) -> None:
    """Write the graph's record, with what only the tuned graph's provenance has, and log it."""
    facts = dict(provenance(graph.trial.tickets[0].problem.output.device))
    late, before = not is_calm, graph.trial.record
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
    why = _DISTURBED if late else _NOT_RUN if FAILED in own else ""
    if why:
        reason = f"{reason} (provisional: {why})"
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
