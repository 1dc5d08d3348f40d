"""The overlap of compiling and measuring, its limits and its ways to end."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.errors import WorkerError
from inductor_plugin.tuning import pipeline as pipeline_module
from inductor_plugin.tuning.build.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.race import MAX_LEGS, ROUNDS_PER_LEG
from inductor_plugin.tuning.report.trace import Trace
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.jobs import MAY_HAVE_CHANGED, OUT_OF_TIME, Outcome, Status
from tests.support.fakes.tasks import budget, cpp_build, entry, problem, task, triton_job
from tests.support.fakes.waiting import LIMIT_S, FakeLocks, until
from tests.support.fakes.workers import FakeBench, FakeBuild, FakeMeasurement, FakePool


@dataclass
class Rig:
    """A pipeline on fakes, and the fakes."""

    pipeline: Pipeline
    build: FakeBuild
    bench: FakeBench
    in_process: FakeMeasurement
    locks: FakeLocks
    measured: list[str]
    counters: Counters
    trace: Trace

    def run(self, pending: Task, limit_s: float = LIMIT_S) -> bool:
        self.pipeline.submit(pending)
        return self.pipeline.wait(pending, limit_s)


@dataclass
class Rigs:
    """Makes rigs, and closes their pipelines at the end."""

    pipelines: list[Pipeline] = field(default_factory=list[Pipeline])

    def __call__(self, build: Builder | None = None, device: str = "cuda:0") -> Rig:
        fake, bench, in_process, locks = FakeBuild(), FakeBench(), FakeMeasurement(), FakeLocks()
        measured, counters, trace = list[str](), Counters(), Trace("trace.json")
        builder: Any = build or fake
        worker: Any = bench
        held: Any = locks
        pipeline = Pipeline(
            device, builder, worker, in_process, counters, trace, 5.0, held, measured.append
        )
        self.pipelines.append(pipeline)
        return Rig(pipeline, fake, bench, in_process, locks, measured, counters, trace)


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    opened = Rigs()
    yield opened
    for pipeline in opened.pipelines:
        pipeline.close()


@pytest.fixture
def rig(rigs: Rigs) -> Rig:
    return rigs()


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


def test_the_thread_does_not_keep_the_last_task(rig: Rig) -> None:
    last = task([entry("library", library=True)])
    assert rig.run(last)
    kept = weakref.ref(last)
    del last
    until(lambda: gc.collect() >= 0 and kept() is None)


def test_a_task_without_candidates_ends(rig: Rig) -> None:
    assert rig.run(task([]))


def test_a_task_ends_when_every_candidate_failed(rig: Rig) -> None:
    rig.bench.status = {"library": "raised", "a": "wrong", "b": "hung"}
    finished: list[Task] = []
    pending = task([entry("library", library=True), entry("a"), entry("b")], finish=finished.append)
    assert rig.run(pending)
    assert finished == [pending]
    assert [e.outcome.status for e in pending.entries if e.outcome] == ["raised", "wrong", "hung"]
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


def test_measuring_starts_with_the_first_ready_candidate_while_others_compile(
    rigs: Rigs, tmp_path: Path
) -> None:
    pool: Any = FakePool(compile_s=0.15)
    trace = Trace("trace.json")
    builder = Builder(open_store(tmp_path), pool, Counters(), trace, LIMIT_S)
    rig = rigs(builder)
    rig.bench.during = lambda _name: time.sleep(0.03)
    names = [f"k{i}" for i in range(3)]
    pending = task(
        [entry("library", library=True), *(entry(n, build=triton_job(n)) for n in names)]
    )
    assert rig.run(pending)
    measured = _spans(rig.trace, "measure")
    compiles = _spans(trace, "compile")
    assert len(compiles) == 3
    assert any(a < d and c < b for a, b in measured for c, d in compiles)


def test_on_a_cpu_nothing_is_measured_while_anything_compiles(rigs: Rigs, tmp_path: Path) -> None:
    pool: Any = FakePool(workers=2, compile_s=0.02)
    trace = Trace("trace.json")
    builder = Builder(open_store(tmp_path), pool, Counters(), trace, LIMIT_S)
    rig = rigs(builder, device="cpu")
    compiling_meanwhile: list[int] = []

    def look(_name: str) -> None:
        for _ in range(5):
            compiling_meanwhile.append(pool.running)
            time.sleep(0.002)

    rig.bench.during = look

    def compile_one(index: int) -> bool:
        """Do what one of several threads that compile models at once does."""
        entries = [entry(f"lib{index}", library=True)]
        entries += [entry(n, build=cpp_build(n)) for n in (f"a{index}", f"b{index}", f"c{index}")]
        return rig.run(task(entries, exclusive=True, digest=f"problem {index}"))

    answers: list[bool] = []

    def run(index: int) -> None:
        answers.append(compile_one(index))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join(LIMIT_S)
    assert answers == [True] * 4
    assert len(rig.bench.screened) == 16
    assert max(compiling_meanwhile) == 0
    spans = _spans(trace, "compile")
    assert spans
    assert not any(a < d and c < b for a, b in _spans(rig.trace, "measure") for c, d in spans)


def test_on_a_cpu_a_compile_asked_for_while_measuring_starts_afterwards(
    rigs: Rigs, tmp_path: Path
) -> None:
    pool: Any = FakePool()
    builder = Builder(open_store(tmp_path), pool, Counters(), Trace(), LIMIT_S)
    rig = rigs(builder, device="cpu")
    other = task([entry("k", build=cpp_build("k"))], digest="of another thread")
    jobs: list[int] = []

    def submit_more(_name: str) -> None:
        builder.add(other, other.entries[0], lambda: None)
        builder.flush()
        time.sleep(0.05)
        jobs.append(len(pool.jobs))

    rig.bench.during = submit_more
    assert rig.run(task([entry("x")], exclusive=True))
    assert jobs == [0]
    until(lambda: other.entries[0].ready)


def test_on_a_cpu_nothing_is_measured_before_anyone_waits(rig: Rig) -> None:
    pending = task([entry("library", library=True)], exclusive=True)
    rig.pipeline.submit(pending)
    time.sleep(0.12)
    assert rig.bench.screened == []
    assert rig.pipeline.wait(pending, LIMIT_S)
    assert rig.bench.screened == ["library"]


def test_on_a_cpu_the_next_problem_waits_until_it_is_waited_for(rig: Rig) -> None:
    first = task([entry("x")], exclusive=True, digest="1")
    second = task([entry("y")], exclusive=True, digest="2")
    rig.pipeline.submit(first)
    rig.pipeline.submit(second)
    assert rig.pipeline.wait(first, LIMIT_S)
    time.sleep(0.12)
    assert rig.bench.screened == ["x"]
    assert rig.pipeline.wait(second, LIMIT_S)


def test_waiting_starts_what_was_held_back(rig: Rig) -> None:
    assert rig.run(task([entry("library", library=True)]))
    assert rig.build.flushed == 1


def test_a_candidate_that_does_not_compile_costs_itself_alone(rig: Rig) -> None:
    pending = task([entry("library", library=True), *(entry(n, build=triton_job(n)) for n in "ab")])
    rig.pipeline.submit(pending)
    rig.build.finish("a", "compile_failed")
    rig.build.finish("b")
    assert rig.pipeline.wait(pending, LIMIT_S)
    assert rig.bench.screened == ["library", "b"]
    assert not pending.entry("a").alive


def test_a_wait_ends_at_its_limit_and_says_so(rig: Rig) -> None:
    pending = task([entry("library", library=True), entry("a", build=triton_job("a"))])
    started = time.monotonic()
    assert not rig.run(pending, limit_s=0.2)
    assert time.monotonic() - started < 2.0
    assert "limit" in pending.error
    assert rig.locks.held == []  # others may measure this problem now


def test_a_limit_is_for_the_silence_and_not_for_the_whole(rig: Rig) -> None:
    rig.bench.during = lambda _name: time.sleep(0.1)
    rig.bench.screen_ms = {"library": 0.1}  # no finals
    assert rig.run(task([entry("library", library=True), *map(entry, "abcdefg")]), limit_s=0.3)
    assert len(rig.bench.screened) == 8


def test_an_interrupted_wait_gives_the_problem_s_lock_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = task(
        [entry("library", library=True), entry("a", build=cpp_build("a"))], exclusive=True
    )
    rig.pipeline.submit(pending)
    real = pending.done.wait

    def interrupted(timeout: float | None = None) -> bool:
        until(lambda: rig.bench.screened == ["library"])
        raise KeyboardInterrupt

    monkeypatch.setattr(pending.done, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.pipeline.wait(pending, LIMIT_S)
    assert real(0)
    assert pending.error == "it was interrupted"
    assert rig.locks.held == []
    assert rig.run(task([entry("x")], exclusive=True))


def test_a_lock_is_given_back_where_nobody_waits_any_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "_GIVE_BACK_S", 0.05)
    held = task([entry("library", library=True), entry("a", build=cpp_build("a"))], exclusive=True)
    other = task([entry("x", build=cpp_build("x"))], exclusive=True, digest="other")
    rig.pipeline.submit(held)
    rig.pipeline.submit(other)
    waiting = threading.Thread(target=rig.pipeline.wait, args=(other, LIMIT_S))
    waiting.start()
    until(lambda: rig.locks.held == ["digest"])
    rig.build.finish("x")
    waiting.join(LIMIT_S)
    until(lambda: rig.locks.held == [])
    rig.build.finish("a")  # and it goes on when somebody waits for it
    assert rig.pipeline.wait(held, LIMIT_S)
    assert rig.bench.screened == ["library", "x", "a"]


def test_the_holder_of_a_lock_says_that_it_makes_progress(rig: Rig) -> None:
    assert rig.run(task([entry("library", library=True), *map(entry, "ab")]))
    assert rig.locks.touched.count("digest") >= 3


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


def test_a_problem_that_another_process_measures_is_waited_for_and_taken_over(rig: Rig) -> None:
    rig.locks.elsewhere.add("digest")

    def refresh(pending: Task) -> int:
        pending.entries.clear()  # all of them are known by now
        return 2

    queued = task([entry("library", library=True), entry("a")], refresh=refresh)
    rig.pipeline.submit(queued)
    until(lambda: rig.locks.tried > 1)
    assert not queued.done.is_set()
    rig.locks.elsewhere.clear()
    assert rig.pipeline.wait(queued, LIMIT_S)
    assert rig.bench.screened == []
    assert rig.locks.held == []


def test_what_a_remote_answers_late_is_used_while_candidates_compile(
    rigs: Rigs, tmp_path: Path
) -> None:
    pool: Any = FakePool(compile_s=60.0)
    rig = rigs(Builder(open_store(tmp_path), pool, Counters(), Trace("trace.json"), LIMIT_S))

    def refresh(pending: Task) -> int:
        if rig.bench.screened:  # the answer has come
            pending.entries[:] = pending.entries[:1]
        return 1

    queued = task(
        [entry("library", library=True), entry("a", build=triton_job("a"))], refresh=refresh
    )
    queued.awaits_news = True
    rig.pipeline.submit(queued)
    until(lambda: rig.bench.screened == ["library"])
    assert not queued.done.is_set()
    queued.news.set()
    assert rig.pipeline.wait(queued, LIMIT_S)
    assert rig.bench.screened == ["library"]
    assert not queued.error


def test_other_problems_go_on_while_one_is_measured_elsewhere(rig: Rig) -> None:
    rig.locks.elsewhere.add("busy")
    blocked = task([entry("x")], digest="busy")
    rig.pipeline.submit(blocked)
    assert rig.run(task([entry("y")], digest="free"))
    assert not blocked.done.is_set()


def test_of_two_tasks_for_one_problem_the_second_waits_for_the_first(rig: Rig) -> None:
    first = task([entry("library", library=True), entry("a", build=triton_job("a"))])

    def refresh(pending: Task) -> int:
        assert first.done.is_set()
        pending.entries.clear()
        return 1

    second = task([entry("library", library=True)], refresh=refresh)
    rig.pipeline.submit(first)
    until(lambda: rig.bench.screened == ["library"])
    rig.pipeline.submit(second)
    time.sleep(0.1)
    assert not second.done.is_set()
    rig.build.finish("a")
    assert rig.pipeline.wait(first, LIMIT_S)
    assert rig.pipeline.wait(second, LIMIT_S)
    assert rig.bench.screened == ["library", "a"]
    assert rig.locks.held == []


def test_a_lost_worker_ends_every_task_with_one_warning(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.bench.error = WorkerError("no worker could be started")
    many = [task([entry("library", library=True)], digest=str(i)) for i in range(5)]
    for queued in many:
        rig.pipeline.submit(queued)
    assert not any(rig.pipeline.wait(waiting, LIMIT_S) for waiting in many)
    assert all("no worker could be started" in waiting.error for waiting in many)
    late = task([entry("library", library=True)], digest="late")
    assert not rig.run(late)
    assert late.error
    assert [r.levelno for r in caplog.records if "is gone" in r.message] == [logging.WARNING]
    assert rig.locks.held == []
    assert len(rig.bench.screened) == 1
    rig.bench.error = None
    rig.pipeline.renew()  # the next compile
    assert rig.run(task([entry("library", library=True)], digest="later"))


def test_where_nothing_can_be_measured_nothing_more_is_compiled(
    rigs: Rigs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A card that is full or another process's: the kernels of a graph take minutes to compile."""
    pool: Any = FakePool()
    rig = rigs(Builder(open_store(tmp_path), pool, Counters(), Trace(), LIMIT_S))
    rig.bench.without_device = True
    pool.gate.clear()  # what the first problem needs is being compiled when its library kernel fails

    def problem(digest: str) -> Task:
        kernels = [entry(f"{digest} {i}", build=triton_job(f"{digest} {i}")) for i in range(3)]
        return task([entry("library", library=True), *kernels], digest=digest)

    first, second = problem("first"), problem("second")
    rig.pipeline.submit(first)
    assert not rig.pipeline.wait(first, LIMIT_S)
    assert "no memory" in first.error
    assert not rig.run(second)
    assert rig.bench.screened == ["library"] * 2  # it is tried twice
    assert all(limit() < 0 for limit in pool.untils[:3])  # what is queued is not begun any more
    assert len(pool.jobs) == 3
    assert len([r for r in caplog.records if "nothing can be measured" in r.message]) == 1
    pool.gate.set()
    rig.bench.without_device = False
    rig.pipeline.renew()  # the next compile
    third = problem("third")
    assert rig.run(third)
    assert len([e for e in third.entries if e.alive]) == 4


