"""A problem from its submission to its decision."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inductor_plugin.cache import Measured
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import Task

if TYPE_CHECKING:
    from inductor_plugin.tuning.selection import Selection


@dataclass
class TuningTicket:
    """A submitted problem, and later its decision.

    Attributes:
        selection: The selection that decides it.
        problem: The problem.
        digest: Its digest.
        offers: The candidates offered.
        measured: Measurements by candidate, from records or from this run.
        rejected: Templates that refused the problem, and why.
        task: The running race, None if nothing had to be measured.
        verdict: What runs, once decided.
        hit: True if every candidate was known.
        epilogue: The product's epilogue, as stored in the record.
        created: Time of the submission, in seconds since 1970.
        on_probation: Candidates that are tried again though they are in quarantine; a success releases them.
        unchecked: Recorded candidates whose numbers were not compared, though they are to be.
    """

    selection: Selection
    problem: Problem
    digest: str
    offers: tuple[CandidateOffer, ...]
    measured: dict[str, Measured]
    rejected: Mapping[str, str]
    task: Task | None = None
    verdict: Verdict | None = None
    hit: bool = False
    epilogue: Mapping[str, str] = field(default_factory=dict[str, str])
    created: float = field(default_factory=time.time)
    on_probation: set[str] = field(default_factory=set[str])
    unchecked: set[str] = field(default_factory=set[str])


def looked_up(ticket: TuningTicket, unseen: Sequence[CandidateOffer], policy: str) -> str:
    """Return the line of the log about what the cache knows of a problem."""
    problem, count = ticket.problem.describe(), len(ticket.offers)
    if not unseen:
        return f"{problem}: hit, all {count} candidates are known (record {ticket.digest[:12]})"
    what = {"tune": "measured", "build": "compiled"}.get(policy, f"not measured (policy={policy})")
    return f"{problem}: miss, {len(unseen)} of {count} candidates are {what} (record {ticket.digest[:12]})"


def decided(ticket: TuningTicket) -> str:
    """Return the line of the log about what runs."""
    problem, verdict = ticket.problem.describe(), ticket.verdict
    if verdict is None or verdict.winner is None:
        return f"{problem}: nothing was decided"
    return f"{problem}: {verdict.winner} runs: {verdict.reason}"
