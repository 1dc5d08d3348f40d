"""The measurement that a record keeps of a candidate, from its outcome in the workers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inductor_plugin.cache import Measured
from inductor_plugin.cache.quarantine import MISHAPS
from inductor_plugin.cache.record import TEMPLATE_FIELD, is_noisy
from inductor_plugin.config import Config
from inductor_plugin.tuning import race
from inductor_plugin.tuning.decision import Verdict, open_to
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.tuning.ticket import TURNS, TuningTicket, is_kept, proven_by_turns
from inductor_plugin.tuning.validity import (
    advice,
    checked,
    disturbance,
    indecision,
    is_calm,
    is_compared_once,
    is_provisional,
    is_undecided,
    is_unproven,
    limits,
    unproven,
)
from inductor_plugin.worker.jobs import INCOMPARABLE, MAY_HAVE_CHANGED, Outcome

NOT_FAILED = frozenset({"ok", "skipped", "pruned"})
FINAL, BEATEN, SCREENED, ALONE = "final", "beaten", "screened", "alone"
"""The stage a candidate reached: the finals; screening only, though finals took place; screening, and
no finals took place; measured in this process, which takes part in no finals."""
_REFERENCE, _REFERENCE_MS = "reference", "reference_ms"
"""Fields of a candidate's provenance: the library kernel of its race, and the median of that there."""
_NOT_COMPARED = "its numbers were not compared: no library kernel ran in the benchmark worker"
_SAME, _MOST_CHANGE = 1e-4, 1e3
"""The relative difference that rounding may make, and the factor by which no library kernel gets slower or faster from one race
to the next."""


def require_reference(task: Task, candidate: TaskCandidate) -> None:
    """Skip a candidate whose numbers should have been compared and were not: it must not win."""
    outcome = candidate.outcome
    compared = candidate.library or outcome is None or outcome.error is not None
    if task.check is None or compared or outcome is None or outcome.status != "ok":
        return
    candidate.outcome = Outcome(candidate.candidate_id, "skipped", _NOT_COMPARED)


def stage(task: Task, candidate: TaskCandidate) -> str:
    """Return the stage that a candidate reached."""
    if candidate.rounds:
        return FINAL
    if candidate.bench is None:
        return ALONE
    return BEATEN if task.legs else SCREENED


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
    # All its samples are of calm turns. A turn that other work has disturbed is left out of all candidates' samples, so
    # those of one turn have the same index in all that took part in it.
    if 0 < candidate.calm_rounds == len(candidate.samples_ms) and not candidate.disturbed:
        own[TURNS] = f"{ticket.digest[:12]} {ticket.created:.3f}"
    if not candidate.library:
        own |= checked(task.check, verify=config.verify_numerics)
    if candidate.outcome is not None:
        own |= limits(candidate.outcome.status, config)
    own |= _reference(task, candidate)
    measured = measurement(offer, candidate, {**provenance, **own})
    disturbed = (measured.status == "ok" and measured.noisy) or (
        candidate.alive and candidate.disturbed
    )
    undecided = candidate.alive and candidate.candidate_id in task.undecided
    if not (disturbed or undecided):
        return measured
    before = ticket.recorded.get(candidate.candidate_id)
    if before is not None and is_kept(ticket, before):
        return before
    why = disturbance(before) if disturbed else indecision(before)
    return replace(measured, provenance={**measured.provenance, **why})


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


def _reference(task: Task, candidate: TaskCandidate) -> dict[str, Any]:
    """Return the provenance that relates a candidate's time to its race's library kernel; nothing if that was disturbed."""
    library = task.reference
    if library is None or library is candidate or not candidate.alive or not library.samples_ms:
        return {}
    stats = race.sample_stats(library.samples_ms)
    if library.disturbed or is_noisy(stats.median_ms, stats.spread_ms, {}):
        return {}
    return {_REFERENCE: library.candidate_id, _REFERENCE_MS: float(f"{stats.median_ms:.6g}")}


def related_ms(row: Measured, rows: Mapping[str, Measured]) -> float | None:
    """Return milliseconds that a candidate would take beside the library kernel as that was measured last; None if not known.

    Clocks change from day to day: a candidate that was 1.25x faster than the library kernel is no faster because the kernel
    was measured again when all took 1.2x as long.

    Args:
        row: The candidate's measurement, perhaps of an earlier race.
        rows: The measurements by candidate.
    """
    name, then = row.provenance.get(_REFERENCE), row.provenance.get(_REFERENCE_MS)
    library = rows.get(name) if isinstance(name, str) else None
    if library is None or library.median_ms is None or not is_calm(library):
        return None
    if not isinstance(then, int | float) or row.median_ms is None:
        return None
    if not library.median_ms / _MOST_CHANGE < then < library.median_ms * _MOST_CHANGE:
        return None
    factor = library.median_ms / then
    return row.median_ms if abs(factor - 1) < _SAME else row.median_ms * factor


def apart(
    ticket: TuningTicket, times_ms: Mapping[str, float], libraries: Collection[str]
) -> set[str]:
    """Return the disturbed candidates that were not measured in a race with the library kernel that they would replace.

    Args:
        ticket: The problem.
        times_ms: Milliseconds of the candidates that the winner is chosen from.
        libraries: The library kernels among the offered candidates.
    """
    rows = {name: ticket.measured[name] for name in times_ms}
    calm = [name for name in libraries if name in rows and not rows[name].disturbed]
    if not calm:
        return set()
    race_of_library = _race_of(rows[min(calm, key=times_ms.__getitem__)])
    others = rows.keys() - set(libraries)
    return {n for n in others if rows[n].disturbed and _race_of(rows[n]) != race_of_library}