def test_memory_is_given_back_before_anybody_goes_on(rigs: Rigs) -> None:
    """The user's first step may need all of the GPU. While more is to be measured, the operands stay."""
    rig, given_back = rigs(), list[int]()
    many = [task([entry("library", library=True)], digest=str(i)) for i in range(3)]

    def first_alone(_name: str) -> None:
        if len(rig.bench.screened) == 1:
            for queued in many[1:]:
                rig.pipeline.submit(queued)

    rig.bench.during = first_alone
    release = rig.bench.release

    def released() -> None:
        given_back.append(sum(queued.done.is_set() for queued in many))
        release()

    rig.bench.release = released  # type: ignore[method-assign]
    rig.pipeline.submit(many[0])
    assert all(rig.pipeline.wait(queued, LIMIT_S) for queued in many)
    assert given_back == [2]
    late = task([entry("x")], digest="late")
    rig.pipeline.submit(late)
    until(late.done.is_set)
    assert rig.bench.released == 2


def test_on_a_cpu_there_is_no_memory_to_give_back(rigs: Rigs) -> None:
    rig = rigs(device="cpu")
    assert rig.run(task([entry("x")], exclusive=True))
    assert rig.bench.released == 0


def test_memory_is_given_back_after_a_failure_too(rig: Rig) -> None:
    def finish(_task: Task) -> None:
        raise OSError("the disk is gone")

    assert not rig.run(task([entry("x")], finish=finish))
    until(lambda: rig.bench.released == 1)


