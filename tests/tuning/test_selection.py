"""From offers to decisions and records, with a pipeline run by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.tuning import selection
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import Outcome, Status
from tests.support.fakes.selection import (
    CHECK,
    entries,
    offers,
    race,
    rig,
)
from tests.support.fakes.tasks import budget, offer, problem
from tests.support.fakes.workers import spread


def test_the_record_keeps_samples_reasons_and_where_they_come_from(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "bad"))
    race(ticket, {"library": 2.0, "a": 1.0}, {"bad": "wrong"})
    record = bench.record(ticket)
    assert record.rejected == {"gemm": "too small"}
    assert record.candidates["a"].samples_ms == pytest.approx(spread(1.0, 5))
    assert record.candidates["a"].median_ms == pytest.approx(1.0)
    assert record.candidates["a"].spread_ms == pytest.approx(0.005)
    assert record.candidates["a"].provenance["host"] == "here"
    assert (record.candidates["bad"].status, record.candidates["bad"].reason) == ("wrong", "why")
    assert record.decision is not None
    assert (record.decision.winner, record.decision.library) == ("a", "library")
    assert record.decision.speedup == pytest.approx(2.0)
    assert record.decision.candidates == 3


def test_the_record_says_how_far_each_candidate_came(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "b"))
    race(ticket, {"library": 2.0, "a": 1.0, "b": 3.0}, finalists=("library", "a"))
    stages = {n: m.provenance["race"] for n, m in bench.record(ticket).candidates.items()}
    assert stages == {"library": "final", "a": "final", "b": "beaten"}
    ticket = bench.plan(offers("c"), product=problem(rows=65))
    race(ticket, {"library": 1.0, "c": 3.0})
    stages = {n: m.provenance["race"] for n, m in bench.record(ticket).candidates.items()}
    assert stages == {"library": "screened", "c": "screened"}


def test_a_decision_rests_on_the_measurements_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    race(ticket, {"library": 2.0, "a": 1.0})

    def contending(seen: TuningTicket) -> dict[str, float]:
        times_ms = selected(seen)
        ticket.measured = {}  # as another rank's take their place, in another thread
        return times_ms

    selected = selection.contending
    monkeypatch.setattr(selection, "contending", contending)
    ticket.reopen()
    assert bench.selection.decide(ticket).winner == "a"


def test_a_lucky_first_look_does_not_win_against_finalists(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "lucky"))
    # All slowed down between the screening and the finals, in which "lucky" took no part.
    race(ticket, {"library": 2.0, "a": 1.5, "lucky": 1.4}, finalists=("library", "a"))
    assert bench.selection.decide(ticket).winner == "a"
    assert bench.selection.decide(rig(tmp_path).plan(offers("a", "lucky"))).winner == "a"
    assert bench.selection.medians(ticket)["lucky"] == pytest.approx(1.4)


def test_who_was_beaten_competes_again_when_no_finalist_is_offered(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    race(
        bench.plan(offers("a", "second")),
        {"library": 2.0, "a": 1.0, "second": 1.1},
        finalists=("library", "a"),
    )
    assert bench.selection.decide(bench.plan(offers("second"))).winner == "second"


def test_a_winner_that_is_not_faster_by_the_margin_is_not_used(tmp_path: Path) -> None:
    bench = rig(tmp_path, never_slower_margin=1.5)
    ticket = bench.plan(offers("a"))
    race(ticket, {"library": 1.4, "a": 1.0})
    verdict = bench.selection.decide(ticket)
    assert verdict.winner == "library"
    assert "margin" in verdict.reason
    # The timings stay: with another margin the same record decides otherwise.
    other = rig(tmp_path, never_slower_margin=1.1)
    assert other.selection.decide(other.plan(offers("a"))).winner == "a"


@pytest.mark.parametrize(("library_ms", "winner"), [(1.015, "library"), (1.03, "a")])
def test_by_default_a_winner_is_two_percent_faster(
    tmp_path: Path, library_ms: float, winner: str
) -> None:
    selection = rig(tmp_path)
    ticket = selection.plan(offers("a"))
    race(ticket, {"library": library_ms, "a": 1.0})
    assert selection.selection.decide(ticket).winner == winner


def test_how_the_device_was_is_in_the_record(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    assert ticket.task is not None
    for each in ticket.task.entries:
        each.conditions = {"sm_clock_mhz": 1980, "host_bound": True}
    race(ticket, {"library": 1.0, "a": 0.5})
    provenance = bench.record(ticket).candidates["a"].provenance
    assert (provenance["sm_clock_mhz"], provenance["host_bound"]) == (1980, True)


@pytest.mark.parametrize(("counts", "winner"), [(True, "b"), (False, "a")])
def test_a_launch_that_takes_the_host_longer_than_the_kernel_counts(
    tmp_path: Path, winner: str, *, counts: bool
) -> None:
    """Not in a CUDA graph; either is decided from the same record, and nothing is measured again."""
    first = rig(tmp_path)
    ticket = first.plan(offers("a", "b"))
    assert ticket.task is not None
    for each, host in zip(ticket.task.entries, (0.004, 0.020, 0.005), strict=True):
        each.conditions = {"host_ms": host}
    race(ticket, {"library": 0.010, "a": 0.006, "b": 0.008})
    assert first.selection.decide(ticket).winner == "b"
    again = rig(tmp_path, host_counts=counts)
    known = again.plan(offers("a", "b"))
    assert known.hit
    verdict = again.selection.decide(known)
    assert verdict.winner == winner
    assert ("its launch takes the host 20.0 us" in verdict.reason) is counts


def test_launches_of_two_hosts_are_not_compared(tmp_path: Path) -> None:
    first = rig(tmp_path)
    ticket = first.plan(offers("a"))
    assert ticket.task is not None
    for each, host in zip(ticket.task.entries, (0.004, 0.020), strict=True):
        each.conditions = {"host_ms": host} | ({"host": "there"} if each.library else {})
    race(ticket, {"library": 0.010, "a": 0.006})
    assert first.selection.decide(ticket).winner == "a"


def test_a_failed_library_kernel_is_no_yardstick(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    race(ticket, {"a": 1.0}, {"library": "raised"})
    verdict = bench.selection.decide(ticket)
    assert (verdict.winner, verdict.library) == ("a", None)
    again = bench.plan(offers("a", "b"))
    assert entries(again) == ["b"]  # it is not measured again


def test_a_library_kernel_that_was_skipped_stays(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    race(ticket, {"a": 0.001}, {"library": "skipped"})
    assert bench.selection.decide(ticket).winner == "library"


def test_without_a_library_kernel_the_fastest_runs(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan([offer("a"), offer("b")])
    race(ticket, {"a": 2.0, "b": 1.0})
    assert bench.selection.decide(ticket).winner == "b"


def test_when_everything_failed_nothing_runs(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    race(ticket, {}, {"library": "raised", "a": "wrong"})
    verdict = bench.selection.decide(ticket)
    assert (verdict.winner, verdict.reason) == (None, "nothing was measured")
    assert bench.record(ticket).decision is None


def test_a_single_candidate_is_measured_and_wins(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan([offer("a")])
    race(ticket, {"a": 1.0})
    assert bench.selection.decide(ticket).winner == "a"


def test_a_limit_on_candidates_keeps_the_best_ranked_and_every_library_kernel(
    tmp_path: Path,
) -> None:
    bench = rig(tmp_path, max_candidates=2)
    ticket = bench.plan([*map(offer, "abc"), offer("x", library=True), offer("y", library=True)])
    assert sorted(entries(ticket)) == ["a", "b", "x", "y"]
    assert entries(ticket)[:2] == ["x", "y"]


def test_after_the_deadline_no_candidate_is_prepared(tmp_path: Path) -> None:
    def make(_own: CandidateId) -> TaskCandidate:
        raise AssertionError("preparing takes time")

    bench = rig(tmp_path)
    costly = [replace(o, prepare=make) for o in offers("a")]
    ticket = bench.plan(costly, budget(0.0))
    assert ticket.task is None
    assert {m.reason for m in ticket.measured.values()} == {"the tuning budget ended"}
    assert bench.selection.decide(ticket).winner == "library"


def test_numbers_are_checked_unless_that_is_switched_off(tmp_path: Path) -> None:
    for switch, expected in ((True, CHECK), (False, None)):
        ticket = rig(tmp_path, verify_numerics=switch).plan(offers("a"))
        assert ticket.task is not None
        assert ticket.task.check == expected


@pytest.mark.parametrize(("device", "exclusive"), [("cpu", True), ("cuda", False)])
def test_compiling_disturbs_measuring_on_a_cpu_only(
    tmp_path: Path, device: str, exclusive: bool
) -> None:
    ticket = rig(tmp_path).plan(offers("a"), product=problem(device=device))
    assert ticket.task is not None
    assert ticket.task.exclusive is exclusive


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_samples_that_vary_need_a_larger_gain(device: str, tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"), product=problem(device=device))
    assert ticket.task is not None
    ticket.task.refresh(ticket.task)
    wide = {"library": (0.8, 1.0, 1.2, 1.4, 1.6), "a": (0.7, 0.9, 1.1, 1.3, 1.5)}
    for each in ticket.task.entries:
        each.outcome = Outcome(each.candidate_id, "ok", error=1e-6)
        each.samples_ms = wide[each.candidate_id]
    ticket.task.finish(ticket.task)
    ticket.task.done.set()
    assert bench.selection.decide(ticket).winner == "library"


def test_numbers_that_were_not_compared_win_nothing(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    assert ticket.task is not None
    for entry in ticket.task.entries:
        entry.outcome, entry.samples_ms = Outcome(entry.candidate_id, "ok"), (1.0,) * 5
    ticket.task.entry("a").samples_ms = (0.1,) * 5
    ticket.task.finish(ticket.task)
    assert bench.selection.decide(ticket).winner == "library"
    unseen = bench.record(ticket).candidates["a"]
    assert unseen.status == "skipped"
    assert "not compared" in unseen.reason
    assert rig(tmp_path).plan(offers("a")).task is not None


def test_without_library_kernels_numbers_are_not_compared_and_the_record_says_so(
    tmp_path: Path,
) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan([offer("a"), offer("b")])
    assert ticket.task is not None
    assert ticket.task.check is None
    race(ticket, {"a": 2.0, "b": 1.0})
    assert bench.record(ticket).candidates["b"].provenance["numbers"] == "no reference"
    assert rig(tmp_path).plan([offer("a"), offer("b")]).task is None
    again = rig(tmp_path).plan(offers("a", "b"))
    assert again.task is not None
    assert {e.candidate_id for e in again.task.entries} == {"library", "a", "b"}


@pytest.mark.parametrize(
    ("backends", "times_ms", "winner"),
    [
        ("CPP", {"library": 1.0, "a": 3.0, "b": 2.0}, "b"),
        ("CPP,TRITON", {"library": 1.0, "a": 2.0}, "a"),
        ("CPP", {"library": 1.0}, "library"),  # there is nothing else
        ("ATEN,CPP", {"library": 1.0, "a": 3.0, "b": 2.0}, "library"),
        ("", {"library": 1.0, "a": 3.0, "b": 2.0}, "library"),
    ],
)
def test_without_the_library_s_backend_its_kernel_runs_only_where_nothing_else_does(
    tmp_path: Path, backends: str, times_ms: dict[str, float], winner: str
) -> None:
    bench = rig(tmp_path, gemm_backends=backends)
    ticket = bench.plan(offers("a", "b"))
    failed: dict[str, Status] = {name: "raised" for name in "ab" if name not in times_ms}
    assert ticket.task is not None
    assert ticket.task.library_may_win is ("ATEN" in backends or not backends)
    race(ticket, times_ms, failed)
    assert bench.selection.decide(ticket).winner == winner


def test_the_two_kernels_that_a_fused_one_replaces_count_whatever_the_backends(
    tmp_path: Path,
) -> None:
    bench = rig(tmp_path, gemm_backends="CPP")
    fused = replace(problem(), epilogue="relu")
    ticket = bench.plan(offers("a"), product=fused)
    race(ticket, {"library": 1.0, "a": 2.0})
    assert bench.selection.decide(ticket).winner == "library"
