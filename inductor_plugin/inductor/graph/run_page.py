"""Graphs on the page of this process, for the option ``report``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from torch._inductor.graph import GraphLowering

from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.inductor.graph.report import kind_of, with_contexts
from inductor_plugin.tuning.ranks.job import rank_here
from inductor_plugin.tuning.report.table import spent_on
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)


def add(
    config: Config,
    graph: GraphLowering | None,
    contexts: Iterable[tuple[DeviceContext, Selection]],
    tickets: Sequence[TuningTicket],
) -> None:
    """Add a graph that is decided to the page that ``config.report`` names. Warns once where that fails.

    Args:
        config: The options.
        graph: The graph.
        contexts: What its devices' problems were tuned on, and what decided them.
        tickets: Its problems.
    """
    try:
        _add(config, graph, contexts, tickets)
    # The graph is compiled: it does not fail because of its report.
    except Exception as error:
        logger.debug("a graph is not in the report", exc_info=True)
        reason = str(error) or type(error).__name__
        warn_once(logger, f"a graph is not in the report {config.report}: {reason}", "report graph")


def _add(
    config: Config,
    graph: GraphLowering | None,
    contexts: Iterable[tuple[DeviceContext, Selection]],
    tickets: Sequence[TuningTicket],
) -> None:
    # The page's modules take 20 ms to import, and few processes write one.
    from inductor_plugin.tuning.report.page.run import DecidedProblem, run_page  # noqa: PLC0415

    problems = [
        DecidedProblem(
            context.store, context.environment, ticket.problem.op, ticket.digest, hit=ticket.hit
        )
        for context, ticket in with_contexts(tickets, contexts)
    ]
    page = run_page(config.report, config.trace_path, rank_here())
    page.add(kind_of(graph), problems, spent_on(tickets).to_dict())
