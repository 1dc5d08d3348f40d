"""The decision that a job has taken about a problem: as the store has it, and as a rank adopts it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from inductor_plugin.cache import Measured, Record
from inductor_plugin.cache.document import amount, flag, optional, text, typed, whole
from inductor_plugin.cache.record import from_fields, to_fields
from inductor_plugin.errors import warn_once
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.measurement import NOT_FAILED
from inductor_plugin.tuning.ranks.packing import packed, unpacked
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)

LIBRARY = ""
"""The winner of a problem that no rank could tune: the library kernel, whichever a rank has."""
_NOT_OFFERED = "is not offered here"


@dataclass(frozen=True)
class Agreed:
    """What a job has decided about a problem, once and for all its ranks.

    Attributes:
        winner: The candidate that runs; `LIBRARY` for the library kernel.
        library: The library kernel that it was compared with; None without one.
        reason: Why, in one sentence.
        speedup: As of `Verdict`.
        provisional: True if a later job is to decide again; this one does not.
        rank: The rank that has decided.
        record: The measurements that it rests on; None without any.
        rejected_speedup: As of `Verdict`.
    """

    winner: str
    library: str | None
    reason: str
    speedup: float | None
    provisional: bool
    rank: int
    record: Record | None = None
    rejected_speedup: float | None = None

    @property
    def rows(self) -> Mapping[str, Measured]:
        """The measurement of each candidate."""
        return {} if self.record is None else self.record.candidates


def library_for(reason: str, rank: int) -> Agreed:
    """Return the decision for the library kernel where a problem was not tuned; a later job tunes it."""
    return Agreed(LIBRARY, None, reason, None, provisional=True, rank=rank)


def of_verdict(verdict: Verdict, record: Record | None, rank: int) -> Agreed:
    """Return a rank's decision as the job's."""
    return Agreed(
        winner=verdict.winner or LIBRARY,
        library=verdict.library,
        reason=verdict.reason,
        speedup=verdict.speedup,
        provisional=verdict.provisional,
        rank=rank,
        record=record,
        rejected_speedup=verdict.rejected_speedup,
    )


_READERS: dict[str, Any] = {
    "winner": text,
    "library": optional(text),
    "reason": text,
    "speedup": optional(amount),
    "provisional": flag,
    "rank": whole,
    "rejected_speedup": optional(amount),
}


def dump(agreed: Agreed) -> str:
    """Return a decision as the store has it: compressed JSON, in ASCII."""
    fields: dict[str, Any] = {name: getattr(agreed, name) for name in _READERS}
    fields["record"] = None if agreed.record is None else to_fields(agreed.record)
    return packed(fields)


def load(stored: str) -> Agreed:
    """Return a decision out of the store.

    Raises:
        ValueError: It is none.
    """
    try:
        fields: Any = unpacked(stored)
    except ValueError as error:
        raise ValueError(f"the decision of a rank is damaged: {error}") from error
    record: Any = cast("dict[str, Any]", fields).get("record") if isinstance(fields, dict) else None
    return Agreed(**typed(fields, _READERS), record=from_fields(record) if record else None)


def adopt(ticket: TuningTicket, agreed: Agreed) -> None:
    """Decide a ticket as the job does, by the same times: what follows from them, such as fusions, is then the same, too.

    A fused kernel that is not among a ticket's offers causes no warning here: its fusion may offer it yet.
    """
    offered = {offer.candidate_id for offer in ticket.offers}
    is_offered = agreed.winner in offered
    why = _why_not(ticket, agreed) if is_offered else _NOT_OFFERED
    library = _library_of(ticket)
    if agreed.winner == LIBRARY:
        verdict = Verdict(library, library, agreed.reason, provisional=agreed.provisional)
    elif why:
        verdict = Verdict(library, library, _without(agreed, why), provisional=True)
        if is_offered or not ticket.problem.epilogue:
            _warn(ticket.problem, agreed, why)
    else:
        kept = agreed.library if agreed.library in offered else library
        verdict = Verdict(
            agreed.winner,
            kept,
            agreed.reason,
            agreed.speedup,
            agreed.rejected_speedup,
            provisional=agreed.provisional,
        )
    ticket.measured = {name: row for name, row in agreed.rows.items() if name in offered}
    ticket.agree(agreed, verdict)


def give_up(ticket: TuningTicket, agreed: Agreed, why: str) -> None:
    """Decide a ticket for this rank's library kernel, with a warning: it has tried to build what was decided, in vain."""
    library = _library_of(ticket)
    ticket.agree(agreed, Verdict(library, library, _without(agreed, why), provisional=True))
    _warn(ticket.problem, agreed, why)


def warn_not_offered(problem: Problem, agreed: Agreed) -> None:
    """Warn that this rank runs the library kernel, which is two kernels for a fusion, since it cannot offer what was decided."""
    _warn(problem, agreed, _NOT_OFFERED)


def is_measured(ticket: TuningTicket) -> bool:
    """Return whether a rank knows how long any candidate takes."""
    return any(row.status == "ok" for row in ticket.measured.values())


def refused(ticket: TuningTicket) -> list[str]:
    """Return the offered candidates that have failed on this rank: no rank is to decide for them."""
    return [name for name, row in ticket.measured.items() if row.status not in NOT_FAILED]


def _library_of(ticket: TuningTicket) -> str | None:
    return next((offer.candidate_id for offer in ticket.offers if offer.library), None)


def _why_not(ticket: TuningTicket, agreed: Agreed) -> str | None:
    """Return why this rank cannot run what was decided though it is offered, None if it can."""
    own = ticket.measured.get(agreed.winner)
    if own is not None and own.status not in NOT_FAILED:
        return f"has failed here: {own.status} ({own.reason})"
    return None


def _without(agreed: Agreed, why: str) -> str:
    return (
        f"the library kernel runs: {agreed.winner}, for which rank {agreed.rank} has decided, {why}"
    )


def _warn(problem: Problem, agreed: Agreed, why: str) -> None:
    text = f"{problem.describe()}: {_without(agreed, why)}; other ranks may run another kernel"
    warn_once(logger, text)
