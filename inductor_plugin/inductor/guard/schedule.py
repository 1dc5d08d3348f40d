"""When a graph is compared, what that may take, and when a later compile compares it again."""

from __future__ import annotations

import time
from dataclasses import replace

from inductor_plugin.cache.graph import choices_in
from inductor_plugin.config import Config
from inductor_plugin.inductor.allowance import (
    LEAST_RUN_S,
    START_S,
    Allowance,
    Cost,
    account_of,
)
from inductor_plugin.inductor.graph import unstored
from inductor_plugin.inductor.graph.due import (
    DroppedGraph,
    Due,
    balance,
    due_of_decisions,
    first_of,
)
from inductor_plugin.inductor.graph.record import (
    again_at,
    failure_wait_s,
    is_cut,
    is_settled,
    tries_in,
)
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.inductor.guard.bench import is_ready
from inductor_plugin.inductor.guard.comparison import MOST_RUNS
from inductor_plugin.inductor.guard.verification import VerifiedGraph
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.validity import wait_s

MOST_RUN_S = 600.0
"""Seconds that the fewest calls of graphs may take in all, also where the user has asked for it."""
_SHARE = 0.05
"""Share of the time of a compile in which two graphs are run in turns, at most."""
_ASKED_S = 5.0
"""Seconds in which graphs may be run in turns where the user has asked for it."""


def allowance_of(
    trial: Trial, config: Config, elapsed_s: float, dropped: DroppedGraph
) -> Allowance | None:
    """Return the seconds that comparisons of a graph's environment may take; None where nothing is compared.

    A compile earns its share. One that is made only because there is time now to compare its graph, or to measure once more,
    earns nothing, but is paid; the former is a part of the comparison.
    """
    if trial.store is None or config.policy != "tune":
        return None
    allowance = Allowance(trial.store, account_of(trial.environment))
    balance(allowance, config, dropped, elapsed_s)
    if dropped.is_for_comparison:
        COUNTERS.add(compare_s=elapsed_s)
    return allowance


def cost_of(trial: Trial, own_s: float, elapsed_s: float) -> Cost:
    """Return what comparing a graph is expected to take.

    Args:
        trial: Its compile.
        own_s: Seconds of that without tuning.
        elapsed_s: All its seconds.
    """
    start_s = 0.0 if is_ready(trial.context.device) else START_S
    # Where the graph gives up problems already, the tuned graph is a further compile.
    runs = (MOST_RUNS if is_cut(trial.record) else 0) + trial.is_reduced
    return Cost(own_s, start_s, max(LEAST_RUN_S, _SHARE * elapsed_s), runs)


def turns_s(cost: Cost, config: Config) -> float:
    """Return the seconds after which no turn begins, but for a few."""
    return max(cost.run_s, _ASKED_S) if config.verify_graph == "on" else cost.run_s


def most_s(cost: Cost, config: Config, left_s: float) -> float:
    """Return the seconds that the fewest calls may take in all.

    Args:
        cost: What the comparison was expected to take.
        config: The options.
        left_s: What is left of the allowance now: the graphs are compiled.
    """
    usable_s = MOST_RUN_S if config.verify_graph == "on" else min(MOST_RUN_S, left_s)
    return max(turns_s(cost, config), usable_s)


def choices_of(trial: Trial) -> dict[str, str]:
    """Return the winners that are no library kernels, by the digests of their problems."""
    winners = {ticket.digest: ticket.verdict for ticket in trial.tickets}
    return {
        digest: chosen
        for digest, verdict in winners.items()
        if verdict is not None
        and (chosen := verdict.given_up or verdict.winner) is not None
        and chosen != verdict.library
    }


def is_due(trial: Trial, config: Config) -> bool:
    """Return True if a graph is to be compared: it has choices of ours that have not been, where something is measured.

    Also where another process has chosen: it may have had no time to compare it.
    """
    choices = choices_of(trial)
    return bool(choices) and config.policy == "tune" and not is_settled(trial.record, choices)


def is_waiting(trial: Trial) -> bool:
    """Return True if the last comparison of these choices was disturbed or failed in part, and it is too early for another."""
    record = trial.record
    if record is None or choices_in(record) != choices_of(trial):
        return False
    return time.time() < again_at(record)


def due_once_saved(trial: Trial, own_s: float, cost: Cost) -> Due:
    """Return how much the allowance has to have until the graph is compiled again, to be compared; times vary by half."""
    need_s = 1.5 * (own_s + cost.total_s)
    return Due(need_s=need_s, account=account_of(trial.environment))


def due_of_graph(
    trial: Trial, own_s: float, cost: Cost, graph: VerifiedGraph, config: Config
) -> Due | None:
    """Return how much the allowance has to have until a graph is compared for which it had too little; None where that is not why.

    Args:
        trial: Its compile.
        own_s: Seconds of that without tuning.
        cost: What the comparison was expected to take.
        graph: What has become of it.
        config: The options. What was asked for is not limited by the allowance.
    """
    if config.verify_graph != "auto":
        return None
    if graph.is_cut and graph.is_settled:
        return due_once_saved(trial, own_s, replace(cost, runs=MOST_RUNS))
    if 0.0 < graph.need_s <= MOST_RUN_S:
        return due_once_saved(trial, own_s, replace(cost, run_s=max(cost.run_s, graph.need_s)))
    return None


def mark(
    trial: Trial, graph: VerifiedGraph, due: Due | None, *, at_once: bool, failures: int
) -> None:
    """Store what makes a graph due: provisional decisions, a disturbed or failed comparison, or that there was no time for one.

    Args:
        trial: Its compile.
        graph: What runs.
        due: What makes a later compile compare it; None if nothing does.
        at_once: Whether its own compile has left a problem undecided.
        failures: Comparisons in a row that were in vain before this compile, as of `Due`.
    """
    left = Due(at=0.0) if at_once else None
    again, count = _again(trial, graph, 0 if graph.is_compared else failures)
    due = first_of([due_of_decisions(trial.tickets), again, left, due])
    unstored.mark_due(None if due is None else replace(due, failures=count))


def _again(trial: Trial, graph: VerifiedGraph, failures: int) -> tuple[Due | None, int]:
    """Return when a graph is compared again whose comparison was in vain, None if it was not, and how many in a row were."""
    now = time.time()
    if graph.is_failed:
        return Due(at=now + failure_wait_s(failures + 1), tries=failures + 1), failures + 1
    if graph.is_settled:
        return None, failures
    at = again_at(trial.record)
    if at > now:  # the record counts these
        return Due(at=at, tries=tries_in(trial.record)), failures
    # A record of other choices, or of what the graph gives up, stays as it is.
    return Due(at=now + wait_s(failures + 1), tries=failures + 1), failures + 1
