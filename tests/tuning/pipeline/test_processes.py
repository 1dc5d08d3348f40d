"""One problem in several tasks, processes and caches: who measures it, and who waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.tuning import pipeline as pipeline_module
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import Task
from tests.support.fakes.pipeline import Rig, Rigs
from tests.support.fakes.tasks import cpp_build, entry, task, triton_job
from tests.support.fakes.waiting import LIMIT_S, until
from tests.support.fakes.workers import FakePool


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
    rig = rigs(Builder(open_store(tmp_path), pool, Counters(), SpanTrace("trace.json"), LIMIT_S))

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


def test_a_task_that_ends_while_its_lock_is_taken_gives_it_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed, take = list[Task](), rig.locks.__call__

    def slowly(pending: Task) -> Any:
        release = take(pending)
        rig.pipeline.end(pending, "its graph does not need it any more")
        return release

    def refresh(pending: Task) -> int:
        refreshed.append(pending)
        return 0

    monkeypatch.setattr(rig.pipeline, "_locks", slowly)
    pending = task([entry("library", library=True)], refresh=refresh)
    assert not rig.run(pending)
    until(lambda: rig.locks.held == [])
    assert (rig.locks.tried, refreshed, rig.bench.screened) == (1, [], [])
