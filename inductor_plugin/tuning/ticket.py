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
        void: Offered candidates whose recorded measurement is not used under these options, and why.
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
    void: Mapping[str, str] = field(default_factory=dict[str, str])


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


def spreads(ticket: TuningTicket) -> dict[str, float]:
    """Return the relative spread of each candidate's samples on a CPU, where other work adds noise.

    Two equally fast kernels were measured up to 1.7x apart on two cores with ten processes.
    """
    if ticket.problem.output.device != "cpu":
        return {}
    return {
        name: (measured.spread_ms or 0.0) / measured.median_ms
        for name, measured in ticket.measured.items()
        if measured.status == "ok" and measured.median_ms
    }
