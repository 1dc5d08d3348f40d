"""A farm on real nodes: processes and nodes that are lost, and nodes that come; and what is not asked of Ray."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin import errors
from inductor_plugin.errors import WorkerError
from inductor_plugin.inductor.facts.toolchain import cpp_toolchain
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm import cluster as cluster_module
from inductor_plugin.worker.farm import connection as connection_module
from inductor_plugin.worker.farm import flight as flight_module
from inductor_plugin.worker.farm import pool as pool_module
from inductor_plugin.worker.farm.cluster import Cluster, next_of
from inductor_plugin.worker.farm.connection import Connection, marked
from inductor_plugin.worker.farm.parcel import Parcel, parcel_of
from inductor_plugin.worker.farm.pool import FarmPool, Pool, on_farm
from inductor_plugin.worker.farm.window import Load
from inductor_plugin.worker.jobs import Compiled, CompileJob, CppCompileJob, WorkerSettings
from tests.support.fakes.ray import FakeKeys, FakeRay
from tests.support.fakes.waiting import until, wait_idle
from tests.support.ray_cluster import add_node, compiling_processes, kill
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(sys_path=(str(REPOSITORY), *sys.path), kind="compile")
JOBS, LIMIT_S = 12, 240.0
KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out) { at::vec::Vectorized<float>(3).store(out); }
"""


