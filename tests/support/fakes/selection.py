"""A selection on a real cache, and races whose times a test states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.config import Config
from inductor_plugin.problem import Problem
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.pins.pin import Pin
from inductor_plugin.tuning.pins.replay import Pins
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import Outcome, Status
from tests.support.fakes.tasks import offer, problem
from tests.support.fakes.workers import spread

ENVIRONMENT = "e" * 16


@dataclass
class Rig:
    """A selection on a real cache."""

    selection: Selection
    store: Store
    counters: Counters

    def plan(
        self,
        offers: Sequence[CandidateOffer],
        limit: Budget | None = None,
        product: Problem | None = None,
    ) -> TuningTicket:
        return self.selection.plan(
            product or problem(), offers, {"gemm": "too small"}, CHECK, limit
        )

    def record(self, ticket: TuningTicket) -> Record:
        record = self.store.record(ENVIRONMENT, ticket.problem.op, ticket.digest)
        assert record is not None
        return record


CHECK = NumberCheck(Tolerance(0.01, 0.01))


def rig(path: Path, pins: Pins | None = None, *, host_counts: bool = True, **options: Any) -> Rig:
    store, counters = open_store(path), Counters()
    config = Config.load({"cache_dir": str(path), **options}, environ={})
    here = {"host": "here"}
    selection = Selection(
        config, store, ENVIRONMENT, lambda: here, counters, pins, host_counts=host_counts
    )
    return Rig(selection, store, counters)


def pinned_to(ticket: TuningTicket, winner: str, template: str = "") -> Pins:
    """Return pins of a ticket's problem."""
    pin = Pin(ENVIRONMENT, "mm", ticket.digest, "mm(8x8, 8x8)", winner, template)
    return Pins("pins.json", {pin.place: pin})


def offers(*names: str) -> list[CandidateOffer]:
    """Return a library kernel and templates."""
    return [offer("library", library=True), *(offer(name) for name in names)]


def race(
    ticket: TuningTicket,
    times_ms: dict[str, float],
    failed: dict[str, Status] | None = None,
    finalists: Sequence[str] = (),
) -> None:
    """Do what the pipeline does with the task of a ticket."""
    task = ticket.task
    assert task is not None
    task.refresh(task)
    task.legs = 1 if finalists else 0
    for entry in task.entries:
        status = (failed or {}).get(entry.candidate_id, "ok")
        took = times_ms.get(entry.candidate_id)
        if status != "ok" or took is not None:
            entry.outcome = Outcome(
                entry.candidate_id, status, "" if status == "ok" else "why", error=1e-6
            )
        if status == "ok" and took is not None:
            entry.samples_ms = spread(took, 5)
            entry.rounds = 6 if entry.candidate_id in finalists else 0
    task.finish(task)
    task.done.set()


def entries(ticket: TuningTicket) -> list[str]:
    return [] if ticket.task is None else [e.candidate_id for e in ticket.task.entries]


def fail(ticket: Any, name: str, status: Status) -> None:
    """Let one candidate of a race fail and the others take a millisecond."""
    for entry in ticket.task.entries:
        good = entry.candidate_id != name
        entry.outcome = Outcome(
            entry.candidate_id, "ok" if good else status, "" if good else "ended", error=0.0
        )
        entry.samples_ms = (1.0,) * 5 if good else ()
    ticket.task.finish(ticket.task)
