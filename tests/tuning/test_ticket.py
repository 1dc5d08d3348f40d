"""The lines of the log about a problem, and what its candidates have in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning import validity
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.measurement import left_unmeasured, require_reference, unmeasured
from inductor_plugin.tuning.ranks.agreed import library_for
from inductor_plugin.tuning.ticket import (
    TURNS,
    TuningTicket,
    decided,
    launches_of,
    looked_up,
    proven_by_turns,
    turns_of,
)
from inductor_plugin.tuning.validity import UNPROVEN, attempts
from inductor_plugin.worker.jobs import INCOMPARABLE, MAY_HAVE_CHANGED, OUT_OF_TIME, Outcome
from tests.support.cache.records import measured
from tests.support.fakes.selection import entries, offers, rig
from tests.support.fakes.tasks import offer, problem
from tests.support.fakes.workers import spread

MOST_PROOFS = validity.MOST_PROOFS
"""Read before the fixture `measured_once` sets it to 0."""


def ticket() -> TuningTicket:
    selection: Any = None
    offers = (offer("library", library=True), offer("a"))
    return TuningTicket(selection, problem(), "d" * 64, offers, {}, {})


def test_a_lookup_is_a_hit_or_a_miss_of_a_problem() -> None:
    submitted = ticket()
    assert looked_up(submitted, [], "tune") == (
        "mm(64x32, 32x48): hit, all 2 candidates are known (record dddddddddddd)"
    )
    assert looked_up(submitted, submitted.offers[1:], "tune") == (
        "mm(64x32, 32x48): miss, 1 of 2 candidates are measured (record dddddddddddd)"
    )
    assert "are compiled" in looked_up(submitted, submitted.offers, "build")
    assert "not measured (policy=cached)" in looked_up(submitted, submitted.offers, "cached")


def test_a_decision_names_the_problem_the_winner_and_why() -> None:
    submitted = ticket()
    assert decided(submitted) == "mm(64x32, 32x48): nothing was decided"
    submitted.verdict = Verdict("a", "library", "1.5x faster than the library kernel")
    assert decided(submitted) == "mm(64x32, 32x48): a runs: 1.5x faster than the library kernel"


def test_the_turns_of_a_race_are_those_that_the_last_library_kernel_took() -> None:
    def row(name: str, race: object, count: int = 6, **fields: Any) -> Any:
        provenance = {TURNS: race, **fields}
        return measured(name, samples_ms=(1.0,) * count, provenance=provenance)

    submitted = ticket()
    assert turns_of(submitted) == {}
    rows = (
        row("library", "now"),
        row("a", "now"),
        row("earlier", "then"),
        row("left", "now", 5),  # before the last turn
        row("other", "now", 7),
        row("late", "now", disturbed=True),
        row("odd", ["now"]),
    )
    submitted.measured = {each.candidate: each for each in rows}
    turns = {"library": (1.0,) * 6, "a": (1.0,) * 6, "left": (1.0,) * 5}
    assert turns_of(submitted) == turns
    del submitted.measured["library"]
    assert turns_of(submitted) == {}


@pytest.mark.parametrize(
    ("host_ms", "speedup"),
    [
        ({}, 1.1),
        ({"library": 0.001, "a": 0.001}, 1.1),
        ({"library": 2.0}, 1.1),  # that of ``a``, which may be the fastest, is not known
        ({"library": 1.9, "a": 0.5}, (1.1 + 1.9 * 1.1 / 1.4) / 2),
    ],
)
def test_a_decision_compares_turn_by_turn_in_this_process_and_in_a_later_one(
    tmp_path: Path, host_ms: dict[str, float], speedup: float
) -> None:
    """Each turn takes another time, both kernels alike: medians and spreads alone would leave the library kernel."""
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    task = ticket.task
    assert task is not None
    task.refresh(task)
    task.legs = 1
    turns = (1.0, 3.0, 1.4, 2.6, 1.2, 2.2)
    for entry in task.entries:
        factor = 1.0 if entry.library else 1 / 1.1
        entry.outcome = Outcome(entry.candidate_id, "ok", error=1e-6)
        entry.samples_ms = tuple(factor * ms for ms in turns)
        entry.rounds = entry.calm_rounds = len(turns)
        if entry.candidate_id in host_ms:
            entry.conditions = {"host_ms": host_ms[entry.candidate_id]}
    task.finish(task)
    later = rig(tmp_path)
    for selection, known in ((bench.selection, ticket), (later.selection, later.plan(offers("a")))):
        verdict = selection.decide(known)
        assert verdict.winner == "a"
        assert verdict.speedup == pytest.approx(speedup)


def test_samples_that_are_of_the_same_turns_say_so_in_later_processes_too(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "disturbed", "screened"))
    task = ticket.task
    assert task is not None
    calm = {"library": 6, "a": 6, "disturbed": 0, "screened": 0}
    task.refresh(task)
    task.legs = 1
    for entry in task.entries:
        entry.outcome = Outcome(entry.candidate_id, "ok", error=1e-6)
        entry.samples_ms = spread(1.0, 6)
        entry.calm_rounds = calm[entry.candidate_id]
        entry.rounds = 0 if entry.candidate_id == "screened" else 12
    task.finish(task)
    stored = bench.record(ticket).candidates
    assert {name for name, row in stored.items() if TURNS in row.provenance} == {"library", "a"}
    later = rig(tmp_path).plan(offers("a", "disturbed", "screened"))
    assert turns_of(ticket).keys() == turns_of(later).keys() == {"library", "a"}


NOISY = (1.0, 1.3, 1.05, 1.25, 1.1, 1.2)
"""By how much longer all kernels take in each turn of a race."""


def raced(ticket: TuningTicket, **times_ms: float) -> None:
    """Let candidates race in turns that differ; who has no time here is only screened, and far behind."""
    task = ticket.task
    assert task is not None
    task.refresh(task)
    task.legs = 1
    for entry in task.entries:
        entry.outcome = Outcome(entry.candidate_id, "ok", error=1e-6)
        took_ms = times_ms.get(entry.candidate_id)
        if took_ms is None:
            entry.screened(Outcome(entry.candidate_id, "ok", samples_ms=(9.0,) * 5))
            continue
        for first in (0, 3):  # a leg is six turns; three of each were disturbed
            calm_ms = tuple(took_ms * factor for factor in NOISY[first : first + 3])
            entry.raced(Outcome(entry.candidate_id, "ok", samples_ms=calm_ms, turns=6))
    task.finish(task)


def test_turns_beside_other_work_leave_the_others_pairs(tmp_path: Path) -> None:
    """Each turn takes another time, both kernels alike: without pairs the gain would be less than the samples vary."""
    ticket = rig(tmp_path).plan(offers("a"))
    raced(ticket, library=1.05, a=1.0)
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == ("a", False)
    assert ticket.verdict.speedup == pytest.approx(1.05)


def test_who_was_faster_in_each_turn_races_again_where_the_library_kernel_does(
    tmp_path: Path,
) -> None:
    """In other turns than the library kernel's its gain would be less than the samples vary."""
    raced(rig(tmp_path).plan(offers("a", "slower")), library=1.05, a=1.0, slower=1.06)
    ticket = rig(tmp_path).plan(offers("a", "slower", "new"))
    assert entries(ticket) == ["library", "a", "new"]
    raced(ticket, library=1.05, a=1.0)
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == ("a", False)


