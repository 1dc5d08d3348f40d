"""A farm on real nodes: processes and nodes that are lost, and nodes that come; and what is not asked of Ray."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin import errors
from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm.cluster import Cluster, next_of
from inductor_plugin.worker.farm.connection import Connection
from inductor_plugin.worker.farm.pool import FarmPool, Pool, on_farm
from inductor_plugin.worker.jobs import Compiled, CppCompileJob, WorkerSettings
from tests.support.fakes.ray import FakeRay
from tests.support.fakes.waiting import until, wait_idle
from tests.support.ray_cluster import add_node, compiling_processes, kill
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(sys_path=(str(REPOSITORY), *sys.path), kind="compile")
JOBS, LIMIT_S = 12, 240.0


@pytest.fixture
def pool(ray_on_this_machine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(errors, "_SAID", set[str]())
    pool = on_farm(ray_on_this_machine, SETTINGS, CompilePool(1, SETTINGS, 0), 0)
    assert isinstance(pool, FarmPool)
    yield pool
    pool.close()


def submit(pool: Pool, folder: Path, seconds: int = 2) -> list[Compiled]:
    """Submit jobs whose result is their source, some seconds later."""
    answers: list[Compiled] = []
    for number in range(JOBS):
        own = folder / str(number)
        own.mkdir()
        source = CppSource(f"key-{number}", f"// {number}", "kernel")
        command = ("sh", "-c", f"sleep {seconds}; cp {{source}} {{output}}")
        pool.submit(CppCompileJob((source,), command, str(own), 60.0), answers.extend)
    return answers


def are_right(answers: list[Compiled]) -> bool:
    """Return whether each job was answered once, with its own result."""
    numbers = sorted(int(each.key.removeprefix("key-")) for each in answers)
    texts = [Path(each.library or "").read_text() for each in answers]
    return numbers == list(range(JOBS)) and all(
        f"// {each.key.removeprefix('key-')}" in text.splitlines()
        for each, text in zip(answers, texts, strict=True)
    )


@pytest.mark.slow
def test_all_cpus_of_the_cluster_compile(pool: Pool, tmp_path: Path, ray_cluster: Any) -> None:
    assert pool.workers == 3
    answers = submit(pool, tmp_path)
    until(lambda: len(compiling_processes(ray_cluster.address)) == 3, LIMIT_S)
    assert wait_idle(pool, LIMIT_S)
    assert are_right(answers)


@pytest.mark.slow
def test_a_process_that_is_killed_and_a_node_that_comes_change_nothing(
    pool: Pool, tmp_path: Path, ray_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answers = submit(pool, tmp_path)
    until(lambda: len(compiling_processes(ray_cluster.address)) == 3, LIMIT_S)
    kill(compiling_processes(ray_cluster.address)[0])
    node = add_node(ray_cluster)
    until(lambda: pool.workers == 4, LIMIT_S)
    assert wait_idle(pool, LIMIT_S)
    assert are_right(answers)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]  # nothing was done here
    ray_cluster.remove_node(node)


@pytest.mark.slow
def test_the_jobs_of_a_node_that_is_lost_are_done_again(
    pool: Pool, tmp_path: Path, ray_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    node = add_node(ray_cluster)
    until(lambda: pool.workers == 4, LIMIT_S)
    answers = submit(pool, tmp_path, seconds=8)
    until(lambda: bool(compiling_processes(node.raylet_socket_name)), LIMIT_S)
    ray_cluster.remove_node(node, allow_graceful=False)
    assert wait_idle(pool, LIMIT_S)
    assert are_right(answers)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    until(lambda: pool.workers == 3, LIMIT_S)


def test_no_task_is_started_once_the_users_program_has_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray would start a cluster on this machine for it."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = Cluster("ray:auto", SETTINGS)
    assert cluster.cpus == 2
    cluster.start("parcel", 1.0, 0)
    ray.shutdown()
    assert not cluster.alive
    with pytest.raises(WorkerError, match="has ended"):
        cluster.start("parcel", 1.0, 0)
    cluster.cancel("task")
    assert len(ray.started) == 1
    assert not ray.is_initialized()


def test_a_job_that_some_nodes_refuse_is_placed_on_the_others_by_their_cpus() -> None:
    nodes: list[dict[str, Any]] = [
        {"NodeID": "refuses", "Resources": {"CPU": 64.0}},
        {"NodeID": "small", "Resources": {"CPU": 2.0}},
        {"NodeID": "large", "Resources": {"CPU": 4.0}},
        {"NodeID": "head", "Resources": {}},
    ]
    placed = Counter[str]()
    for _ in range(12):
        node = next_of(nodes, {"refuses"}, placed)
        assert node is not None
        placed[node["NodeID"]] += 1
    assert placed == {"small": 4, "large": 8}
    assert next_of(nodes, {"refuses", "small", "large"}, placed) is None


def test_a_job_is_not_sent_to_nodes_that_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr(Connection, "only_on", lambda _self, node: node)
    cluster = Cluster("ray:auto", SETTINGS)
    cluster.start("parcel", 1.0, 0, {"another"})
    with pytest.raises(WorkerError, match="every node of the farm has refused"):
        cluster.start("parcel", 1.0, 0, {"a"})
    cluster.close()
