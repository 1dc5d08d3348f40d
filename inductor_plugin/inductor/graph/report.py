"""What the compile of a graph says at its end: counters, log, tables, and in the cache which function the graph is of."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering

from inductor_plugin.cache import Store
from inductor_plugin.cache.graph import MOST_PROBLEMS, GraphEntry
from inductor_plugin.cache.layout import place_of
from inductor_plugin.config import Config
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.origin import function_of
from inductor_plugin.inductor.graph import due, misses, torch_trace
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.report.table import spent_on, summary, table
from inductor_plugin.tuning.report.terminal import show
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.tuning.ticket import TuningTicket, decided

logger = logging.getLogger(__name__)

_PROGRAM_CHARACTERS = 300


def report(
    tickets: Sequence[TuningTicket],
    contexts: Iterable[tuple[DeviceContext, Selection]],
    config: Config,
    *,
    untuned: bool,
) -> None:
    """Write, log and show what was done for a graph.

    Args:
        tickets: Its problems.
        contexts: The devices they were tuned on, and what decided the problems of each.
        config: The options.
        untuned: Whether it has calls with a single candidate.
    """
    for context, selection in contexts:
        due.keep_place(context.store, context.environment)
        context.trace.write()
        # Several devices share a store, and each has an environment of its own.
        own = [ticket for _, ticket in with_contexts(tickets, [(context, selection)])]
        hits = sum(ticket.hit for ticket in own)
        context.store.add_counts(hits=hits, misses=len(own) - hits)
        if hits < len(own):
            misses.keep(context.store, config)
        misses.warn_of_cached(own, config, context.store, context.environment)
    if untuned and not tickets and _needs_freezing():
        misses.hint_of_freezing()
    for ticket in tickets:
        if ticket.task is not None and ticket.task.measured:
            compat.count_precompiling(*ticket.task.builds)
    spent = spent_on(tickets)
    torch_trace.write(tickets, spent)
    if logger.isEnabledFor(logging.INFO):
        for ticket in tickets:
            logger.info("%s", decided(ticket))
    line = summary(tickets, spent)
    logger.info("%s", line)
    texts = itertools.chain(map(table, tickets), [line])
    show(texts, config, measured=spent.benchmarked > 0)


def _needs_freezing() -> bool:
    """Return True if Inductor would offer kernels of its own on a CPU, were the weights frozen."""
    backends = inductor_config.max_autotune_gemm_backends.upper()
    return not inductor_config.freezing and "CPP" in backends.split(",")


def with_contexts(
    tickets: Sequence[TuningTicket], contexts: Iterable[tuple[DeviceContext, Selection]]
) -> Iterator[tuple[DeviceContext, TuningTicket]]:
    """Yield each ticket of a graph with the device it was tuned on."""
    for context, selection in contexts:
        for ticket in tickets:
            if ticket.selection is selection:
                yield context, ticket


def keep_graph(
    config: Config,
    graph: GraphLowering | None,
    contexts: Iterable[tuple[DeviceContext, Selection]],
    tickets: Sequence[TuningTicket],
    single: Iterable[tuple[DeviceContext, Problem]],
) -> None:
    """Keep in the cache which function a graph is of, and its problems; nothing fails where that fails. Takes about a millisecond.

    Args:
        config: The options.
        graph: The graph, whose problems are decided.
        contexts: What its devices' problems were tuned on, and what decided them.
        tickets: Its problems.
        single: Its problems with a single candidate, and their devices' contexts; they have a record and no ticket.
    """
    # With policy=build nothing is decided, so that no problem has a record.
    if graph is None or config.policy == "build":
        return
    try:
        _keep_graph(graph, contexts, tickets, single)
    # The graph is compiled: it does not fail because the cache will not say where it is from.
    except Exception:
        logger.debug("the cache does not say where a graph is from", exc_info=True)


def _keep_graph(
    graph: GraphLowering,
    contexts: Iterable[tuple[DeviceContext, Selection]],
    tickets: Sequence[TuningTicket],
    single: Iterable[tuple[DeviceContext, Problem]],
) -> None:
    named = [(context, t.problem.op, t.digest) for context, t in with_contexts(tickets, contexts)]
    named += [(context, problem.op, problem_digest(problem)) for context, problem in single]
    problems: dict[Store, list[str]] = {}
    for context, op, digest in named:
        if context.store.graphs.is_kept:
            place = place_of(context.environment, op, digest)
            problems.setdefault(context.store, []).append(place)
    if not problems:
        return
    untyped: Any = graph
    function, kind = function_of(untyped.module.graph.nodes), kind_of(graph)
    for store, places in problems.items():
        unique = tuple(dict.fromkeys(places))[:MOST_PROBLEMS]
        store.graphs.put(GraphEntry(_program(), function, kind, unique, time.time()))


def kind_of(graph: GraphLowering | None) -> str:
    """Return ``forward`` or ``backward`` of a training step's graph, ``inference`` of one without gradients."""
    if getattr(graph, "is_backward", False):
        return "backward"
    return "inference" if getattr(graph, "is_inference", False) else "forward"


def _program() -> str:
    """Return the program as text that a document can have: a path may have bytes that are no characters."""
    path = sys.argv[0] if sys.argv else ""
    return path[-_PROGRAM_CHARACTERS:].encode(errors="replace").decode()
