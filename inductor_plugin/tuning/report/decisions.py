"""The decisions of a graph as plain JSON values, for ``TORCH_TRACE`` and tlparse. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inductor_plugin.cache import Measured
from inductor_plugin.tuning.counters import Stats
from inductor_plugin.tuning.ticket import TuningTicket

FORM = 1
"""Number of the form of these values."""


def decisions(tickets: Sequence[TuningTicket], spent: Stats) -> dict[str, Any]:
    """Return what was decided for the problems of a graph, and what was done for it."""
    return {
        "format": FORM,
        "from_inductor_cache": False,
        "spent": {name: value for name, value in spent.to_dict().items() if value},
        "problems": [_problem(ticket) for ticket in tickets],
    }


def stored_decisions(carried: Iterable[tuple[str, str, str | None]]) -> dict[str, Any]:
    """Return what an earlier compile has decided for a graph that comes out of Inductor's cache: nothing was done for it now.

    Args:
        carried: Of each decision operator and digest, as ``mm/DIGEST``, the winner and the library kernel. Operator ``graph`` is
            that of what the graph gives up.
    """
    places = [(*problem.partition("/"), winner, library) for problem, winner, library in carried]
    return {
        "format": FORM,
        "from_inductor_cache": True,
        "spent": {},
        "problems": [
            {"op": op, "key": digest, "known": True, "winner": winner, "library": library}
            for op, _, digest, winner, library in places
        ],
    }


def _problem(ticket: TuningTicket) -> dict[str, Any]:
    verdict = ticket.verdict
    return {
        "problem": ticket.problem.describe(),
        "op": ticket.problem.op,
        "key": ticket.digest,
        "known": ticket.hit,
        "winner": verdict.winner if verdict else None,
        "library": verdict.library if verdict else None,
        "speedup": verdict.speedup if verdict else None,
        "rejected_speedup": verdict.rejected_speedup if verdict else None,
        "provisional": bool(verdict and verdict.provisional),
        "reason": verdict.reason if verdict else "not decided",
        "candidates": [_candidate(name, row) for name, row in ticket.measured.items()],
        "not_measured": [
            offer.candidate_id
            for offer in ticket.offers
            if offer.candidate_id not in ticket.measured
        ],
        "rejected": dict(ticket.rejected),
    }


def _candidate(name: str, row: Measured) -> dict[str, Any]:
    return {
        "candidate": name,
        "status": row.status,
        "median_ms": row.median_ms,
        "spread_ms": row.spread_ms,
        "samples": len(row.samples_ms),
        "reason": row.reason,
    }