@pytest.fixture
def pool(ray_on_this_machine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(errors, "_SAID", set[str]())
    pool = on_farm(ray_on_this_machine, SETTINGS, CompilePool(1, SETTINGS, 0), 0)
    assert isinstance(pool, FarmPool)
    yield pool
    pool.close()


def submit(pool: Pool, folder: Path, seconds: int = 2) -> list[Compiled]:
    """Submit jobs whose result is their source, some seconds later; each writes into ``starts`` when it begins."""
    answers: list[Compiled] = []
    folder.mkdir(exist_ok=True)
    for number in range(JOBS):
        own = folder / str(number)
        own.mkdir()
        source = CppSource(f"key-{number}", f"// {number}", "kernel")
        text = f"echo {number} $PPID >> {folder}/starts; sleep {seconds}; cp {{source}} {{output}}"
        pool.submit(CppCompileJob((source,), ("sh", "-c", text), str(own), 60.0), answers.extend)
    return answers


def begun(folder: Path) -> list[tuple[int, int]]:
    """Return the jobs that have begun, in order, each with the process that runs it: a child of one of Ray's."""
    path = folder / "starts"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
    seen: Any = pool
    keys = [flight.key for flight in seen._flying]
    until(lambda: any(map(seen._nodes.has_begun, keys)), LIMIT_S)
    sender, keys = seen._watch.sender, [flight.key for flight in seen._flying]
    until(lambda: seen._nodes.load(sender, keys) == Load(free=0, running=3), LIMIT_S)
    assert seen._nodes.load(sender, []) == Load(free=0, running=0)
    assert seen._nodes.load("another", keys) == Load(free=0, running=0)
    assert wait_idle(pool, LIMIT_S)
    assert are_right(answers)
    assert not any(map(seen._nodes.has_begun, keys))
    until(lambda: seen._nodes.load(sender, keys) == Load(free=3, running=0), LIMIT_S)


@pytest.mark.slow
def test_a_process_that_is_killed_and_a_node_that_comes_change_nothing(
    pool: Pool,
    tmp_path: Path,
    ray_cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", LIMIT_S)  # on a busy machine all are slow
    answers = submit(pool, tmp_path, seconds=4)
    until(lambda: len(begun(tmp_path)) >= 3, LIMIT_S)
    number, pid = begun(tmp_path)[-1]
    assert parent_of(pid) in compiling_processes(ray_cluster.address)
    kill(parent_of(pid))
    node = add_node(ray_cluster)
    until(lambda: pool.workers == 4, LIMIT_S)
    more = submit(pool, tmp_path / "more")
    until(lambda: bool(compiling_processes(node.raylet_socket_name)), LIMIT_S)
    assert wait_idle(pool, LIMIT_S)
    assert are_right(answers)
    assert are_right(more)
    numbers = [each for each, _ in begun(tmp_path)]
    assert sorted(numbers) == sorted([*range(JOBS), number])  # it was done again
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]  # nothing was done here
    ray_cluster.remove_node(node)


@pytest.mark.slow
def test_a_kernel_of_inductor_crosses_to_nodes_that_lack_its_precompiled_header(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All nodes of this test share one disk: the header is gone once the job is packed."""
    header = tmp_path / "first.h"
    header.write_text("#error it is not to be read")
    compiled_header = tmp_path / "first.h.gch"
    compiled_header.write_bytes(b"")

    def packed(job: CompileJob) -> Parcel:
        parcel = parcel_of(job)
        header.unlink()
        compiled_header.unlink()
        return parcel

    monkeypatch.setattr(pool_module, "parcel_of", packed)
    compiler, *rest = cpp_toolchain().command
    command = (compiler, "-include", str(header), *rest)
    source = CppSource("key", KERNEL, "kernel")
    answers: list[Compiled] = []
    pool.submit(CppCompileJob((source,), command, str(tmp_path / "job"), 120.0), answers.extend)
    assert wait_idle(pool, LIMIT_S)
    assert [(each.status, each.reason) for each in answers] == [("ok", "")]
    library = Path(answers[0].library or "")
    assert library.parent == tmp_path / "job"
    out = (ctypes.c_float * 64)()
    getattr(ctypes.CDLL(str(library)), answers[0].symbol)(out)
    assert list(out)[:4] == [3.0] * 4  # no vector is shorter
    assert "compiled here" not in caplog.text


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
    task = cluster.start("parcel", 1.0, 0)
    ray.shutdown()
    assert not cluster.alive
    with pytest.raises(WorkerError, match="has ended"):
        cluster.start("parcel", 1.0, 0)
    cluster.cancel(task)
    assert len(ray.started) == 1
    assert not ray.is_initialized()


def test_a_cluster_that_does_not_say_what_it_does_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = Cluster("ray:auto", SETTINGS)
    monkeypatch.setattr(ray, "available_resources", lambda: 1 / 0)
    assert cluster.load("sender", []) is None
    assert cluster.alive
    cluster.close()


def test_who_asks_for_the_cpus_of_a_head_that_is_silent_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Signs of life come from threads that ask, and some ask under locks that others wait for."""
    answer, nodes, asked = threading.Event(), FakeRay().nodes(), list[int]()
    monkeypatch.setitem(sys.modules, "ray", ray := FakeRay())
    cluster = Cluster("ray:auto", SETTINGS)

    def silent() -> list[dict[str, Any]]:
        asked.append(1)
        assert answer.wait(60.0)
        return [{**nodes[0], "Resources": {"CPU": 8.0}}]

    monkeypatch.setattr(ray, "nodes", silent)
    monkeypatch.setattr(cluster_module, "_LOOK_S", -1.0)
    started = time.monotonic()
    assert [cluster.cpus for _ in range(100)] == [2] * 100
    assert time.monotonic() - started < 30.0
    until(lambda: asked == [1])  # by a single thread
    answer.set()
    until(lambda: cluster.cpus == 8)
    cluster.close()


def test_the_mark_of_a_process_that_was_killed_is_no_job_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def marks(_: Connection, sender: str) -> dict[str, set[str]]:
        return {f"{sender} runs": {"a"}, f"{sender} was killed": {"a"}}

    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr(Connection, "marks", marks)
    cluster = Cluster("ray:auto", SETTINGS)
    assert cluster.load("s", ["s runs", "s waits"]) == Load(free=2, running=1)
    cluster.close()


def test_the_mark_of_a_node_that_is_lost_is_no_job_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray keeps its task for another node, which may never come."""
    here = iter(["lost", "joins", "a"])
    monkeypatch.setitem(sys.modules, "ray", ray := FakeRay())
    table = FakeKeys()
    monkeypatch.setattr(connection_module, "_keys", lambda: table)
    monkeypatch.setattr(connection_module, "node_here", lambda: next(here))
    cluster, keys = Cluster("ray:auto", SETTINGS), ["s 1", "s 2", "s 3"]
    with marked("s 1"), marked("s 2"), marked("s 3"):
        assert cluster.load("s", keys) == Load(free=2, running=1)
        assert [cluster.has_begun(key) for key in keys] == [False, False, True]
        joined = {"NodeID": "joins", "Alive": True, "Resources": {"CPU": 2.0}}
        monkeypatch.setattr(ray, "nodes", lambda: [joined])
        assert [cluster.has_begun(key) for key in keys] == [False, True, False]
    assert cluster.load("s", keys) == Load(free=2, running=0)
    cluster.close()


def test_a_job_that_runs_on_a_second_node_still_runs_where_the_first_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = iter("ab")
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    table = FakeKeys()
    monkeypatch.setattr(connection_module, "_keys", lambda: table)
    monkeypatch.setattr(connection_module, "node_here", lambda: next(here))
    connection = Connection("ray:auto", "compile_farm")
    with marked("s 1"):
        with marked("s 1"):
            assert connection.marks("s") == {"s 1": {"a", "b"}}
        assert connection.marks("s") == {"s 1": {"a"}}
    assert connection.marks("s") == {}
    connection.close()


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
    placed: list[str] = []

    def only_on(_: Connection, node: str) -> None:
        placed.append(node)

    monkeypatch.setattr(Connection, "only_on", only_on)
    cluster = Cluster("ray:auto", SETTINGS)
    cluster.start("parcel", 1.0, 0, {"another"})
    with pytest.raises(WorkerError, match="every node of the farm has refused"):
        cluster.start("parcel", 1.0, 0, {"a"})
    assert placed == ["a"]
    cluster.close()


def test_a_node_that_joins_gets_as_many_jobs_for_each_cpu_as_others_have_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not all, until it has had as many as they have had altogether."""
    ray, placed = FakeRay(), list[str]()
    nodes = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0}}]

    def only_on(_: Connection, node: str) -> None:
        placed.append(node)

    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(cluster_module, "_LOOK_S", -1.0)
    monkeypatch.setattr(Connection, "only_on", only_on)
    cluster = Cluster("ray:auto", SETTINGS)
    answers: list[Any] = []
    for _ in range(5):
        cluster.when_done(cluster.start("parcel", 1.0, 0, {"old"}), answers.append)
    for future in ray.futures[:3]:
        future.set_result("done")
    cluster.cancel(cluster.start("parcel", 1.0, 0, {"old"}))
    nodes.append({**nodes[0], "NodeID": "b"})
    for _ in range(4):
        cluster.start("parcel", 1.0, 0, {"old"})
    assert answers == ["done"] * 3
    assert Counter(placed[6:]) == {"a": 1, "b": 3}  # two were in progress
    assert cluster.has_other({"a"})
    assert not cluster.has_other({"a", "b"})
    cluster.close()


