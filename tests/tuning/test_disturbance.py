"""What is decided, kept and measured again where other work on the machine has prolonged samples."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Measured, open_store
from inductor_plugin.cache.merge import merge
from inductor_plugin.config import Config
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.decision import decide, open_to, upper_bounds
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import (
    DISTURBED,
    again_at,
    attempts,
    due_at,
    unused,
    why_void,
)
from inductor_plugin.worker.jobs import Outcome
from tests.support.cache.records import measured, record
from tests.support.fakes.selection import entries, offers, pinned_to, race, rig

CONFIG = Config()


def row(
    name: str, ms: float = 1.0, before: int | None = 0, age_s: float = 0.0, **fields: Any
) -> Measured:
    """Return a measurement; a calm one if ``before`` is None."""
    provenance = {"race": "final"} | (
        {} if before is None else {"disturbed": True, "attempts": before + 1}
    )
    when = time.time() - age_s
    return measured(name, ms, provenance=provenance, measured_at=when, error=0.0, **fields)


def test_a_disturbed_library_kernel_stays_for_now() -> None:
    verdict = decide({"library": 9.0, "a": 1.0}, ["library"], 1.02, {}, {"library"})
    assert verdict.winner == "library"
    assert verdict.provisional
    assert verdict.reason.startswith("the library kernel stays for now (provisional, ")


def test_the_library_kernel_that_is_compared_with_is_a_calm_one() -> None:
    times = {"first": 1.0, "second": 2.0, "a": 1.5}
    verdict = decide(times, ["first", "second"], 1.02, {}, {"first"})
    assert (verdict.winner, verdict.library) == ("a", "second")


def test_a_candidate_that_wins_in_spite_of_other_work_wins() -> None:
    verdict = decide({"library": 2.0, "a": 1.0}, ["library"], 1.02, {}, {"a"})
    assert verdict.winner == "a"
    assert verdict.provisional
    assert decide({"library": 2.0, "a": 2.1}, ["library"], 1.02, {}, {"a"}).winner == "library"
    assert not decide({"library": 2.0, "a": 1.0}, ["library"], 1.02).provisional
    alone = decide({"library": 2.0}, ["library"], 1.02, {}, {"library"})
    assert not alone.provisional  # there is nothing to decide


def test_a_disturbed_candidate_of_another_race_does_not_replace_the_library_kernel() -> None:
    times = {"library": 2.0, "a": 1.0}
    verdict = decide(times, ["library"], 1.02, {}, {"a"}, apart={"a"})
    assert (verdict.winner, verdict.provisional) == ("library", True)
    assert verdict.reason.startswith("the library kernel stays for now (provisional, ")
    both = decide({**times, "b": 1.5}, ["library"], 1.02, {}, {"a"}, apart={"a"})
    assert (both.winner, both.speedup, both.provisional) == ("b", pytest.approx(2.0 / 1.5), True)


def test_today_s_disturbed_sample_is_not_compared_with_another_day_s_library_kernel(
    tmp_path: Path,
) -> None:
    """Its calm row was kept, since today's is disturbed: clocks were others then."""
    raced_with(rig(tmp_path).plan(offers("a")), {}, library=2.0, a=3.0)
    today = rig(tmp_path).plan(offers("a", "b"))
    raced_with(today, {"library": 9.0, "b": 1.0})
    for ticket in (today, rig(tmp_path).plan(offers("a", "b"))):
        verdict = ticket.selection.decide(ticket)
        assert (verdict.winner, verdict.provisional) == ("library", True)
        assert ticket.measured["library"].median_ms == 2.0


