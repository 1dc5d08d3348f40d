"""The measurement that a record keeps of a candidate, from its outcome in the workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inductor_plugin.cache import Measured
from inductor_plugin.cache.record import TEMPLATE_FIELD
from inductor_plugin.tuning import race
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.tuning.validity import advice
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
