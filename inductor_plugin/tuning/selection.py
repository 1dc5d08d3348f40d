"""From offered candidates to a decision: look up, measure what is unseen, decide, remember."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inductor_plugin.cache import Decision, Measured, Record, Store
from inductor_plugin.config import Config
from inductor_plugin.counters import Counters
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import DIRECTIONS
from inductor_plugin.tuning import race
from inductor_plugin.tuning.decision import Verdict, decide
from inductor_plugin.tuning.offer import CandidateOffer, limited
from inductor_plugin.tuning.pins import Pins
from inductor_plugin.tuning.task import Task, TaskCandidate, problem_digest
from inductor_plugin.tuning.validity import advice, checked, is_valid, limits, was_limited

logger = logging.getLogger(__name__)

_NOT_FAILED = frozenset({"ok", "skipped", "pruned"})
_FINAL, _BEATEN, _SCREENED = "final", "beaten", "screened"
"""The stage a candidate reached: the finals; screening only, though finals took place; screening, and
no finals took place."""


@dataclass
class TuningTicket:
    """A problem handed over, and later its decision.

    Attributes:
        selection: What decides it.
        problem: The problem.
        digest: Its digest.
        offers: The candidates offered.
        measured: What is known of each, from records or from this run.
        rejected: Templates that refused the problem, and why.
        task: The running race, None if nothing had to be measured.
        verdict: What runs, once decided.
        hit: True if every candidate was known.
        epilogue: The product's epilogue, as the record keeps it.
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


