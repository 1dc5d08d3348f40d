"""Compile workers that are started ahead; none of them starts here."""

from __future__ import annotations

import threading

import pytest

from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.jobs import (
    CallJob,
    CompileJob,
    CppCompileJob,
    TritonCompileJob,
    WorkerSettings,
)
from inductor_plugin.worker.process import WorkerProcess
from tests.support.fakes.waiting import until
from tests.support.processes.compiling import GXX, SETTINGS, source

TRITON = TritonCompileJob("t", "kernel", "", (), 60.0)
SHELL = CppCompileJob((source("a", 2),), GXX, "", 60.0)
WARM = CallJob("os", "getpid")


class Recorded(WorkerProcess):
    """A worker that starts nothing and keeps its jobs."""

    def __init__(self, settings: WorkerSettings, name: str) -> None:
        super().__init__(settings, name)
        self.jobs: list[object] = []

    @property
    def pid(self) -> int | None:
        return 1 if self.jobs else None

    def attempt(self, job: object, timeout_s: float, on_event: object = None) -> object:
        self.jobs.append(job)
        return []


def recorded_pool(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> tuple[CompilePool, list[Recorded]]:
    made: list[Recorded] = []

    def process(settings: WorkerSettings, name: str) -> Recorded:
        made.append(Recorded(settings, name))
        return made[-1]

    monkeypatch.setattr(compile_pool, "WorkerProcess", process)
    monkeypatch.setattr(compile_pool, "own_cores", lambda: range(workers))
    return CompilePool(workers, SETTINGS, 0), made


def serve(pool: CompilePool, *jobs: CompileJob) -> None:
    for job in jobs:
        ended = threading.Event()
        pool.submit(job, lambda _compiled, ended=ended: ended.set())
        assert ended.wait(10.0)


def test_triton_jobs_run_in_workers_that_were_started_ahead(
    monkeypatch: pytest.MonkeyPatch,
):
    pool, made = recorded_pool(monkeypatch, 2)
    pool.prewarm(WARM)
    until(lambda: [each.jobs for each in made] == [[WARM]] * 2)
    serve(pool, TRITON, TRITON)
    pool.prewarm(WARM)  # all workers that may be there are there
    pool.close()
    assert sum(each.jobs[1:].count(TRITON) for each in made if each.jobs[:1] == [WARM]) == 2
    assert sum(each.jobs[:1] == [WARM] for each in made) == 2


def test_other_jobs_do_not_wait_for_what_is_imported_ahead(monkeypatch: pytest.MonkeyPatch):
    pool, made = recorded_pool(monkeypatch, 1)
    pool.prewarm(WARM)
    until(lambda: made[0].jobs == [WARM])
    serve(pool, SHELL, TRITON, TRITON)
    pool.close()
    assert [each.jobs for each in made] == [[WARM, TRITON, TRITON], [SHELL]]


def test_no_worker_is_started_ahead_once_the_pool_is_closed(monkeypatch: pytest.MonkeyPatch):
    pool, made = recorded_pool(monkeypatch, 2)
    pool.close()
    pool.prewarm(WARM)
    assert made == []