def test_a_large_gain_that_is_not_proven_is_measured_again_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beside_noise(ticket: TuningTicket) -> Verdict:
        task = ticket.task
        assert task is not None
        task.refresh(task)
        for entry in task.entries:
            entry.outcome = Outcome(entry.candidate_id, "ok", error=1e-6)
            least_ms = 1.3 if entry.library else 1.0
            noise = (1.0, 1.0, 1.0, 1.6, 1.6)
            entry.samples_ms = tuple(least_ms * factor for factor in noise)
        task.finish(task)
        assert ticket.verdict is not None
        return ticket.verdict

    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    monkeypatch.setattr(validity, "MOST_PROOFS", MOST_PROOFS)
    for attempt in (1, 2, 3):
        ticket = rig(tmp_path).plan(offers("a"))
        assert ticket.void == ({} if attempt == 1 else {"a": UNPROVEN})
        verdict = beside_noise(ticket)
        assert (verdict.winner, verdict.provisional) == ("library", True)
        assert verdict.reason.endswith("(1.600x) (provisional, it is measured again)")
        assert attempts(ticket.measured["a"]) == attempt
    verdict = beside_noise(rig(tmp_path).plan(offers("a")))
    assert (verdict.winner, verdict.provisional) == ("library", False)
    assert rig(tmp_path).plan(offers("a")).hit


def left(ticket: TuningTicket, **rows: tuple[str, str]) -> list[str]:
    """Return who is left unmeasured where these statuses and reasons are known."""
    ticket.measured = {n: unmeasured(offer(n), *row, {}, 0.0) for n, row in rows.items()}
    return left_unmeasured(ticket)