def test_a_disturbed_candidate_wins_only_over_the_library_kernel_of_its_race(
    tmp_path: Path,
) -> None:
    first = rig(tmp_path).plan(offers("a"))
    raced_with(first, {"a": 1.0}, library=2.0)
    for ticket in (first, rig(tmp_path).plan(offers("a"))):
        verdict = ticket.selection.decide(ticket)
        assert (verdict.winner, verdict.provisional) == ("a", True)
    later = rig(tmp_path).plan(offers("a", "b"))  # a is not due yet
    assert entries(later) == ["library", "b"]
    raced_with(later, {}, library=1.9, b=3.0)
    verdict = later.selection.decide(later)
    assert (verdict.winner, verdict.provisional) == ("library", True)


@pytest.mark.parametrize(
    ("tried", "waits_s"), [(1, 10.0), (2, 60.0), (3, 360.0), (6, 10.0 * 6**5), (99, 10.0 * 6**5)]
)
def test_it_is_measured_again_later_and_later(tried: int, waits_s: float) -> None:
    for age_s, again in ((waits_s - 5, False), (waits_s + 5, True)):
        late = row("a", before=tried - 1, age_s=age_s)
        assert attempts(late) == min(tried, 6)
        assert (why_void(late, CONFIG, library=False) == DISTURBED) is again
    assert why_void(row("a", before=None, age_s=1e9), CONFIG, library=False) == ""


def test_the_first_of_disturbed_measurements_is_repeated_first() -> None:
    """At the latest a day after the last attempt: nine of them would have been half a year."""
    calm, late, later = row("c", before=None), row("a", age_s=60.0), row("b")
    assert again_at([calm, later, late]) == due_at(late) < due_at(later)
    assert again_at([calm]) == 0.0
    assert due_at(row("a", before=99)) < time.time() + 86400.0


def test_only_where_something_is_measured_at_all() -> None:
    late = row("a", age_s=1e6)
    for policy in ("cached", "build"):
        assert why_void(late, replace(CONFIG, policy=policy), library=False) == ""


def test_samples_that_vary_by_more_than_their_median_are_disturbed_ones() -> None:
    """As a version before this left them, or a system that does not count how long threads wait."""
    noisy = replace(row("a", before=None, age_s=60.0), spread_ms=1.5)
    assert why_void(noisy, CONFIG, library=True) == DISTURBED


def test_finalists_are_measured_again_with_their_library_kernel() -> None:
    rows = {
        "library": row("library", age_s=60.0),
        "a": row("a", before=None, age_s=60.0),
        "screened": replace(row("screened", before=None), provenance={"race": "beaten"}),
        "failed": row("failed", before=None, status="raised"),
    }
    assert unused(rows, {"library"}, CONFIG) == {"library": DISTURBED, "a": DISTURBED}
    calm = rows | {"library": row("library", before=None)}
    assert unused(calm, {"library"}, CONFIG) == {}


def test_a_disturbed_measurement_does_not_replace_a_calm_one(tmp_path: Path) -> None:
    raced_with(rig(tmp_path).plan(offers("a")), {}, library=2.0, a=3.0)
    ticket = rig(tmp_path).plan(offers("a", "b"))  # the library kernel is measured again with b
    raced_with(ticket, {"library": 9.0}, b=1.0)
    assert ticket.verdict is not None
    assert ticket.verdict.winner == "b"
    (stored,) = open_store(tmp_path).iter_records()
    assert stored.candidates["library"].median_ms == 2.0
    assert not stored.noisy


def test_a_failure_after_a_measurement_counts_though_that_was_calm() -> None:
    calm = row("a", 1.0, before=None, age_s=60.0)
    for other in (row("a", 8.0), row("a", 8.0, before=None, status="red_zone")):
        assert merge(record(calm), record(other)).candidates["a"] == other
        assert merge(record(other), record(calm)).candidates["a"] == other


