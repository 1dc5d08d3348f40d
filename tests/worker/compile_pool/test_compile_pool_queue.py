"""Which jobs of a pool run at the same time, which is next, and how long each may take."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.compile_pool import CompilePool, available_bytes
from inductor_plugin.worker.farm.pool import Pool
from inductor_plugin.worker.jobs import (
    OUT_OF_TIME,
    Compiled,
    CompileJob,
    CppCompileJob,
)
from tests.support.fakes.waiting import wait_idle
from tests.support.processes.compiling import GXX, SETTINGS, a_pool, build, source

__all__ = ["a_pool"]  # the fixture


NVCC_BYTES = 6 << 30


def test_jobs_run_side_by_side_but_no_more_than_allowed(tmp_path: Path):
    pool = CompilePool(1, SETTINGS, 0)
    command = ("sh", "-c", "date +%s.%N >> times; sleep 0.3; date +%s.%N >> times")
    for number in range(3):
        pool.submit(
            CppCompileJob((source(str(number), 2),), command, str(tmp_path), 60.0), lambda _: None
        )
    assert not wait_idle(pool, 0.05)
    assert wait_idle(pool, 60.0)
    moments = [float(line) for line in (tmp_path / "times").read_text().split()]
    assert len(moments) == 6
    assert moments == sorted(moments)
    pool.close()


def test_a_job_waits_for_memory_unless_it_is_the_only_one(tmp_path: Path):
    pool = CompilePool(2, SETTINGS, 1 << 60)
    if pool.workers < 2:
        pytest.skip("needs two cores")
    command = ("sh", "-c", "date +%s.%N >> times; sleep 0.3; date +%s.%N >> times")
    for number in range(2):
        pool.submit(
            CppCompileJob((source(str(number), 2),), command, str(tmp_path), 60.0), lambda _: None
        )
    assert wait_idle(pool, 60.0)
    moments = [float(line) for line in (tmp_path / "times").read_text().split()]
    assert moments == sorted(moments)
    pool.close()


def give_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def cores(process: int) -> set[int]:
        return set(range(count))

    monkeypatch.setattr("os.sched_getaffinity", cores)


def test_a_job_without_a_thread_is_refused_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's limit of threads may be reached for a moment."""
    pool, compiled = CompilePool(1, SETTINGS, 0), list[Compiled]()
    job = CppCompileJob((source("a", 2),), ("true",), str(tmp_path), 60.0)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="start new thread"):
            pool.submit(job, compiled.extend)
    assert (pool.idle, compiled) == (1, [])
    pool.submit(job, compiled.extend)
    assert wait_idle(pool, 60.0)
    assert [each.key for each in compiled] == ["a"]
    pool.close()


