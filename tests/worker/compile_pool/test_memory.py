"""How many jobs of a pool run at once where each needs memory.

A node of a farm has as much as it was started with, and Ray counts what its tasks ask for. The local pool looks what is free on this
machine, again and again: what it does about memory that others take or give back has nothing to correspond to it on a node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.compile_pool import CompilePool, available_bytes
from inductor_plugin.worker.jobs import Compiled, CompileJob, CppCompileJob
from tests.support.fakes.waiting import until, wait_idle
from tests.support.processes.compiling import (
    GXX,
    LIMIT_S,
    SETTINGS,
    GatedJobs,
    Pools,
    all_pools,
    source,
)
from tests.support.ray_cluster import add_node, cluster

__all__ = ["all_pools"]  # a fixture

NVCC_BYTES = 6 << 30
Machine = Callable[[int, int], None]
"""Gives a pool a machine: so many cores, so much memory."""


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Start a head that runs no task: what compiles are the nodes that tests add."""
    with cluster(1, cpus=0) as started:
        yield started


@pytest.fixture
def machine(
    pools: Pools, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    started: Any = request.getfixturevalue("ray_cluster") if pools.farm else None
    nodes: list[Any] = []

    def give(cores: int, memory_bytes: int) -> None:
        if started is not None:
            nodes.append(add_node(started, cpus=cores, memory_bytes=memory_bytes))
            return
        monkeypatch.setattr(compile_pool, "available_bytes", lambda: memory_bytes)
        give_cores(monkeypatch, cores)

    yield give
    for node in nodes:
        started.remove_node(node)


def give_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(compile_pool, "own_cores", lambda: range(count))


def run_at_once(pools: Pools, folder: Path, jobs: int, memory_bytes: int, at_once: int) -> int:
    """Run jobs that end once so many run, and return how many have run at once."""
    gated = GatedJobs(folder)
    pool = pools.open(4, memory_bytes=1 << 30)
    until(lambda: pool.workers > 1)  # a farm looks now and then which nodes are there
    answers: list[Compiled] = []
    for number in range(jobs):
        pool.submit(gated.job(str(number)), answers.extend, memory_bytes)
    until(lambda: len(gated.begun()) >= at_once, LIMIT_S)
    assert not wait_idle(pool, 4.0 if pools.farm else 0.5)  # in which others would begin
    gated.open()
    assert wait_idle(pool, LIMIT_S)
    assert [each.status for each in answers] == ["ok"] * jobs
    return gated.most()


def test_a_job_waits_for_memory_unless_it_is_the_only_one(
    pools: Pools, machine: Machine, tmp_path: Path
):
    machine(2, available_bytes())
    assert run_at_once(pools, tmp_path, 2, 1 << 60, 1) == 1


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
    pools: Pools, machine: Machine, tmp_path: Path, free_bytes: int, at_once: int
):
    machine(4, free_bytes)
    assert run_at_once(pools, tmp_path, at_once + 2, NVCC_BYTES, at_once) == at_once


class Nvcc:
    """Compilers of the local pool that take memory only after a while; counts how many run at once."""

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