def test_the_shortest_sample_is_compared_with_the_shortest() -> None:
    """A kernel that takes 3 % longer, each call 4 % more or less, does not win by its luckiest sample."""
    samples = {"library": (0.96, 1.0, 1.04), "a": (0.99, 1.03, 1.07)}
    bounds = upper_bounds({"library": 1.0, "a": 1.03}, samples, ["library"], ["a"])
    assert bounds["a"] == pytest.approx(0.99 / 0.96)
    assert upper_bounds({"library": 1.0, "a": 1.03}, samples, ["library"], []) == {}
    alone = upper_bounds({"library": 1.0, "a": 1.03}, samples, ["library"], ["library", "a"])
    assert alone == {"library": 0.96, "a": 0.99}


def finalist(*legs: tuple[tuple[float, ...], bool]) -> TaskCandidate:
    candidate = TaskCandidate(CandidateId("a", "a", "cpp", ""))
    candidate.screened(Outcome("a", "ok", samples_ms=(9.0,)))
    for samples_ms, disturbed in legs:
        candidate.raced(Outcome("a", "ok", samples_ms=samples_ms, disturbed=disturbed))
    return candidate


CALM, LATE = ((1.0, 1.0), False), ((5.0,), True)


@pytest.mark.parametrize(
    ("legs", "samples_ms", "disturbed"),
    [
        ((CALM, CALM), (1.0,) * 4, False),
        ((CALM, LATE, CALM), (1.0,) * 4, False),
        ((LATE, CALM), (1.0,) * 2, True),
        ((CALM, LATE), (1.0,) * 2, True),
        ((LATE, LATE), (5.0,) * 2, True),
        ((CALM,), (1.0,) * 2, False),
    ],
)
def test_calm_turns_of_all_legs_count_and_disturbed_ones_where_there_are_no_others(
    legs: tuple[tuple[tuple[float, ...], bool], ...],
    samples_ms: tuple[float, ...],
    *,
    disturbed: bool,
) -> None:
    """A calm sample of the screening decides nothing once there were finals: it was taken apart from those of others.

    Two late legs left it before, and the record of two kernels with a calm sample each was firm.
    """
    candidate = finalist(*legs)
    assert (candidate.samples_ms, candidate.disturbed) == (samples_ms, disturbed)
    assert candidate.rounds == sum(len(samples) for samples, _ in legs)


def test_calm_turns_add_up_to_enough_for_a_median() -> None:
    candidate = TaskCandidate(CandidateId("a", "a", "cpp", ""))
    for legs, disturbed in ((1, True), (2, True), (3, False)):
        candidate.raced(Outcome("a", "ok", samples_ms=(1.0,), turns=6))
        assert (candidate.calm_rounds, candidate.rounds) == (legs, 6 * legs)
        assert (candidate.samples_ms, candidate.disturbed) == ((1.0,) * legs, disturbed)


def test_disturbed_legs_count_where_the_screening_was_disturbed_too() -> None:
    candidate = TaskCandidate(CandidateId("a", "a", "cpp", ""))
    candidate.screened(Outcome("a", "ok", samples_ms=(9.0,), disturbed=True))
    for _ in range(2):
        candidate.raced(Outcome("a", "ok", samples_ms=(5.0,), disturbed=True))
    assert (candidate.samples_ms, candidate.disturbed) == ((5.0, 5.0), True)
    candidate.raced(Outcome("a", "ok", samples_ms=(1.0,) * 3))
    assert (candidate.samples_ms, candidate.disturbed) == ((1.0,) * 3, False)


def test_finals_without_a_sample_leave_those_of_the_screening() -> None:
    candidate = finalist(((), True))
    assert (candidate.samples_ms, candidate.rounds) == ((9.0,), 0)


def raced_with(ticket: TuningTicket, late: dict[str, float], **times_ms: float) -> None:
    """Finish a race in which some were disturbed."""
    assert ticket.task is not None
    for entry in ticket.task.entries:
        entry.disturbed = entry.candidate_id in late
    race(ticket, times_ms | late, finalists=list(times_ms | late))


