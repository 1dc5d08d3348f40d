"""A problem from its submission to its decision."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inductor_plugin.cache import Decision, Measured, Record, Store
from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.config import Config
from inductor_plugin.config.backends import backends_of, why_not_listed
from inductor_plugin.cost.host import PYTHON_FIELD, host_ms
from inductor_plugin.errors import warn_once
from inductor_plugin.ops.native import source
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import DIRECTIONS
from inductor_plugin.tuning.decision import Verdict, gain_of
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.validity import DISTURBED, is_calm, is_undecided

if TYPE_CHECKING:
    from inductor_plugin.tuning.pins.pin import Pin
    from inductor_plugin.tuning.ranks.agreed import Agreed
    from inductor_plugin.tuning.selection import Selection

logger = logging.getLogger(__name__)

BY_PYTHON = "launched by Python, before the library of call sites was in the cache"
"""Reason to repeat a measurement."""

TURNS = "turns"
"""Field of the provenance of samples that are one a turn of a race, in the order of its turns: which race that was."""


def _unplanned() -> None:
    """A ticket that no selection has made has nothing to plan."""


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
        held: True if the library kernel runs whatever is chosen: the graph is slower with another.
        on_probation: Candidates that are tried again though they are in quarantine; a success releases them.
        recorded: Measurements in the record, by candidate, whether they are used or not.
        void: Offered candidates whose recorded measurement is not used under these options, and why.
        pin: Its pin, with ``policy=pinned``; None if the file has none.
        unpinned: Why its pin does not decide it, empty if it does; known once it is decided.
        lookup: The question to the remote for its record; None if it was not asked.
        plan: Says whether it is a hit, and gives it its task.
        planned: Whether that was done.
        agreed: What the ranks of the job have decided; None before, and where there is no job.
        taken_over: Whether the measurements and the kernel that they rest on are in this cache, too.
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
    held: bool = False
    on_probation: set[str] = field(default_factory=set[str])
    recorded: Mapping[str, Measured] = field(default_factory=dict[str, Measured])
    void: Mapping[str, str] = field(default_factory=dict[str, str])
    pin: Pin | None = None
    unpinned: str = ""
    lookup: Lookup | None = None
    plan: Callable[[], None] = _unplanned
    planned: bool = False
    agreed: Agreed | None = None
    taken_over: bool = False
    _deciding: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def decide(self, own: Verdict) -> Verdict:
        """Take a decision of this rank, and return what is decided: what the ranks have agreed on meanwhile stays."""
        with self._deciding:
            if self.agreed is None or self.verdict is None:
                self.verdict = own
            return self.verdict

    def reopen(self) -> None:
        """Forget this rank's decision, so that another one is taken; what the ranks have agreed on stays."""
        with self._deciding:
            if self.agreed is None:
                self.verdict = None

    def agree(self, agreed: Agreed, verdict: Verdict) -> None:
        """Take the decision of all ranks, in place of this rank's own."""
        with self._deciding:
            self.agreed, self.verdict = agreed, verdict

    @property
    def has_library(self) -> bool:
        """Whether a library kernel is offered."""
        return any(offer.library for offer in self.offers)


def has_reference(ticket: TuningTicket) -> bool:
    """Return whether there is something to compare numbers with; where there is not, and a choice, warn once."""
    if ticket.problem.op in DIRECTIONS:  # it is computed in float64
        return True
    if ticket.has_library:
        return True
    if len(ticket.offers) > 1:
        problem = ticket.problem.describe()
        text = f"{problem}: no library kernel is offered, so that the numbers of the others are not compared"
        warn_once(logger, text, "no library kernel")
    return False


def unwanted_libraries(problem: Problem, config: Config) -> bool:
    """Return True if the user chose backends for matrix products without the library's."""
    # For a product with its epilogue, the "library" is two kernels instead of one.
    exempt = problem.op in DIRECTIONS or problem.epilogue
    backends = backends_of(config.gemm_backends)
    return not exempt and why_not_listed("gemm_backends", backends, "ATEN") is not None


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
    by = "" if ticket.agreed is None else f" (decided by rank {ticket.agreed.rank})"
    return f"{problem}: {verdict.winner} runs: {verdict.reason}{by}"


def launches_of(ticket: TuningTicket) -> dict[str, float]:
    """Return milliseconds the host takes to launch each candidate with valid measurements, where it is known.

    Only those of the host that has measured a library kernel last: another may be twice as fast.
    """
    rows = {name: row for name, row in ticket.measured.items() if row.status == "ok"}
    libraries = [
        rows[o.candidate_id] for o in ticket.offers if o.library and o.candidate_id in rows
    ]
    last = max(libraries, key=lambda row: row.measured_at, default=None)
    host = None if last is None else last.provenance.get("host")
    return {
        name: ms
        for name, row in rows.items()
        if row.provenance.get("host") == host and (ms := host_ms(row.provenance))
    }


