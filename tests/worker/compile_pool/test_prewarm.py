"""Compile workers that are started ahead; none of them starts here.

They are the local pool's alone. Ray starts the processes of a node, with the first job there and for all who use the cluster, and each
keeps a worker that has the imports of its last job: nothing that a sender could start ahead.
"""

from __future__ import annotations

import threading

import pytest

from inductor_plugin.errors import WorkerError
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
        self.lives, self.is_closed = True, False

    @property
    def alive(self) -> bool:
        return bool(self.jobs) and self.lives and not self.is_closed

    def attempt(self, job: object, timeout_s: float, on_event: object = None) -> object:
        self.jobs.append(job)
        return []

    def close(self) -> None:
        self.is_closed = True


class Rig:
    """A pool of recorded workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
        self.processes: list[Recorded] = []
        monkeypatch.setattr(compile_pool, "WorkerProcess", self._process)
        monkeypatch.setattr(compile_pool, "own_cores", lambda: range(workers))
        self.pool = CompilePool(workers, SETTINGS, 0)

    def _process(self, settings: WorkerSettings, name: str) -> Recorded:
        self.processes.append(Recorded(settings, name))
        return self.processes[-1]

    def prewarm(self, most: int = 8) -> list[Recorded]:
        """Return the workers that are started ahead now, when all have the imports."""
        before = len(self.processes)
        self.pool.prewarm(WARM, most)
        started = self.processes[before:]
        until(lambda: [each.jobs for each in started] == [[WARM]] * len(started))
        return started

    def serve(self, *jobs: CompileJob) -> None:
        """Run jobs one after the other."""
        for job in jobs:
            ended = threading.Event()
            self.pool.submit(job, lambda _compiled, ended=ended: ended.set())
            assert ended.wait(10.0)

    def served_by(self, job: CompileJob) -> list[Recorded]:
        """Return the workers that have run a job."""
        return [each for each in self.processes if job in each.jobs]


def test_triton_jobs_run_in_workers_that_were_started_ahead(monkeypatch: pytest.MonkeyPatch):
    rig = Rig(monkeypatch, 2)
    ahead = rig.prewarm()
    assert len(ahead) == 2
    rig.serve(TRITON, TRITON)
    assert rig.prewarm() == []  # as many as may run are there
    (own,) = (each for each in rig.processes if each not in ahead)
    assert own.is_closed  # its place was taken
    assert rig.served_by(TRITON) == [ahead[0]]
    rig.pool.close()
    assert all(each.is_closed for each in rig.processes)


def test_other_jobs_do_not_wait_for_what_is_imported_ahead(monkeypatch: pytest.MonkeyPatch):
    rig = Rig(monkeypatch, 1)
    rig.prewarm()
    rig.serve(SHELL, TRITON, TRITON)
    rig.pool.close()
    assert [each.jobs for each in rig.processes] == [[WARM, TRITON, TRITON], [SHELL]]


@pytest.mark.parametrize(("most", "free_gb", "count"), [(2, 64, 2), (8, 3, 3), (8, 64, 4)])
def test_few_are_started_ahead_where_few_are_wanted_or_may_run_or_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, most: int, free_gb: int, count: int
):
    monkeypatch.setattr(compile_pool, "available_bytes", lambda: free_gb << 30)
    assert len(Rig(monkeypatch, 4).prewarm(most)) == count


def test_workers_that_have_idled_since_are_replaced(monkeypatch: pytest.MonkeyPatch):
    rig = Rig(monkeypatch, 2)
    first = rig.prewarm()
    rig.serve(TRITON)
    for each in rig.processes:
        each.lives = False
    second = rig.prewarm()
    assert len(second) == 2
    assert first[1].is_closed
    rig.serve(TRITON)
    assert rig.served_by(TRITON) == [first[0], second[0]]


def test_a_job_does_not_wait_long_for_imports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_pool, "_HEAD_START_S", 0.05)
    never = threading.Event()
    attempt = Recorded.attempt

    def hangs(self: Recorded, job: object, timeout_s: float, on_event: object = None) -> object:
        if job is WARM:
            never.wait(10.0)
        return attempt(self, job, timeout_s, on_event)

    monkeypatch.setattr(Recorded, "attempt", hangs)
    rig = Rig(monkeypatch, 1)
    rig.pool.prewarm(WARM, 8)
    rig.serve(TRITON)
    never.set()
    spare, own = rig.processes
    assert (TRITON in own.jobs, spare.is_closed) == (True, True)


def test_a_worker_that_could_not_be_started_ahead_gets_no_job(monkeypatch: pytest.MonkeyPatch):
    def fails(self: Recorded, job: object, timeout_s: float, on_event: object = None) -> object:
        self.jobs.append(job)
        if job is WARM:
            self.lives = False
            raise WorkerError("it does not start")
        return []

    monkeypatch.setattr(Recorded, "attempt", fails)
    rig = Rig(monkeypatch, 1)
    (spare,) = rig.prewarm()
    rig.serve(TRITON)
    assert (TRITON in spare.jobs, spare.is_closed) == (False, True)


def test_no_worker_is_started_ahead_once_the_pool_is_closed(monkeypatch: pytest.MonkeyPatch):
    rig = Rig(monkeypatch, 2)
    rig.pool.close()
    assert rig.prewarm() == []


def test_a_spare_that_has_ended_is_discarded_by_whoever_finds_it_first(
    monkeypatch: pytest.MonkeyPatch,
):
    """A job begins while `prewarm` looks for spares that have ended, and finds the same one."""
    rig = Rig(monkeypatch, 1)
    (spare,) = rig.prewarm()
    spare.lives, is_lost = False, vars(compile_pool)["_is_lost"]
    answered = threading.Event()

    def meanwhile(worker: object) -> bool:
        rig.pool.submit(TRITON, lambda _compiled: answered.set())
        answered.wait(0.2)
        return is_lost(worker)

    monkeypatch.setattr(compile_pool, "_is_lost", meanwhile)
    rig.pool.prewarm(WARM, 1)
    assert answered.wait(10.0)
    assert (TRITON in spare.jobs, spare.is_closed) == (False, True)


def test_a_job_is_answered_where_taking_a_spare_fails(monkeypatch: pytest.MonkeyPatch):
    rig = Rig(monkeypatch, 1)
    (spare,) = rig.prewarm()
    spare.lives = False

    def fails() -> None:
        raise OSError("no such process")

    monkeypatch.setattr(spare, "close", fails)
    rig.serve(TRITON, TRITON)
    (own,) = (each for each in rig.processes if each is not spare)
    assert own.jobs == [TRITON, TRITON]


def test_a_worker_that_still_imports_is_not_replaced(monkeypatch: pytest.MonkeyPatch):
    ready = threading.Event()

    def imports(self: Recorded, job: object, timeout_s: float, on_event: object = None) -> object:
        assert ready.wait(10.0)
        self.jobs.append(job)
        return []

    monkeypatch.setattr(Recorded, "attempt", imports)
    rig = Rig(monkeypatch, 1)
    for _ in range(2):
        rig.pool.prewarm(WARM, 8)
    (spare,) = rig.processes
    assert not spare.is_closed
    ready.set()
    rig.serve(TRITON)
    assert spare.jobs == [WARM, TRITON]