def test_a_race_that_fails_ends_its_own_task_alone(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def finish(_task: Task) -> None:
        raise OSError("the disk is gone")

    assert not rig.run(task([entry("x")], digest="1", finish=finish))
    assert rig.run(task([entry("y")], digest="2"))
    assert "the disk is gone" in caplog.text
    assert rig.locks.held == []


@pytest.mark.parametrize("broken", ["lock", "refresh"])
def test_a_cache_that_fails_ends_the_task_and_not_the_thread(rigs: Rigs, broken: str) -> None:
    rig = rigs()

    def fail(_task: Task) -> int:
        raise OSError("the disk is gone")

    if broken == "lock":
        rig.pipeline._locks = fail  # pyright: ignore
    pending = task([entry("x")], digest="1", refresh=fail if broken == "refresh" else None)
    assert not rig.run(pending)
    assert "the disk is gone" in pending.error
    rig.pipeline._locks = rig.locks  # pyright: ignore
    assert rig.run(task([entry("y")], digest="2"))
    assert rig.locks.held == []


def test_closing_ends_a_wait_at_once_and_quietly(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    pending = task([entry("library", library=True), entry("a", build=triton_job("a"))])
    rig.pipeline.submit(pending)
    until(lambda: bool(rig.locks.held))
    threading.Timer(0.1, rig.pipeline.close).start()
    started = time.monotonic()
    assert not rig.pipeline.wait(pending, LIMIT_S)
    assert time.monotonic() - started < 2.0
    assert "closed" in pending.error
    assert rig.locks.held == []
    assert caplog.records == []


def test_a_worker_that_ends_because_of_closing_is_not_called_lost(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def close(_name: str) -> None:
        rig.pipeline.close()
        raise WorkerError("it was closed")

    rig.bench.during = close
    assert not rig.run(task([entry("x")]))
    time.sleep(0.05)
    assert caplog.records == []


def test_a_closed_pipeline_refuses_at_once(rig: Rig) -> None:
    rig.pipeline.close()
    pending = task([entry("x")])
    assert not rig.run(pending)
    assert "closed" in pending.error


def test_a_task_that_cannot_be_queued_is_not_waited_for_by_the_thread(rig: Rig) -> None:
    rig.build.error = OSError("no more threads")
    with pytest.raises(OSError, match="no more threads"):
        rig.pipeline.submit(task([entry("a", build=triton_job("a"))], digest="1"))
    assert rig.run(task([entry("x")], digest="2"))
    assert rig.locks.held == []


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


def _spans(trace: Trace, kind: str) -> list[tuple[float, float]]:
    events = trace._events  # pyright: ignore
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == kind]