def _race_of(row: Measured) -> tuple[object, object]:
    """Return what tells a measurement's race from others: the library kernel that was its reference, and the median of that.

    The reference itself has its own; so has a row without one, which is of an earlier version, or whose reference was disturbed.
    """
    own = row.candidate, float(f"{row.median_ms or 0.0:.6g}")
    fields = row.provenance
    return (fields[_REFERENCE], fields.get(_REFERENCE_MS)) if _REFERENCE in fields else own


def raced_again(ticket: TuningTicket, unseen: Sequence[CandidateOffer]) -> list[CandidateOffer]:
    """Return the known candidates that are measured again with unseen ones: times of different clocks decide no race.

    That is the library kernel, by which those of earlier races are related to the new ones (`related_ms`), the finalists
    that cannot be: of an earlier version, of a race without an undisturbed library kernel, or without any; those that
    the end of a budget kept from the finals; and those that were faster in each turn with the library kernel, which proves
    less once that is measured in other turns.
    """
    known = [o for o in ticket.offers if o not in unseen and is_usable(ticket, o)]
    library = next((o for o in known if o.library), None)
    stages = (FINAL,) if ticket.has_library else (FINAL, SCREENED, ALONE)
    rows = {name: ticket.measured[name] for name in contending(ticket)}
    rivals = {
        name
        for name, row in rows.items()
        if row.provenance.get("race") in stages and _REFERENCE_MS not in row.provenance
    }
    rivals |= {name for name, row in ticket.measured.items() if is_undecided(row)}
    rivals |= proven_by_turns(ticket)
    again = [o for o in known if o is not library and o.candidate_id in rivals]
    return [library, *again] if library is not None else again


def is_usable(ticket: TuningTicket, offer: CandidateOffer) -> bool:
    """Return True if a candidate has not failed."""
    measured = ticket.measured.get(offer.candidate_id)
    return measured is None or measured.status in NOT_FAILED


def left_unmeasured(ticket: TuningTicket) -> list[str]:
    """Return the candidates that a decision knows nothing of, and that a later compile would measure.

    That is all that no race came to: the budget had ended, a worker was lost, ``policy=cached`` found no record. What
    has failed is known, and so is what ran in a race without a result that counts: another race would end likewise.
    """
    if ticket.selection.policy not in ("tune", "cached"):
        return []
    return [offer.candidate_id for offer in ticket.offers if _is_open(ticket, offer)]


def _is_open(ticket: TuningTicket, offer: CandidateOffer) -> bool:
    row = ticket.measured.get(offer.candidate_id)
    if row is None:
        # The ranks of a job have decided by the measurements that they have exchanged.
        before = ticket.recorded.get(offer.candidate_id)
        return ticket.agreed is None and (before is None or before.status not in MISHAPS)
    if row.status != "skipped" or row.reason.endswith((INCOMPARABLE, MAY_HAVE_CHANGED)):
        return False
    libraries = [ticket.measured.get(o.candidate_id) for o in ticket.offers if o.library]
    has_failed = all(r is not None and r.status not in NOT_FAILED for r in libraries)
    return not (libraries and has_failed and row.reason == _NOT_COMPARED)


def open_to_late(ticket: TuningTicket, verdict: Verdict) -> Verdict:
    """Return a decision, provisional where candidates that ran are out by disturbed samples alone, or lack their finals.

    A candidate whose gain was less than its samples vary is marked, so that a later compile measures it again.
    """
    row = ticket.measured.get(verdict.unproven or "")
    if row is not None and row.measured_at >= ticket.created and not is_provisional(row):
        why = unproven(ticket.recorded.get(row.candidate))
        ticket.measured[row.candidate] = replace(row, provenance={**row.provenance, **why})
    ran = medians_of(ticket).keys()
    out = [n for n in ran - contending(ticket).keys() if ticket.measured[n].disturbed]
    undecided = {n for n in ran if is_undecided(ticket.measured[n])}
    unproven_now = {n for n in undecided if is_unproven(ticket.measured[n])}
    return open_to(verdict, out, undecided - unproven_now, unproven_now)


def contending(ticket: TuningTicket) -> dict[str, float]:
    """Return the milliseconds the winner is chosen from: medians, those of earlier races related to the last one.

    A candidate that missed the finals was measured in another clock state than the finalists, and
    only a few times: lucky screening samples must not win a race decided by interleaved rounds. So must not those of an
    earlier race that had no finals. A candidate whose numbers were compared once was far behind, and does not win if the others fail.
    """
    rows = ticket.measured
    medians = {
        name: related_ms(rows[name], rows) or ms
        for name, ms in medians_of(ticket).items()
        if not is_compared_once(rows[name])
    }
    libraries = {o.candidate_id for o in ticket.offers if o.library}
    reached = {name: ticket.measured[name].provenance.get("race") for name in medians}
    if not any(reached[name] == FINAL for name in medians.keys() - libraries):
        return medians
    apart = (BEATEN, SCREENED)
    return {
        name: ms
        for name, ms in medians.items()
        if reached[name] not in apart or (name in libraries and reached[name] != BEATEN)
    }