class Nvcc:
    """Compilers that take memory only after a while; counts how many run at once."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.running = self.most = self.ended = 0
        self._guard = threading.Lock()

    def compile(self, process: object, job: CompileJob, until: float) -> list[Compiled]:
        with self._guard:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.1)
        with self._guard:
            self.running -= 1
            self.ended += 1
        return []


@pytest.mark.parametrize(
    ("free_bytes", "at_once"),
    [
        (6 * 10**9, 1),
        (6 << 30, 1),  # the second would find as much free, as long as the first has just begun
        (11 << 30, 1),
        (12 << 30, 2),
        (20 << 30, 3),
        (64 << 30, 4),
    ],
)
def test_as_many_compilers_run_as_the_memory_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, at_once: int
):
    nvcc = Nvcc(free_bytes)
    monkeypatch.setattr(compile_pool, "compile_all", nvcc.compile)
    monkeypatch.setattr(compile_pool, "available_bytes", lambda: nvcc.free_bytes)
    give_cores(monkeypatch, 4)
    pool = CompilePool(4, SETTINGS, 1 << 30)
    job = CppCompileJob((source("a", 2),), GXX, str(tmp_path), 60.0)
    for _ in range(6):
        pool.submit(job, lambda _: None, NVCC_BYTES)
    assert wait_idle(pool, 20.0)
    pool.close()
    assert (nvcc.most, nvcc.ended) == (at_once, 6)


def test_of_queued_jobs_the_highest_rank_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate, order = threading.Event(), list[str]()

    def compile_all(process: object, job: CppCompileJob, until: float) -> list[Compiled]:
        gate.wait(60.0)
        order.append(job.sources[0].key)
        return []

    monkeypatch.setattr(compile_pool, "compile_all", compile_all)
    pool = CompilePool(1, SETTINGS, 0)
    for key, rank in (("first", 0.0), ("light", 1.0), ("heavy", 9.0), ("also light", 1.0)):
        job = CppCompileJob((source(key, 2),), GXX, str(tmp_path), 60.0)
        pool.submit(job, lambda _: None, None, rank)
        while not pool._running:  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.002)
    gate.set()
    assert wait_idle(pool, 20.0)
    pool.close()
    assert order == ["first", "heavy", "light", "also light"]


def test_a_job_ends_at_the_time_it_was_given_and_is_not_blamed(pool: Pool, tmp_path: Path):
    answers: list[Compiled] = []
    asked: list[float] = []

    def until() -> float:
        asked.append(time.monotonic())
        return asked[-1] + 0.5

    command = ("sh", "-c", "touch started; sleep 600")
    job = CppCompileJob((source("a", 2), source("b", 3)), command, str(tmp_path), 600.0)
    pool.submit(job, answers.extend, None, 0.0, until)
    assert wait_idle(pool, 20.0)
    assert {(c.key, c.status, c.reason) for c in answers} == {
        ("a", "skipped", OUT_OF_TIME),
        ("b", "skipped", OUT_OF_TIME),
    }
    assert len(asked) == 1
    assert time.monotonic() - asked[0] < 10.0


def test_a_job_whose_time_is_over_does_not_start(pool: Pool, tmp_path: Path):
    answers: list[Compiled] = []
    job = CppCompileJob((source("a", 2),), ("touch", "started"), str(tmp_path), 600.0)
    pool.submit(job, answers.extend, None, 0.0, lambda: time.monotonic() - 1)
    assert wait_idle(pool, 20.0)
    assert [c.reason for c in answers] == [OUT_OF_TIME]
    assert not (tmp_path / "started").exists()


def test_memory_that_others_give_back_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = [6 << 30]
    started, gate = threading.Semaphore(0), threading.Event()

    def compile_all(process: object, job: CompileJob, until: float) -> list[Compiled]:
        started.release()
        gate.wait(60.0)
        return []

    monkeypatch.setattr(compile_pool, "compile_all", compile_all)
    monkeypatch.setattr(compile_pool, "available_bytes", lambda: free[0])
    give_cores(monkeypatch, 2)
    pool = CompilePool(2, SETTINGS, 6 << 30)
    job = CppCompileJob((source("a", 2),), GXX, str(tmp_path), 60.0)
    for _ in range(2):
        pool.submit(job, lambda _: None)
    assert started.acquire(timeout=10.0)
    assert not started.acquire(timeout=0.5)
    free[0] = 12 << 30
    assert started.acquire(timeout=10.0)
    gate.set()
    assert wait_idle(pool, 20.0)
    pool.close()


def test_the_container_s_limit_counts_as_much_as_the_machine_s(tmp_path: Path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable:    2048 kB\n")
    assert available_bytes(meminfo, tmp_path) == 2048 << 10
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert available_bytes(meminfo, tmp_path) == 150000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(meminfo, tmp_path) == 2048 << 10


def test_closing_answers_every_job(pool: Pool, tmp_path: Path):
    answers: list[Compiled] = []
    command = ("sleep", "600")
    for number in range(3):
        job = CppCompileJob((source(str(number), 2),), command, str(tmp_path), 600.0)
        pool.submit(job, answers.extend)
    time.sleep(0.3)
    pool.close()
    assert wait_idle(pool, 20.0)
    assert {compiled.key: compiled.status for compiled in answers} == dict.fromkeys(
        "012", "skipped"
    )
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(CppCompileJob((), (), "", 1.0), answers.extend)


def test_an_answer_that_raises_does_not_stop_the_pool(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def fail(_: list[Compiled]) -> None:
        raise ValueError("no")

    for _ in range(3):
        pool.submit(CppCompileJob((source("a", 2),), ("false",), str(tmp_path), 9.0), fail)
    assert wait_idle(pool, 30.0)
    assert build(pool, tmp_path, source("a", 2))["a"].status == "ok"
    assert len(raised) == 3


def test_a_job_waits_where_others_have_taken_the_memory_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """There was room for two when the first began; then another process took what the second needs."""
    nvcc = Nvcc(64 << 30)

    def compile_all(process: object, job: CompileJob, until: float) -> list[Compiled]:
        nvcc.free_bytes = 1 << 30
        return nvcc.compile(process, job, until)

    monkeypatch.setattr(compile_pool, "compile_all", compile_all)
    monkeypatch.setattr(compile_pool, "available_bytes", lambda: nvcc.free_bytes)
    give_cores(monkeypatch, 2)
    pool = CompilePool(2, SETTINGS, 1 << 30)
    job = CppCompileJob((source("a", 2),), GXX, str(tmp_path), 60.0)
    pool.submit(job, lambda _: None, NVCC_BYTES)
    while not nvcc.running:
        time.sleep(0.002)
    pool.submit(job, lambda _: None, NVCC_BYTES)
    assert wait_idle(pool, 20.0)
    pool.close()
    assert (nvcc.most, nvcc.ended) == (1, 2)


def test_memory_that_others_take_while_a_job_runs_is_none_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, gate, started = [64 << 30], threading.Event(), threading.Semaphore(0)

    def compile_all(process: object, job: CompileJob, until: float) -> list[Compiled]:
        started.release()
        assert gate.wait(60.0)
        return []

    monkeypatch.setattr(compile_pool, "_MEMORY_POLL_S", 0.01)
    monkeypatch.setattr(compile_pool, "compile_all", compile_all)
    monkeypatch.setattr(compile_pool, "available_bytes", lambda: free[0])
    give_cores(monkeypatch, 3)
    pool = CompilePool(3, SETTINGS, NVCC_BYTES)
    assert pool.idle == 3
    job = CppCompileJob((source("a", 2),), GXX, str(tmp_path), 60.0)
    pool.submit(job, lambda _: None)
    assert started.acquire(timeout=10.0)
    free[0] = 1 << 30
    pool.submit(job, lambda _: None)
    assert not started.acquire(timeout=0.1)
    pool.submit(job, lambda _: None, 1 << 20)  # which needs little
    assert started.acquire(timeout=10.0)
    pool.submit(job, lambda _: None)
    assert pool.idle == 0  # and not less
    gate.set()
    assert wait_idle(pool, 20.0)
    pool.close()
