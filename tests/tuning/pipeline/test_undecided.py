"""What is decided and measured again where the tuning budget ended before the finals."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.config import Config
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import UNDECIDED, attempts, due_at, indecision, why_void
from inductor_plugin.worker.jobs import Outcome
from tests.support.cache.records import measured
from tests.support.fakes.selection import entries, offers, race, rig
from tests.support.fakes.tasks import budget, entry, task


def ran(name: str, samples_ms: tuple[float, ...], rounds: int = 0) -> TaskCandidate:
    """Return a candidate that was measured, perhaps in turns of the finals."""
    candidate = entry(name, library=name == "library")
    candidate.outcome = Outcome(name, "ok")
    candidate.samples_ms, candidate.rounds = samples_ms, rounds
    return candidate


def cut_short(ticket: TuningTicket, undecided: str, **times_ms: float) -> None:
    """Screen candidates, some of which could still win when the budget ends; the others were not compiled."""
    assert ticket.task is not None
    ticket.task.undecided = frozenset(undecided.split())
    skipped = set(entries(ticket)) - times_ms.keys()
    race(ticket, times_ms, dict.fromkeys(skipped, "skipped"))


def test_who_could_still_win_when_the_budget_ends_is_undecided() -> None:
    screened = [ran("library", (1.1,) * 5), ran("a", (1.0,) * 5), ran("slow", (9.0,) * 5)]
    cut = task([*screened, entry("late")], budget=budget(0.0))
    cut.cut_short()
    assert cut.undecided == {"library", "a"}
    assert [e.outcome.status for e in cut.entries if e.outcome] == ["ok", "ok", "ok", "skipped"]
    ahead = task([ran("library", (1.0,) * 5), ran("a", (2.0,) * 5)])
    ahead.cut_short()
    assert ahead.undecided == frozenset()  # there would have been no finals


@pytest.mark.parametrize(("rounds", "undecided"), [(1, {"library", "a"}), (6, set[str]())])
def test_a_leg_of_too_few_turns_decides_nothing(rounds: int, undecided: set[str]) -> None:
    cut = task([ran("library", (2.0,) * rounds, rounds), ran("a", (1.0,) * rounds, rounds)])
    cut.racing, cut.legs = ("a", "library"), 1
    cut.cut_short()
    assert cut.undecided == undecided


def test_a_decision_without_finals_is_provisional_until_a_later_compile_has_held_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rig(tmp_path).plan(offers("a", "b", "slow"))
    cut_short(first, "library a b", library=1.0, a=0.9, b=0.91, slow=5.0)
    assert first.verdict is not None
    assert first.verdict.provisional
    assert first.verdict.reason.endswith("(provisional, the tuning budget ended before the finals)")
    soon = rig(tmp_path).plan(offers("a", "b", "slow"))
    assert soon.hit
    assert rig(tmp_path).selection.decide(soon).provisional
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    again = rig(tmp_path).plan(offers("a", "b", "slow"))
    assert again.void == dict.fromkeys(("library", "a", "b"), UNDECIDED)
    cut_short(again, "library a b", library=1.0, a=0.9, b=0.91)
    assert attempts(again.measured["a"]) == 2
    last = rig(tmp_path).plan(offers("a", "b", "slow"))
    race(last, {"library": 1.0, "a": 1.0, "b": 0.8}, finalists=("library", "a", "b"))
    assert last.verdict is not None
    assert (last.verdict.winner, last.verdict.provisional) == ("b", False)
    assert rig(tmp_path).plan(offers("a", "b", "slow")).hit


def test_who_had_no_finals_races_those_that_were_not_compiled_in_time(tmp_path: Path) -> None:
    cut_short(rig(tmp_path).plan(offers("a", "slow", "c")), "library a", library=1, a=0.5, slow=9)
    later = rig(tmp_path).plan(offers("a", "slow", "c"))
    assert entries(later) == ["library", "a", "c"]


def test_samples_of_a_screening_do_not_beat_finalists_of_a_later_race(tmp_path: Path) -> None:
    race(rig(tmp_path).plan(offers("lucky")), {"library": 1.0, "lucky": 0.5})
    ticket = rig(tmp_path).plan(offers("lucky", "b"))
    race(ticket, {"library": 1.0, "b": 0.8}, finalists=("library", "b"))
    assert ticket.verdict is not None
    assert ticket.verdict.winner == "b"


def test_screened_samples_do_not_replace_those_of_the_finals(tmp_path: Path) -> None:
    race(rig(tmp_path).plan(offers("a")), {"library": 1.0, "a": 0.8}, finalists=("library", "a"))
    ticket = rig(tmp_path).plan(offers("a", "b"))
    cut_short(ticket, "library b", library=0.7, b=0.6)
    assert ticket.measured["library"].median_ms == 1.0
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == ("a", True)


def test_an_undecided_measurement_is_repeated_later_and_later_where_something_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", 10.0)
    row = measured("a", 1.0, provenance=indecision(None), error=0.0, measured_at=time.time() - 20)
    config = Config()
    assert why_void(row, config, library=False) == UNDECIDED
    assert why_void(row, replace(config, policy="cached"), library=False) == ""
    second = replace(row, provenance=indecision(row))
    assert due_at(second) - due_at(row) == pytest.approx(50.0)
    assert why_void(second, config, library=False) == ""