def test_a_decision_is_open_to_who_is_out_by_disturbed_samples() -> None:
    firm = decide({"library": 2.0, "a": 1.0}, ["library"], 1.02)
    assert open_to(firm, []) == firm
    for verdict in (open_to(firm, ["late"]), open_to(open_to(firm, ["late"]), ["late"])):
        assert (verdict.winner, verdict.speedup, verdict.provisional) == ("a", 2.0, True)
        assert verdict.reason.count("provisional, ") == 1


def test_who_was_disturbed_in_the_screening_is_not_out_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside other work ``late`` took 9 ms each time, so that it was no leader: it may be the best all the same."""
    ticket = rig(tmp_path).plan(offers("a", "late"))
    assert ticket.task is not None
    ticket.task.entry("late").disturbed = True
    race(ticket, {"library": 2.0, "a": 1.0, "late": 9.0}, finalists=["library", "a"])
    for known in (ticket, rig(tmp_path).plan(offers("a", "late"))):
        verdict = known.selection.decide(known)
        assert (verdict.winner, verdict.provisional) == ("a", True)
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    again = rig(tmp_path).plan(offers("a", "late"))
    assert "late" in entries(again)
    race(again, {"library": 2.0, "a": 1.0, "late": 0.5}, finalists=["library", "a", "late"])
    assert again.verdict is not None
    assert (again.verdict.winner, again.verdict.provisional) == ("late", False)


def test_a_disturbed_library_kernel_is_measured_again_until_it_is_firm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = rig(tmp_path).plan(offers("a"))
    raced_with(ticket, {"library": 9.0}, a=1.0)
    assert ticket.verdict is not None
    assert ticket.verdict.winner == "library"
    assert ticket.verdict.provisional
    for count in (2, 3):
        at_once = rig(tmp_path).plan(offers("a"))
        assert at_once.hit
        monkeypatch.setattr(validity, "AGAIN_S", -1.0)
        again = rig(tmp_path).plan(offers("a"))
        monkeypatch.undo()
        assert entries(again) == ["library", "a"]
        raced_with(again, {"library": 8.0}, a=1.0)
        (stored,) = open_store(tmp_path).iter_records()
        assert attempts(stored.candidates["library"]) == count
        assert stored.noisy
        assert attempts(stored.candidates["a"]) == 0
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    last = rig(tmp_path).plan(offers("a"))
    raced_with(last, {}, library=2.0, a=1.0)
    assert last.verdict is not None
    assert last.verdict.winner == "a"
    after = rig(tmp_path).plan(offers("a"))
    assert after.hit
    (stored,) = open_store(tmp_path).iter_records()
    assert not stored.noisy
    assert stored.decision is not None
    assert stored.decision.winner == "a"


def test_samples_that_vary_without_a_known_reason_do_not_cost_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    ticket = rig(tmp_path).plan(offers("a"))
    for count in (1, 2, 3):
        assert ticket.task is not None
        for entry in ticket.task.entries:
            entry.outcome = Outcome(entry.candidate_id, "ok", error=1e-6)
            entry.samples_ms = (1.0, 1.0, 1.1, 9.0, 9.0, 9.0) if entry.library else (5.0,) * 6
        ticket.task.finish(ticket.task)
        (stored,) = open_store(tmp_path).iter_records()
        assert attempts(stored.candidates["library"]) == count
        ticket = rig(tmp_path).plan(offers("a"))


@pytest.mark.parametrize("policy", ["cached", "pinned"])
def test_a_provisional_decision_is_a_decision_where_nothing_is_measured(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = rig(tmp_path).plan(offers("a"))
    raced_with(ticket, {"a": 1.0}, library=2.0)
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    extra: dict[str, Any] = {"pin_file": "pins.json"} if policy == "pinned" else {}
    pins = pinned_to(ticket, "a") if policy == "pinned" else None
    there = rig(tmp_path, pins, policy=policy, **extra)
    known = there.plan(offers("a"))
    assert known.hit
    assert there.selection.decide(known).winner == "a"
