"""Which jobs of a pool, local or of a farm, run at the same time, which is next, and how long each may take."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.farm.pool import Pool
from inductor_plugin.worker.jobs import OUT_OF_TIME, Compiled, CppCompileJob
from tests.support.fakes.waiting import unfinished, until, wait_idle
from tests.support.processes.compiling import (
    LIMIT_S,
    GatedJobs,
    Pools,
    a_pool,
    all_pools,
    build,
    source,
)

__all__ = ["a_pool", "all_pools"]  # fixtures


def test_jobs_run_side_by_side_but_no_more_than_allowed(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compile_pool, "own_cores", lambda: range(2))
    pool, jobs, answers = pools.open(2), GatedJobs(tmp_path), list[Compiled]()
    assert pool.workers == (3 if pools.farm else 2)  # a CPU of each node
    keys = [str(number) for number in range(2 * pool.workers + 1)]
    for key in keys:
        pool.submit(jobs.job(key), answers.extend)
    until(lambda: len(jobs.begun()) == pool.workers, LIMIT_S)
    assert not wait_idle(pool, 0.5)  # in which others would begin
    jobs.open()
    assert wait_idle(pool, LIMIT_S)
    assert jobs.most() == pool.workers
    assert sorted(jobs.begun()) == keys
    assert {each.key: each.status for each in answers} == dict.fromkeys(keys, "ok")


def test_a_job_without_a_thread_is_refused_and_the_next_one_runs(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's limit of threads may be reached for a moment."""
    pool, compiled = pools.open(1), list[Compiled]()
    job = CppCompileJob((source("a", 2),), ("true",), str(tmp_path), 60.0)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="start new thread"):
            pool.submit(job, compiled.extend)
    assert (unfinished(pool), compiled) == (0, [])
    pool.submit(job, compiled.extend)
    assert wait_idle(pool, LIMIT_S)
    assert [each.key for each in compiled] == ["a"]


def test_of_queued_jobs_the_highest_rank_is_next(pools: Pools, tmp_path: Path):
    """Whose turn it is, is asked for its limit. Nodes of a farm may begin what they were sent in another order."""
    pool, jobs, turns = pools.open(1), GatedJobs(tmp_path), list[str]()

    def submit(key: str, rank: float) -> None:
        def until_when() -> float:
            turns.append(key)
            return time.monotonic() + LIMIT_S

        pool.submit(jobs.job(key), lambda _: None, None, rank, until_when)

    # A farm has a job more than run.
    first = [f"first {number}" for number in range(pool.workers + (1 if pools.farm else 0))]
    for key in first:
        submit(key, 0.0)
    until(lambda: turns == first, LIMIT_S)
    for key, rank in (("light", 1.0), ("heavy", 9.0), ("also light", 1.0)):
        submit(key, rank)
    jobs.open()
    assert wait_idle(pool, LIMIT_S)
    assert turns == [*first, "heavy", "light", "also light"]
    assert sorted(jobs.begun()) == sorted(turns)
    assert pools.farm or jobs.begun() == turns


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