def test_a_task_asks_for_what_its_nodes_have_and_its_end_is_answered_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray, asked, cancelled = FakeRay(), list[dict[str, Any]](), list[tuple[Any, bool]]()
    sizes = {"a": 1 << 30, "b": 4 << 30}
    nodes = [
        {"NodeID": name, "Alive": True, "Resources": {"CPU": 2.0, "memory": float(size)}}
        for name, size in sizes.items()
    ]
    # A task that asked for what this one has would wait for ever.
    nodes.append({"NodeID": "head", "Alive": True, "Resources": {"CPU": 0.0, "memory": 2.0**35}})
    remote = ray.remote

    def noted(function: Any) -> Any:
        task = remote(function)
        return SimpleNamespace(
            options=lambda **chosen: asked.append(chosen) or task.options(**chosen)  # pyright: ignore
        )

    def cancel(reference: Any, *, force: bool) -> None:
        cancelled.append((reference, force))

    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "remote", noted)
    monkeypatch.setattr(ray, "cancel", cancel, raising=False)
    monkeypatch.setattr(Connection, "only_on", lambda _, node: f"on {node}")  # pyright: ignore
    cluster = Cluster("ray:auto", SETTINGS)
    assert cluster.cpus == 4
    wanted: list[tuple[int, set[str]]] = [(3 << 30, set()), (9 << 30, set()), (0, set())]
    tasks = [cluster.start("p", 1.0, *each) for each in [*wanted, (9 << 30, {"b"})]]
    assert [each["memory"] for each in asked] == [3 << 30, 4 << 30, None, 1 << 30]
    assert [each.get("scheduling_strategy") for each in asked] == [None, None, None, "on a"]
    assert {each["max_retries"] for each in asked} == {cluster_module.RETRIES}
    answers: list[Any] = []
    cluster.when_done(tasks[3], answers.append)
    ray.futures[3].set_exception(RuntimeError("its node has died\nat last"))
    assert answers == ["RuntimeError: its node has died"]
    cluster.cancel(tasks[0])
    assert [force for _, force in cancelled] == [True]  # a compiler does not listen
    cluster.close()
    cluster.cancel(tasks[1])
    assert len(cancelled) == 1