def outdated(rows: Mapping[str, Measured], store: Store) -> dict[str, str]:
    """Return which measurements are to be repeated, and why: Python launched what a call site launches by now.

    Only those from before the library came into the cache: where it cannot be loaded, they would be repeated for ever.

    Args:
        rows: The measurements by candidate.
        store: The cache, which has the library or not.
    """
    marked = {name: row for name, row in rows.items() if row.provenance.get(PYTHON_FIELD)}
    library = store.kernel(source.key().digest) if marked else None
    if library is None:
        return {}
    came = max(
        library.created, library.folder.stat().st_ctime
    )  # one that was imported keeps its time
    return {name: BY_PYTHON for name, row in marked.items() if row.measured_at < came}


def turns_of(ticket: TuningTicket) -> dict[str, tuple[float, ...]]:
    """Return the samples of the race that a library kernel was in last, of all that were in it, one a turn, from the first turn on.

    Others may have been out of the race before its last turn, another library kernel among them.
    """
    rows = {
        name: row
        for name, row in ticket.measured.items()
        if row.status == "ok" and not row.disturbed and isinstance(row.provenance.get(TURNS), str)
    }
    libraries = [
        rows[o.candidate_id] for o in ticket.offers if o.library and o.candidate_id in rows
    ]
    last = max(libraries, key=lambda row: row.measured_at, default=None)
    if last is None:
        return {}
    race = last.provenance[TURNS]
    turns = max(len(row.samples_ms) for row in libraries if row.provenance[TURNS] == race)
    return {
        name: row.samples_ms
        for name, row in rows.items()
        if row.provenance[TURNS] == race and len(row.samples_ms) <= turns
    }


def proven_by_turns(ticket: TuningTicket) -> set[str]:
    """Return the candidates that were faster than the library kernel in enough of the turns that both took."""
    turns = turns_of(ticket)
    libraries = [o.candidate_id for o in ticket.offers if o.library and o.candidate_id in turns]
    longest = sorted(libraries, key=lambda name: len(turns[name]), reverse=True)[:1]
    gains = {
        name: gain_of(turns[library], samples_ms)
        for library in longest
        for name, samples_ms in turns.items()
        if name not in libraries
    }
    return {name for name, gain in gains.items() if gain is not None and gain.low > 1.0}


def spreads(ticket: TuningTicket) -> dict[str, float]:
    """Return the relative spread of each candidate's samples, to which other work on the machine adds noise.

    Two equally fast kernels were measured up to 1.7x apart on two cores with ten processes.
    """
    return {
        name: (measured.spread_ms or 0.0) / measured.median_ms
        for name, measured in ticket.measured.items()
        if measured.status == "ok" and measured.median_ms and not measured.disturbed
    }


def is_kept(ticket: TuningTicket, before: Measured) -> bool:
    """Return True if a recorded measurement is kept, not replaced by a disturbed or undecided one.

    It is neither itself, and was repeated only because others were.
    """
    return (
        is_calm(before)
        and not is_undecided(before)
        and ticket.void.get(before.candidate, DISTURBED) == DISTURBED
    )


def record_of(
    ticket: TuningTicket,
    verdict: Verdict | None,
    fresh: Collection[str],
    environment: str,
    margin: float,
) -> Record:
    """Return the record of a problem that has been measured.

    Args:
        ticket: The problem.
        verdict: What runs; None where nothing was to be decided.
        fresh: The candidates that were measured just now.
        environment: Digest of the environment.
        margin: Factor by which a winner has to be faster than the library kernel.
    """
    now = time.time()
    decision = None
    if verdict is not None and verdict.winner is not None:
        decision = Decision(
            winner=verdict.winner,
            library=verdict.library,
            reason=verdict.reason,
            margin=margin,
            speedup=verdict.speedup,
            decided_at=now,
            candidates=len(ticket.measured),
            rejected_speedup=verdict.rejected_speedup,
        )
    return Record(
        environment=environment,
        op=ticket.problem.op,
        digest=ticket.digest,
        problem=ticket.problem.fields(),
        describe=ticket.problem.describe(),
        candidates={n: m for n, m in ticket.measured.items() if n in fresh},
        rejected=dict(ticket.rejected),
        decision=decision,
        created=now,
        updated=now,
        pinned=False,
        epilogue=ticket.epilogue,
    )
