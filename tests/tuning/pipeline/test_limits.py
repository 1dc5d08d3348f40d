"""Limits of a wait, the deadline and the budget of a compile."""

from __future__ import annotations

import math
import threading
import time

from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.jobs import OUT_OF_TIME, Outcome
from tests.support.fakes.pipeline import Rig
from tests.support.fakes.tasks import budget, cpp_build, entry, problem, task, triton_job
from tests.support.fakes.waiting import LIMIT_S


def test_a_wait_ends_at_its_limit_and_says_so(rig: Rig) -> None:
    pending = task([entry("library", library=True), entry("a", build=triton_job("a"))])
    started = time.monotonic()
    assert not rig.run(pending, limit_s=0.2)
    assert time.monotonic() - started < 2.0
    assert "limit" in pending.error
    assert rig.locks.held == []  # others may measure this problem now


def test_a_limit_is_for_the_silence_and_not_for_the_whole(rig: Rig) -> None:
    rig.bench.during = lambda _name: time.sleep(0.06)
    rig.bench.screen_ms = {"library": 0.1}  # no finals
    assert rig.run(task([entry("library", library=True), *map(entry, "abcdefg")]), limit_s=0.3)
    assert len(rig.bench.screened) == 8


def test_the_deadline_ends_a_task_whose_candidates_still_compile(rig: Rig) -> None:
    finished: list[Task] = []
    rig.build.compiling = True
    pending = task(
        [entry("library", library=True), entry("a", build=cpp_build("a"))],
        exclusive=True,
        budget=budget(0.15),
        finish=finished.append,
    )
    started = time.monotonic()
    assert rig.run(pending)
    assert time.monotonic() - started < 2.0
    assert finished == [pending]
    outcome = pending.entry("a").outcome
    assert outcome is not None
    assert (outcome.status, outcome.reason) == ("skipped", "the tuning budget ended")


def test_after_the_deadline_nothing_more_is_measured(rig: Rig) -> None:
    rig.bench.during = lambda _name: time.sleep(0.25)
    pending = task([entry("library", library=True), *map(entry, "abc")], budget=budget(0.2))
    assert rig.run(pending)
    assert rig.bench.screened == ["library"]
    assert rig.bench.finals == []
    assert [e.outcome.status for e in pending.entries if e.outcome] == ["ok", *["skipped"] * 3]


def test_a_budget_that_ends_before_the_finals_leaves_the_race_undecided(rig: Rig) -> None:
    limit = budget(LIMIT_S)
    pending = task([entry("library", library=True), *map(entry, ("a", "slow", "b"))], budget=limit)
    rig.bench.screen_ms = {"slow": 9.0}
    rig.bench.during = lambda name: setattr(limit, "ends", 0.0 if name == "b" else limit.ends)
    assert rig.run(pending)
    assert rig.bench.finals == []
    assert pending.undecided == {"library", "a", "b"}


def test_with_a_budget_all_are_screened_before_the_finals_the_heaviest_first(rig: Rig) -> None:
    limit = budget(LIMIT_S)
    tasks: list[Task] = []
    rig.locks.elsewhere.update("012")
    for i, rows in enumerate((64, 512, 128)):
        each = task([entry(f"lib{i}", library=True), entry(f"a{i}")], budget=limit, digest=str(i))
        each.problem = problem(rows=rows)
        rig.pipeline.submit(each)
        tasks.append(each)
    order: list[str] = []
    rig.bench.during = order.append
    rig.locks.elsewhere.clear()
    assert all(rig.pipeline.wait(each, LIMIT_S) for each in tasks)
    screened = [name for name in order if "+" not in name]
    assert screened == ["lib1", "a1", "lib2", "a2", "lib0", "a0"]
    assert order[:6] == screened
    assert "a1" in order[6]


def test_a_library_kernel_is_not_measured_where_nothing_else_was_compiled_in_time(
    rig: Rig,
) -> None:
    pending = task(
        [entry("library", library=True), entry("a", build=cpp_build("a"))], budget=budget(LIMIT_S)
    )
    pending.entry("a").outcome = Outcome("a", "skipped", OUT_OF_TIME)
    assert rig.run(pending)
    assert rig.bench.screened == []
    assert [e.outcome.reason for e in pending.entries if e.outcome] == [OUT_OF_TIME] * 2


def test_a_budget_spent_elsewhere_does_not_wait_for_a_process_that_measures(rig: Rig) -> None:
    rig.locks.elsewhere.add("digest")
    pending = task([entry("library", library=True)], budget=budget(0.1))
    started = time.monotonic()
    assert rig.run(pending)
    assert time.monotonic() - started < 2.0
    assert rig.bench.screened == []


def test_a_budget_runs_once_it_is_waited_for(rig: Rig) -> None:
    limit = Budget(LIMIT_S)
    pending = task([entry("library", library=True)], budget=limit, exclusive=True)
    rig.pipeline.submit(pending)
    assert limit.ends == math.inf
    assert rig.pipeline.wait(pending, LIMIT_S)
    assert limit.ends < math.inf


def test_a_process_that_measures_the_problem_is_progress(rig: Rig) -> None:
    rig.locks.elsewhere.add("digest")
    pending, tried = task([entry("library", library=True)]), rig.locks.tried
    threading.Timer(0.3, rig.locks.elsewhere.clear).start()
    assert rig.run(pending, limit_s=0.15)
    assert rig.locks.tried > tried + 1
    assert rig.bench.screened == ["library"]