def test_what_no_race_came_to_is_left_to_a_later_compile(tmp_path: Path) -> None:
    ticket = rig(tmp_path).plan(offers("a", "b", "c", "d"))
    late = ("skipped", OUT_OF_TIME)
    statuses = {"library": ("ok", ""), "a": late, "b": ("wrong", ""), "c": ("pruned", "")}
    assert left(ticket, **statuses) == ["a", "d"]
    assert left(ticket, **statuses, d=("skipped", f"x: {INCOMPARABLE}")) == ["a"]
    assert left(ticket, **statuses, d=("skipped", MAY_HAVE_CHANGED)) == ["a"]
    ticket.recorded = {"d": measured("d", None, status="crashed")}
    assert left(ticket, **statuses) == ["a"]  # the quarantine says whether it is tried again
    ticket.recorded = {"d": measured("d")}
    assert left(ticket, **statuses) == ["a", "d"]
    ticket.agreed = library_for("why", 0)
    assert left(ticket, **statuses) == ["a"]


def test_where_the_library_kernel_has_failed_no_later_race_compares_numbers(tmp_path: Path) -> None:
    ticket = rig(tmp_path).plan(offers("a"))
    assert ticket.task is not None
    candidate = ticket.task.entry("a")
    candidate.outcome = Outcome("a", "ok")
    require_reference(ticket.task, candidate)
    reason = candidate.outcome.reason
    assert "not compared" in reason
    assert left(ticket, library=("raised", ""), a=("skipped", reason)) == []
    assert left(ticket, library=("raised", ""), a=("skipped", OUT_OF_TIME)) == ["a"]
    assert left(ticket, library=("ok", ""), a=("skipped", reason)) == ["a"]
    ticket.offers = ticket.offers[1:]
    assert left(ticket, a=("skipped", reason)) == ["a"]


@pytest.mark.parametrize(
    ("policy", "known"), [("tune", ["a"]), ("cached", ["a"]), ("build", list[str]())]
)
def test_a_later_compile_measures_where_it_decides_by_measurements(
    tmp_path: Path, policy: str, known: list[str]
) -> None:
    ticket = rig(tmp_path, policy=policy).plan(offers("a"))
    assert left(ticket, library=("ok", ""), a=("skipped", OUT_OF_TIME)) == known


@pytest.mark.parametrize("early", ["old", "new"])
def test_a_library_kernel_that_left_the_race_early_hides_no_turns(early: str) -> None:
    submitted = ticket()
    submitted.offers = (offer("old", library=True), offer("new", library=True), offer("a"))
    counts = {"old": 12, "new": 12, "a": 12, early: 6}
    ms = {"old": 2.0, "new": 2.0, "a": 1.0, early: 3.0}
    rows = [
        measured(name, samples_ms=(ms[name],) * count, provenance={TURNS: "x"})
        for name, count in counts.items()
    ]
    rows[1] = replace(rows[1], measured_at=rows[0].measured_at + 0.001)
    submitted.measured = {row.candidate: row for row in rows}
    assert {name: len(each) for name, each in turns_of(submitted).items()} == counts
    assert proven_by_turns(submitted) == {"a"}


def test_what_the_ranks_have_agreed_on_stays() -> None:
    submitted = ticket()
    own, theirs = Verdict("a", "library", "own"), Verdict("library", "library", "theirs")
    assert submitted.decide(own) is own
    submitted.reopen()
    assert submitted.verdict is None
    submitted.agree(library_for("theirs", 1), theirs)
    submitted.reopen()
    assert submitted.decide(own) is submitted.verdict is theirs


def test_of_two_library_kernels_the_one_that_was_measured_last_is_compared_with() -> None:
    submitted = ticket()
    submitted.offers = (offer("old", library=True), offer("new", library=True), offer("a"))
    rows = [
        measured(
            "old", samples_ms=(1.0,) * 6, provenance={TURNS: "x", "host": "p", "host_ms": 1.0}
        ),
        measured(
            "new", samples_ms=(2.0,) * 6, provenance={TURNS: "y", "host": "q", "host_ms": 2.0}
        ),
        measured("a", samples_ms=(3.0,) * 6, provenance={TURNS: "y", "host": "q", "host_ms": 3.0}),
    ]
    rows[1] = replace(rows[1], measured_at=2000.0)
    submitted.measured = {row.candidate: row for row in rows}
    assert turns_of(submitted).keys() == {"new", "a"}
    assert launches_of(submitted) == {"new": 2.0, "a": 3.0}
