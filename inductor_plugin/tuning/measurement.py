"""The measurement that a record keeps of a candidate, from its outcome in the workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inductor_plugin.cache import Measured
from inductor_plugin.cache.record import TEMPLATE_FIELD
from inductor_plugin.config import Config
from inductor_plugin.tuning import race
from inductor_plugin.tuning.decision import Verdict, open_to
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.tuning.ticket import TuningTicket, is_kept
from inductor_plugin.tuning.validity import (
    advice,
    checked,
    disturbance,
    is_provisional,
    limits,
)
from inductor_plugin.worker.jobs import Outcome

NOT_FAILED = frozenset({"ok", "skipped", "pruned"})
FINAL, BEATEN, SCREENED = "final", "beaten", "screened"
"""The stage a candidate reached: the finals; screening only, though finals took place; screening, and
no finals took place."""


def require_reference(task: Task, candidate: TaskCandidate) -> None:
    """Skip a candidate whose numbers should have been compared and were not: it must not win."""
    outcome = candidate.outcome
    compared = candidate.library or outcome is None or outcome.error is not None
    if task.check is None or compared or outcome is None or outcome.status != "ok":
        return
    reason = "its numbers were not compared: no library kernel ran in the benchmark worker"
    candidate.outcome = Outcome(candidate.candidate_id, "skipped", reason)


def stage(task: Task, candidate: TaskCandidate) -> str:
    """Return the stage that a candidate reached."""
    if candidate.rounds:
        return FINAL
    # Candidates measured in this process take no part in finals, so they cannot be beaten there.
    return BEATEN if task.legs and candidate.bench is not None else SCREENED


def measurement(
    offer: CandidateOffer, candidate: TaskCandidate, provenance: Mapping[str, Any]
) -> Measured:
    """Return the measurement of a candidate after its race."""
    outcome = candidate.outcome
    status = outcome.status if outcome else "skipped"
    reason = outcome.reason if outcome else "not reached"
    reason += advice(status)
    measured = unmeasured(offer, status, reason, provenance, time.time())
    samples_ms = tuple(candidate.samples_ms)
    stats = race.sample_stats(samples_ms) if status == "ok" and samples_ms else None
    return replace(
        measured,
        samples_ms=samples_ms,
        median_ms=stats.median_ms if stats else None,
        spread_ms=stats.spread_ms if stats else None,
        error=outcome.error if outcome else None,
        compile_s=candidate.compile_s,
        kernel=candidate.kernel,
    )


def measured_now(
    ticket: TuningTicket,
    task: Task,
    candidate: TaskCandidate,
    offer: CandidateOffer,
    config: Config,
    provenance: Mapping[str, Any],
) -> Measured:
    """Return a candidate's measurement after its race; the recorded one where that was calm and this one is not.

    Args:
        ticket: Its problem.
        task: The race.
        candidate: The candidate.
        offer: What was offered.
        config: The options.
        provenance: What all measurements of the race have in common.
    """
    own: dict[str, Any] = dict(candidate.conditions)
    own |= {"race": stage(task, candidate)} if candidate.alive else {}
    if not candidate.library:
        own |= checked(task.check, verify=config.verify_numerics)
    if candidate.outcome is not None:
        own |= limits(candidate.outcome.status, config)
    measured = measurement(offer, candidate, {**provenance, **own})
    if not (is_provisional(measured) or (candidate.alive and candidate.disturbed)):
        return measured
    before = ticket.recorded.get(candidate.candidate_id)
    if before is not None and is_kept(ticket, before):
        return before
    return replace(measured, provenance={**measured.provenance, **disturbance(before)})


def unmeasured(
    offer: CandidateOffer, status: str, reason: str, provenance: Mapping[str, Any], at: float
) -> Measured:
    """Return the record of a candidate without samples: what became of it, and when."""
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
        measured_at=at,
        provenance={**provenance, **_template(offer)},
    )


def _template(offer: CandidateOffer) -> dict[str, str]:
    """Return the provenance that names a candidate's template, where its name does not."""
    template = offer.identity.template
    named = offer.kind == "template" or not template
    return {} if named else {TEMPLATE_FIELD: template}


def medians_of(ticket: TuningTicket) -> dict[str, float]:
    """Return milliseconds of every offered candidate with valid measurements."""
    return {
        name: measured.median_ms
        for name, measured in ticket.measured.items()
        if measured.status == "ok" and measured.median_ms is not None
    }


def open_to_late(ticket: TuningTicket, verdict: Verdict) -> Verdict:
    """Return a decision, provisional where candidates that ran are out of the race by disturbed samples alone."""
    out = medians_of(ticket).keys() - contending(ticket).keys()
    return open_to(verdict, [name for name in out if ticket.measured[name].disturbed])


def contending(ticket: TuningTicket) -> dict[str, float]:
    """Return the medians the winner is chosen from.

    A candidate that missed the finals was measured in another clock state than the finalists, and
    only a few times: lucky screening samples must not win a race decided by interleaved rounds.
    """
    medians = medians_of(ticket)
    libraries = {o.candidate_id for o in ticket.offers if o.library}
    reached = {name: ticket.measured[name].provenance.get("race") for name in medians}
    if not any(reached[name] == FINAL for name in medians.keys() - libraries):
        return medians
    return {name: ms for name, ms in medians.items() if reached[name] != BEATEN}
