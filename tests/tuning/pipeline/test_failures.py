"""What fails costs its own task, and every wait ends when the pipeline is closed."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.errors import WorkerError
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import Task
from tests.support.fakes.pipeline import Rig, Rigs
from tests.support.fakes.tasks import entry, task, triton_job
from tests.support.fakes.waiting import LIMIT_S, until
from tests.support.fakes.workers import FakePool


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


def test_a_candidate_that_does_not_compile_costs_itself_alone(rig: Rig) -> None:
    pending = task([entry("library", library=True), *(entry(n, build=triton_job(n)) for n in "ab")])
    rig.pipeline.submit(pending)
    rig.build.finish("a", "compile_failed")
    rig.build.finish("b")
    assert rig.pipeline.wait(pending, LIMIT_S)
    assert rig.bench.screened == ["library", "b"]
    assert not pending.entry("a").alive


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
    rig = rigs(Builder(open_store(tmp_path), pool, Counters(), SpanTrace(), LIMIT_S))
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
    assert all(limit() < 0 for limit in pool.untils)  # what is queued is not begun any more
    assert {job.key.split()[0] for job in pool.jobs} <= {"first"}  # builds are begun by threads
    assert len([r for r in caplog.records if "nothing can be measured" in r.message]) == 1
    pool.gate.set()
    rig.bench.without_device = False
    rig.pipeline.renew()  # the next compile
    third = problem("third")
    assert rig.run(third)
    assert len([e for e in third.entries if e.alive]) == 4


@pytest.mark.parametrize("is_early", [True, False])
def test_what_is_only_built_needs_no_device(rig: Rig, is_early: bool) -> None:
    """Another rank may have decided for a kernel, which this rank has to have, too."""
    built = task([entry("a", build=triton_job("a"))])
    built.measured = False
    if is_early:
        rig.pipeline.submit(built)
    rig.pipeline.leave("no memory is free")
    if not is_early:
        rig.pipeline.submit(built)
    rig.build.finish("a")
    assert rig.pipeline.wait(built, LIMIT_S)
    assert (built.error, built.entry("a").ready) == ("", True)
    assert rig.bench.screened == []


def test_a_device_that_is_tried_again_during_a_submission_does_not_queue_what_was_not_built(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline: Any = rig.pipeline
    refusal = pipeline._why_not_accepted

    def renewed(task: Task) -> str | None:
        reason = refusal(task)
        pipeline._absent = ""  # `renew` of another thread
        return reason

    monkeypatch.setattr(pipeline, "_why_not_accepted", renewed)
    rig.pipeline.leave("no memory is free")
    pending = task([entry("library", library=True), entry("a", build=triton_job("a"))])
    rig.pipeline.submit(pending)
    assert pending.done.is_set()
    assert pending.error == "no memory is free"


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


def test_a_task_that_has_ended_stays_as_it_ended(rig: Rig) -> None:
    decided, given_up = task([entry("x")], digest="1"), task([entry("y")], digest="2")
    assert rig.run(decided)
    rig.pipeline.end(decided, "too late")
    assert decided.error == ""
    rig.pipeline.end(given_up, "its graph failed")
    rig.pipeline.end(given_up, "")
    assert given_up.error == "its graph failed"


def test_a_wait_ends_where_the_thread_that_measures_is_gone(rig: Rig) -> None:
    pending = task([entry("library", library=True), entry("a", build=triton_job("a"))])
    rig.pipeline.submit(pending)
    rig.pipeline._thread = threading.Thread()  # pyright: ignore[reportPrivateUsage]
    assert not rig.pipeline.wait(pending, 0.01)
    assert pending.error == "the thread that measures is gone"
