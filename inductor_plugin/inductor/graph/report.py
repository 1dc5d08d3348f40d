"""What the compile of a graph says at its end: counters, log, tables."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from torch._inductor import config as inductor_config

from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import misses, torch_trace
from inductor_plugin.tuning.report.table import spent_on, summary, table
from inductor_plugin.tuning.report.terminal import show
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.tuning.ticket import TuningTicket, decided

logger = logging.getLogger(__name__)


def report(
    tickets: Sequence[TuningTicket],
    contexts: Sequence[DeviceContext],
    config: Config,
    *,
    untuned: bool,
) -> None:
    """Write, log and show what was done for a graph.

    Args:
        tickets: Its problems.
        contexts: The devices they were tuned on.
        config: The options.
        untuned: Whether it has calls with a single candidate.
    """
    for context in contexts:
        context.trace.write()
        context.store.add_counts(
            hits=sum(t.hit for t in tickets), misses=sum(not t.hit for t in tickets)
        )
        if not all(ticket.hit for ticket in tickets):
            misses.keep(context.store, config)
        misses.warn_of_cached(tickets, config, context.store, context.environment)
    if untuned and not tickets and _needs_freezing():
        misses.hint_of_freezing()
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
