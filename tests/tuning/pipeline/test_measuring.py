"""What is measured, in which order, and who is in the finals."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.race import MAX_LEGS, ROUNDS_PER_LEG
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.jobs import MAY_HAVE_CHANGED, Status
from tests.support.fakes.pipeline import Rig
from tests.support.fakes.tasks import entry, task, triton_job
from tests.support.fakes.waiting import LIMIT_S, until


def test_library_kernels_are_measured_first_and_are_the_reference(rig: Rig) -> None:
    assert rig.run(task([entry("library", library=True), entry("a"), entry("b")]))
    assert rig.bench.screened == ["library", "a", "b"]
    assert rig.bench.references == ["library", "library", "library"]


def test_a_task_that_is_decided_elsewhere_before_it_comes_is_not_kept(rig: Rig) -> None:
    decided = task([entry("library", library=True), entry("a")], digest="decided")
    rig.pipeline.end(decided, "")
    rig.pipeline.submit(decided)
    assert rig.run(task([entry("another", library=True)]))
    assert rig.bench.screened == ["another"]
    assert rig.bench.released == 1  # nothing is left to measure


def test_who_cannot_beat_the_library_kernel_is_not_measured(rig: Rig) -> None:
    rig.bench.screen_ms = {"library": 1.0, "ahead": 0.9, "behind": 0.1}
    ahead, behind = entry("ahead"), entry("behind")
    ahead.least_ms, behind.least_ms = 0.8, 1.2
    pending = task([behind, ahead, entry("library", library=True)])
    assert rig.run(pending)
    assert rig.bench.screened == ["library", "ahead"]
    assert behind.outcome is not None
    assert behind.outcome.status == "pruned"
    assert "at least 1200.0 us" in behind.outcome.reason
    assert rig.counters.snapshot().benchmarked == 2
    assert len(rig.measured) == 3


def test_who_has_a_least_time_is_measured_where_no_library_kernel_ran(rig: Rig) -> None:
    rig.bench.status = {"library": "raised"}
    sure = entry("sure")
    sure.least_ms = 1e6
    assert rig.run(task([entry("library", library=True), sure]))
    assert sure.alive


def test_the_finals_interleave_the_leaders_with_the_library_kernel(rig: Rig) -> None:
    rig.bench.screen_ms = {"library": 3.0, "fast": 1.0, "close": 1.05, "slow": 9.0}
    pending = task([entry("library", library=True), *map(entry, ("fast", "close", "slow"))])
    assert rig.run(pending)
    assert set(rig.bench.finals[0]) == {"library", "fast", "close"}
    assert pending.entry("slow").rounds == 0


def test_who_leads_by_its_launch_is_in_the_finals_too(rig: Rig) -> None:
    """Without CUDA graphs ``light`` is the best: 9 us against 30; with them ``heavy``."""
    rig.bench.screen_ms = {"library": 0.010, "heavy": 0.005, "light": 0.009}
    rig.bench.host_ms = {"library": 0.012, "heavy": 0.030, "light": 0.001}
    pending = task([entry("library", library=True), *map(entry, ("heavy", "light"))])
    assert rig.run(pending)
    assert set(rig.bench.finals[0]) == {"library", "heavy", "light"}


@pytest.mark.parametrize(("launch_ms", "measured"), [(0.014, True), (0.002, False)])
def test_a_fusion_is_measured_where_it_saves_a_launch(
    rig: Rig, launch_ms: float, *, measured: bool
) -> None:
    rig.bench.screen_ms = {"library": 0.0060}
    rig.bench.host_ms = {"library": launch_ms}
    fused = entry("fused")
    fused.least_ms = 0.0062
    assert rig.run(task([entry("library", library=True), fused]))
    assert ("fused" in rig.bench.screened) is measured


def test_finalists_keep_the_samples_of_all_legs_and_others_those_of_the_screening(
    rig: Rig,
) -> None:
    rig.bench.screen_ms = {"library": 1.0, "a": 1.0, "slow": 9.0}
    rig.bench.final_ms = {"library": 2.0, "a": 2.0}
    pending = task([entry("library", library=True), entry("a"), entry("slow")])
    assert rig.run(pending)
    assert pending.legs == len(rig.bench.finals) == MAX_LEGS
    for name in ("library", "a"):
        samples = pending.entry(name).samples_ms
        assert len(samples) == pending.entry(name).rounds == MAX_LEGS * ROUNDS_PER_LEG
        assert min(samples) > 1.9  # none of the screening's are left
    assert len(pending.entry("slow").samples_ms) == 5


def test_the_finals_end_when_no_one_can_catch_up(rig: Rig) -> None:
    rig.bench.screen_ms = {"library": 1.1, "a": 1.0}
    rig.bench.final_ms = {"library": 2.0, "a": 1.0}
    assert rig.run(task([entry("library", library=True), entry("a")]))
    assert len(rig.bench.finals) == 1


@pytest.mark.parametrize(("calm_turns", "legs"), [(6, 1), (3, 1), (2, 2), (1, 3), (0, MAX_LEGS)])
def test_the_finals_go_on_until_enough_turns_are_calm(rig: Rig, calm_turns: int, legs: int) -> None:
    rig.bench.calm_turns = calm_turns
    rig.bench.screen_ms = {"library": 1.1, "a": 1.0}
    rig.bench.final_ms = {"library": 2.0, "a": 1.5}
    pending = task([entry("library", library=True), entry("a")])
    assert rig.run(pending)
    assert pending.legs == legs
    for candidate in pending.entries:
        assert len(candidate.samples_ms) == legs * (calm_turns or ROUNDS_PER_LEG)
        assert min(candidate.samples_ms) > 1.4  # none of the screening's are left
        assert candidate.disturbed is (calm_turns == 0)


def test_one_candidate_alone_needs_no_finals(rig: Rig) -> None:
    pending = task([entry("only")])
    assert rig.run(pending)
    assert pending.entries[0].alive
    assert rig.bench.screened == ["only"]
    assert rig.bench.references == [None]
    assert rig.bench.finals == []


def test_a_library_kernel_ahead_of_all_others_needs_no_finals(rig: Rig) -> None:
    rig.bench.screen_ms = {"library": 1.0, "a": 5.0}
    assert rig.run(task([entry("library", library=True), entry("a")]))
    assert rig.bench.finals == []


def test_the_next_library_kernel_is_the_reference_when_the_first_fails(rig: Rig) -> None:
    rig.bench.status = {"first": "raised"}
    pending = task([entry("first", library=True), entry("second", library=True), entry("a")])
    assert rig.run(pending)
    assert rig.bench.references == ["first", "second", "second"]


@pytest.mark.parametrize("status", ["skipped", "crashed", "hung", "out_of_memory"])
def test_a_library_kernel_whose_worker_died_runs_once_more(rig: Rig, status: Status) -> None:
    rig.bench.status = {"library": status}

    def recover(name: str) -> None:
        if rig.bench.screened.count(name) == 2:
            rig.bench.status = {}

    rig.bench.during = recover
    pending = task([entry("library", library=True), entry("a")])
    assert rig.run(pending)
    assert rig.bench.screened == ["library", "library", "a"]
    assert rig.bench.references[-1] == "library"
    assert pending.entry("library").alive


def test_a_library_kernel_that_never_runs_is_no_reference(rig: Rig) -> None:
    rig.bench.status = {"library": "skipped"}  # its operands could not be built
    pending = task([entry("library", library=True), entry("a")])
    assert rig.run(pending)
    assert rig.bench.references == ["library", "library", None]


def test_what_cannot_travel_is_measured_at_home(rig: Rig) -> None:
    pending = task([entry("library", library=True, in_process=lambda: None), entry("a")])
    assert rig.run(pending)
    assert rig.in_process.measured == ["library"]
    assert rig.bench.screened == ["a"]
    assert pending.entry("library").samples_ms


def test_a_library_kernel_in_the_worker_is_preferred_as_the_reference(rig: Rig) -> None:
    pending = task(
        [
            entry("home", library=True, in_process=lambda: None),
            entry("travels", library=True),
            entry("a"),
        ]
    )
    assert rig.run(pending)
    assert rig.bench.references == ["travels", "travels"]


def test_a_finalist_that_fails_is_out_with_its_reason(rig: Rig) -> None:
    rig.bench.final_status = {"a": "crashed"}
    pending = task([entry("library", library=True), entry("a"), entry("b")])
    assert rig.run(pending)
    failed = pending.entry("a").outcome
    assert failed is not None
    assert failed.status == "crashed"
    assert all("a" not in names for names in rig.bench.finals[1:])
    assert pending.entry("b").alive


def test_a_finalist_skipped_for_another_ones_fault_keeps_its_screening(rig: Rig) -> None:
    rig.bench.final_status = {"library": "skipped"}
    pending = task([entry("library", library=True), entry("a")])
    assert rig.run(pending)
    assert pending.entry("library").alive
    assert len(pending.entry("library").samples_ms) == 5
    assert len(rig.bench.finals) <= MAX_LEGS


def test_finalists_that_may_have_changed_an_operand_are_out(rig: Rig) -> None:
    rig.bench.final_status = {"a": "skipped", "b": "skipped"}
    rig.bench.final_reason = dict.fromkeys("ab", MAY_HAVE_CHANGED)
    pending = task([entry("library", library=True), entry("a"), entry("b")])
    assert rig.run(pending)
    assert [e.candidate_id for e in pending.entries if e.alive] == ["library"]


def test_the_bar_takes_one_step_for_each_candidate_however_it_ends(rig: Rig) -> None:
    def refresh(pending: Task) -> int:
        pending.entries.pop()
        return 1

    queued = task(
        [*map(entry, "ab"), entry("c", build=triton_job("c")), entry("d")], refresh=refresh
    )
    rig.pipeline.submit(queued)
    rig.build.finish("c", "compile_failed")
    assert rig.pipeline.wait(queued, LIMIT_S)
    until(lambda: len(rig.measured) == 4)
    assert rig.measured.count("a") == rig.measured.count("b") == 1


def test_each_measured_candidate_is_counted_once(rig: Rig) -> None:
    assert rig.run(task([entry("library", library=True), entry("a")]))
    stats = rig.counters.snapshot()
    assert stats.benchmarked == 2
    assert stats.benchmark_s >= 0.5
