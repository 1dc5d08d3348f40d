"""What a record keeps of a race."""

from __future__ import annotations

from pathlib import Path

from inductor_plugin.tuning.ticket import TURNS, turns_of
from inductor_plugin.worker.jobs import Outcome
from tests.support.fakes.selection import offers, rig
from tests.support.fakes.workers import spread


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