class Selection:
    """Decides the problems of one environment with one configuration."""

    def __init__(
        self,
        config: Config,
        store: Store,
        environment: str,
        provenance: Callable[[], Mapping[str, Any]],
        counters: Counters,
        pins: Pins | None = None,
    ) -> None:
        """Decide for ``environment``.

        Args:
            config: The options.
            store: Where records are kept.
            environment: Digest of the environment in the store.
            provenance: Gives what is noted beside each new timing.
            counters: Where hits and misses are counted.
            pins: Pinned decisions, for ``policy=pinned``.
        """
        self._config = config
        self._store = store
        self._environment = environment
        self._provenance = provenance
        self._counters = counters
        self._pins = pins

    def plan(
        self,
        problem: Problem,
        offers: Sequence[CandidateOffer],
        rejected: Mapping[str, str],
        tolerance: float | None,
        deadline: float | None,
    ) -> TuningTicket:
        """Return a ticket; it has a task to submit if something must be measured."""
        digest = problem_digest(problem)
        record = self._store.record(self._environment, problem.op, digest)
        # What was measured already still has to be compiled where a pack is made.
        known = dict(record.candidates) if record and self._config.policy != "build" else {}
        offered = limited(offers, self._config.max_candidates)
        measured = {
            o.candidate_id: known[o.candidate_id]
            for o in offered
            if o.candidate_id in known
            and is_valid(known[o.candidate_id], self._config, library=o.library)
        }
        ticket = TuningTicket(self, problem, digest, tuple(offered), measured, rejected)
        unseen = [o for o in offered if o.candidate_id not in measured]
        unseen = self._without_quarantined(ticket, unseen)
        ticket.hit = not unseen
        self._counters.add(
            problems=1,
            candidates=len(offered),
            record_hits=int(ticket.hit),
            record_misses=int(not ticket.hit),
        )
        if unseen and self._config.policy in ("tune", "build"):
            if deadline is not None and time.monotonic() > deadline:
                why = "the tuning budget ended"
                for offer in unseen:  # preparing them takes time, too
                    ticket.measured[offer.candidate_id] = _measured(
                        offer, "skipped", why, {}, time.time()
                    )
            else:
                ticket.task = self._task(ticket, unseen, tolerance, deadline)
        return ticket

    def decide(self, ticket: TuningTicket) -> Verdict:
        """Return what runs; the task, if any, has ended."""
        if ticket.verdict is None:
            libraries = [o.candidate_id for o in ticket.offers if o.library and _usable(ticket, o)]
            contending = self._contending(ticket)
            if self._unwanted_libraries(ticket.problem) and contending.keys() - set(libraries):
                contending = {n: ms for n, ms in contending.items() if n not in libraries}
                libraries = []
            ticket.verdict = self._pinned(ticket) or decide(
                contending, libraries, self._config.never_slower_margin, _spreads(ticket)
            )
        return ticket.verdict

    def _unwanted_libraries(self, problem: Problem) -> bool:
        """Return True if the user named backends for matrix products, and not the library's."""
        named = self._config.gemm_backends
        # A product with its epilogue: there, the "library" is two kernels instead of one.
        ours = problem.op in DIRECTIONS or problem.epilogue
        return bool(named) and "ATEN" not in named.split(",") and not ours

    def medians(self, ticket: TuningTicket) -> dict[str, float]:
        """Return milliseconds of every offered candidate that ran and is right."""
        return {
            name: one.median_ms
            for name, one in ticket.measured.items()
            if one.status == "ok" and one.median_ms is not None
        }

    def _contending(self, ticket: TuningTicket) -> dict[str, float]:
        """Return the medians the winner is chosen from.

        A candidate that missed the finals was measured in another clock state than the finalists, and
        only a few times: a lucky first look must not win a race that was decided by interleaving.
        """
        medians = self.medians(ticket)
        libraries = {o.candidate_id for o in ticket.offers if o.library}
        stage = {name: ticket.measured[name].provenance.get("race") for name in medians}
        if not any(stage[name] == _FINAL for name in medians.keys() - libraries):
            return medians
        return {name: ms for name, ms in medians.items() if stage[name] != _BEATEN}

    def _pinned(self, ticket: TuningTicket) -> Verdict | None:
        if self._pins is None:
            return None
        pinned = self._pins.winner(self._environment, ticket.problem.op, ticket.digest)
        library = next((o.candidate_id for o in ticket.offers if o.library), None)
        if pinned in {o.candidate_id for o in ticket.offers}:
            return Verdict(pinned, library, "pinned")
        if library is None:
            logger.warning(
                "neither a pinned decision nor a library kernel for %s; records decide",
                ticket.problem.describe(),
            )
            return None
        logger.warning(
            "no pinned decision for %s; the library kernel is used", ticket.problem.describe()
        )
        return Verdict(library, library, "not in the pin file, so the library kernel runs")

    def _without_quarantined(
        self, ticket: TuningTicket, unseen: list[CandidateOffer]
    ) -> list[CandidateOffer]:
        """Drop candidates known to misbehave on this problem, keeping the reason."""
        kept: list[CandidateOffer] = []
        for offer in unseen:
            found = self._store.quarantined(
                self._environment, quarantine_name(offer.candidate_id, ticket.digest)
            )
            if found is None or was_limited(found.status, found.fields.get("limits"), self._config):
                kept.append(offer)
                continue
            self._counters.add(quarantined=1)
            ticket.measured[offer.candidate_id] = _measured(
                offer, found.status, found.reason, {}, found.created
            )
        return kept

    def _task(
        self,
        ticket: TuningTicket,
        unseen: Sequence[CandidateOffer],
        tolerance: float | None,
        deadline: float | None,
    ) -> Task:
        # The library kernel is measured again beside unseen candidates: a timing taken in another
        # clock state must not decide a race.
        libraries = [o for o in ticket.offers if o.library and _usable(ticket, o)]
        again = [o for o in libraries if o not in unseen][:1]
        chosen = sorted([*again, *unseen], key=lambda o: not o.library)
        return Task(
            problem=ticket.problem,
            digest=ticket.digest,
            entries=[o.entry() for o in chosen],
            tolerance=tolerance if self._config.verify_numerics else None,
            deadline=deadline,
            exclusive=ticket.problem.output.device == "cpu" and self._config.policy == "tune",
            refresh=lambda task: self._refresh(ticket, task),
            finish=lambda task: self._finish(ticket, task),
            measured=self._config.policy == "tune",
        )

    def _refresh(self, ticket: TuningTicket, task: Task) -> int:
        """Take over what another process has measured since the ticket was made."""
        record = self._store.record(self._environment, ticket.problem.op, ticket.digest)
        if record is None:
            return 0
        offered = {o.candidate_id: o for o in ticket.offers}
        fresh = {
            name: one
            for name, one in record.candidates.items()
            if name in offered
            and name not in ticket.measured
            and is_valid(one, self._config, library=offered[name].library)
        }
        ticket.measured.update(fresh)
        before = len(task.entries)
        if not {e.candidate_id for e in task.entries} - set(ticket.measured):
            task.entries.clear()
        else:
            task.entries = [e for e in task.entries if e.candidate_id not in fresh or e.library]
        return before - len(task.entries)

    def _finish(self, ticket: TuningTicket, task: Task) -> None:
        """Turn outcomes into measurements, decide, and write the record."""
        offers = {o.candidate_id: o for o in ticket.offers}
        noted = {**self._provenance(), **checked(task.tolerance)}
        for entry in task.entries:
            more: dict[str, Any] = {"race": _stage(task, entry)} if entry.alive else {}
            if entry.outcome is not None:
                more |= limits(entry.outcome.status, self._config)
            one = _entry_measured(offers[entry.candidate_id], entry, noted | more)
            ticket.measured[entry.candidate_id] = one
            # A library kernel is tried again: without it there is no reference and no guard.
            if one.status not in _NOT_FAILED and not entry.library:
                self._quarantine(ticket, one)
        verdict = self.decide(ticket) if task.measured else None
        fresh = {e.candidate_id for e in task.entries}
        merged = self._store.put_record(self._record(ticket, verdict, fresh))
        # Decide again from what is on disk now: all processes of a job then decide from the same
        # timings, and ranks that run different kernels can deadlock (flashinfer-ai/flashinfer#3186).
        for offer in ticket.offers:
            known = merged.candidates.get(offer.candidate_id)
            if known is not None and known.status != "skipped":
                ticket.measured[offer.candidate_id] = known
        ticket.verdict = None
        self.decide(ticket)

    def _quarantine(self, ticket: TuningTicket, one: Measured) -> None:
        self._counters.add(failed=1, quarantined=1)
        logger.warning(
            "%s is not used for %s: %s (%s)",
            one.name,
            ticket.problem.describe(),
            one.status,
            one.reason,
        )
        self._store.quarantine(
            self._environment,
            quarantine_name(one.candidate, ticket.digest),
            {
                "candidate": one.candidate,
                "problem": ticket.problem.describe(),
                "status": one.status,
                "reason": one.reason,
                "limits": one.provenance.get("limits"),
            },
        )

    def _record(self, ticket: TuningTicket, verdict: Verdict | None, fresh: set[str]) -> Record:
        now = time.time()
        decision = None
        if verdict is not None and verdict.winner is not None:
            decision = Decision(
                winner=verdict.winner,
                library=verdict.library,
                reason=verdict.reason,
                margin=self._config.never_slower_margin,
                speedup=verdict.speedup,
                decided_at=now,
                candidates=len(ticket.measured),
            )
        return Record(
            environment=self._environment,
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


def quarantine_name(candidate_id: str, problem_digest: str) -> str:
    """Return the quarantine's name for a candidate on a problem.

    A kernel that hangs or runs out of memory on one shape may be the best on another.
    """
    return f"{candidate_id}-{problem_digest[:12]}"


def _stage(task: Task, entry: TaskCandidate) -> str:
    if entry.rounds:
        return _FINAL
    # What is measured in this process takes no part in finals, so it cannot be beaten there.
    return _BEATEN if task.legs and entry.bench is not None else _SCREENED


def _spreads(ticket: TuningTicket) -> dict[str, float]:
    """Return the relative spread of each candidate's samples on a CPU, which other work disturbs.

    Two kernels of one speed were measured up to 1.7x apart on two cores with ten processes.
    """
    if ticket.problem.output.device != "cpu":
        return {}
    return {
        name: (one.spread_ms or 0.0) / one.median_ms
        for name, one in ticket.measured.items()
        if one.status == "ok" and one.median_ms
    }


def _usable(ticket: TuningTicket, offer: CandidateOffer) -> bool:
    known = ticket.measured.get(offer.candidate_id)
    return known is None or known.status in _NOT_FAILED


def _entry_measured(
    offer: CandidateOffer, entry: TaskCandidate, noted: Mapping[str, Any]
) -> Measured:
    outcome = entry.outcome
    status = outcome.status if outcome else "skipped"
    reason = outcome.reason if outcome else "not reached"
    reason += advice(status)
    one = _measured(offer, status, reason, noted, time.time())
    middle = race.sample_stats(entry.samples_ms) if status == "ok" and entry.samples_ms else None
    return replace(
        one,
        samples_ms=tuple(entry.samples_ms),
        median_ms=middle.median_ms if middle else None,
        spread_ms=middle.spread_ms if middle else None,
        error=outcome.error if outcome else None,
        compile_s=entry.compile_s,
        kernel=entry.kernel,
    )


def _measured(
    offer: CandidateOffer, status: str, reason: str, noted: Mapping[str, Any], when: float
) -> Measured:
    return Measured(
        candidate=offer.candidate_id,
        name=offer.name,
        kind=offer.kind,
        description=offer.description,
        status=status,
        reason=reason,
        samples_ms=(),
        median_ms=None,
        spread_ms=None,
        error=None,
        compile_s=None,
        kernel=None,
        measured_at=when,
        provenance=noted,
    )
