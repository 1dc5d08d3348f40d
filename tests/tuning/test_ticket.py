"""The lines of the log about a problem, and what its candidates have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ticket import TURNS, TuningTicket, decided, looked_up, turns_of
from inductor_plugin.worker.jobs import Outcome
from tests.support.cache.records import measured
from tests.support.fakes.selection import offers, rig
from tests.support.fakes.tasks import offer, problem
from tests.support.fakes.workers import spread


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
        row("left", "now", 5),
        row("late", "now", disturbed=True),
        row("odd", ["now"]),
    )
    submitted.measured = {each.candidate: each for each in rows}
    assert turns_of(submitted) == {"library": (1.0,) * 6, "a": (1.0,) * 6}
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
        entry.samples_ms, entry.rounds = tuple(factor * ms for ms in turns), len(turns)
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
    ticket = bench.plan(offers("a", "fewer", "screened"))
    task = ticket.task
    assert task is not None
    rounds = {"library": 6, "a": 6, "fewer": 12, "screened": 0}
    task.refresh(task)
    task.legs = 1
    for entry in task.entries:
        entry.outcome = Outcome(entry.candidate_id, "ok", error=1e-6)
        entry.samples_ms = spread(1.0, 6)
        entry.rounds = rounds[entry.candidate_id]
    task.finish(task)
    stored = bench.record(ticket).candidates
    assert {name for name, row in stored.items() if TURNS in row.provenance} == {"library", "a"}
    later = rig(tmp_path).plan(offers("a", "fewer", "screened"))
    assert turns_of(ticket).keys() == turns_of(later).keys() == {"library", "a"}
