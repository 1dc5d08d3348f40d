"""What the benchmark worker does after a candidate has broken its process; none starts here."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.worker import bench_worker
from inductor_plugin.worker.bench_worker import SETUP_S, BenchWorker
from inductor_plugin.worker.jobs import (
    CallJob,
    Event,
    FinalJob,
    JobFailed,
    Outcome,
    Sampling,
    ScreenJob,
    WorkerSettings,
)
from inductor_plugin.worker.process import WorkerProcess
from tests.support.fakes.tasks import bench_candidate

SETTINGS = WorkerSettings(sys_path=(), kind="bench")
SAMPLING = Sampling(1, 1, 0.0, 60.0, cold_cache=False)


class Scripted(WorkerProcess):
    """A process that answers each job by a function, and keeps what happens to it."""

    def __init__(self, settings: WorkerSettings, name: str) -> None:
        super().__init__(settings, name)
        self.answer: Callable[[Any, Any], Any] = lambda job, on_event: ()
        self.log: list[object] = []
        self.before_stop: Callable[[], object] = lambda: None

    def run(self, job: Any, timeout_s: float, on_event: Any = None) -> Any:
        with self._lock:
            self.log.append(job)
            return self.answer(job, on_event)

    def stop(self) -> None:
        self.before_stop()
        self.log.append("stop")


@pytest.fixture(name="scripted")
def a_scripted_worker(monkeypatch: pytest.MonkeyPatch) -> tuple[BenchWorker, Scripted]:
    monkeypatch.setattr(bench_worker, "WorkerProcess", Scripted)
    worker = BenchWorker(SETTINGS)
    process = worker._process  # pyright: ignore[reportPrivateUsage]
    assert isinstance(process, Scripted)
    return worker, process


def screening(name: str) -> ScreenJob:
    return ScreenJob("problem", None, bench_candidate(name), SAMPLING, None)


def test_a_broken_process_is_ended_before_another_threads_job_runs_in_it(
    scripted: tuple[BenchWorker, Scripted],
) -> None:
    worker, process = scripted
    breaks, good = screening("breaks"), screening("good")
    other = threading.Thread(target=worker.screen, args=(good,))
    runs = threading.Event()

    def answer(job: Any, on_event: Any) -> Any:
        if job is good:
            runs.set()
            return Outcome("good", "ok")
        on_event(Event("start", "breaks"))
        other.start()
        return JobFailed("sticky_error", "an illegal memory access")

    process.answer, process.before_stop = answer, lambda: runs.wait(0.2)
    assert worker.screen(breaks).status == "sticky_error"
    other.join(10.0)
    assert process.log == [breaks, "stop", good]


def test_finalists_are_checked_once_more_where_another_broke_the_process_after_the_last_round(
    scripted: tuple[BenchWorker, Scripted],
) -> None:
    worker, process = scripted
    names = ("library", "wrong", "breaks")

    def answer(job: Any, on_event: Any) -> Any:
        for each in job.candidates:
            on_event(Event("start", each.candidate_id))
            on_event(Event("sample", each.candidate_id, 1.0))
        if len(job.candidates) == len(names):
            on_event(Event("start", "breaks"))
            return JobFailed("sticky_error", "an illegal memory access")
        return (Outcome("library", "ok"), Outcome("wrong", "wrong", "numbers differ"))

    process.answer = answer
    candidates = tuple(map(bench_candidate, names))
    outcomes = worker.final(FinalJob("problem", candidates, 1, SAMPLING))
    assert [each.status for each in outcomes] == ["ok", "wrong", "sticky_error"]
    first, stop, again = process.log  # the process of the last is sound, and stays
    assert (stop, first) == ("stop", FinalJob("problem", candidates, 1, SAMPLING))
    assert isinstance(again, FinalJob)
    assert (len(again.candidates), again.rounds) == (2, 1)


def test_each_step_of_a_job_has_a_limit_of_its_own(scripted: tuple[BenchWorker, Scripted]) -> None:
    worker, process = scripted
    library = replace(bench_candidate("library"), timeout_s=7.0)
    limits_s: dict[str, float | None] = {}

    def answer(job: Any, on_event: Any) -> Any:
        for event in (
            Event("build", "library"),
            Event("start", "library"),
            Event("sample", "library", 1.0),
            Event("start", "free"),
        ):
            limits_s[f"{event.what} {event.subject}"] = on_event(event)
        return Outcome("free", "ok")

    process.answer = answer
    free = replace(bench_candidate("free"), timeout_s=0.0)
    worker.screen(ScreenJob("problem", library, free, SAMPLING, None))
    assert limits_s == {
        "build library": SETUP_S,
        "start library": 7.0,
        "sample library": None,
        "start free": math.inf,
    }


@pytest.mark.parametrize(
    ("status", "stops"),
    [("red_zone", True), ("sticky_error", True), ("wrong", False), ("raised", False)],
)
def test_a_process_whose_memory_is_not_sound_measures_nothing_more(
    scripted: tuple[BenchWorker, Scripted], status: Any, *, stops: bool
) -> None:
    worker, process = scripted
    stopped = ["stop"] if stops else []
    process.answer = lambda job, _: Outcome(job.candidate.candidate_id, status)
    assert worker.screen(screening("a")).status == status
    assert process.log[1:] == stopped
    process.log.clear()
    process.answer = lambda job, _: tuple(
        Outcome(each.candidate_id, status) for each in job.candidates
    )
    final = FinalJob("problem", (bench_candidate("a"),), 1, SAMPLING)
    assert worker.final(final)[0].status == status
    assert process.log[1:] == stopped
    process.log.clear()
    failure = JobFailed(status, "it failed")
    process.answer = lambda job, _: failure
    assert worker.call(CallJob("module", "function"), 1.0) is failure
    assert process.log[1:] == stopped


def test_finals_whose_process_breaks_before_any_of_them_starts_are_skipped_together(
    scripted: tuple[BenchWorker, Scripted],
) -> None:
    worker, process = scripted
    process.answer = lambda job, _: JobFailed("crashed", "SIGSEGV")
    candidates = tuple(map(bench_candidate, ("a", "b")))
    outcomes = worker.final(FinalJob("problem", candidates, 3, SAMPLING))
    assert [(each.candidate_id, each.status) for each in outcomes] == [
        ("a", "skipped"),
        ("b", "skipped"),
    ]
    assert len(process.log) == 1


def test_memory_that_a_process_does_not_give_back_ends_it(
    scripted: tuple[BenchWorker, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, process = scripted
    worker.release()
    assert process.log == []  # it does not run, and holds nothing
    monkeypatch.setattr(Scripted, "pid", 7)
    worker.release()
    (job,) = process.log
    assert isinstance(job, CallJob)
    assert job.function == "release"
    process.answer = lambda job, _: JobFailed("hung", "10 s")
    worker.release()
    assert process.log[2:] == ["stop"]
