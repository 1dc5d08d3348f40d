"""The worker of a farm on nodes that tests steer; none of this needs Ray, and most of it no process.

What the local worker passes, it passes too: `tests/worker/test_bench_worker.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.worker.bench_farm import bench as bench_module
from inductor_plugin.worker.bench_farm.bench import TRIES, FarmBench, not_here, on_nodes
from inductor_plugin.worker.bench_farm.finder import NodeLostError
from inductor_plugin.worker.bench_farm.node import BenchNode, NodeAnswer
from inductor_plugin.worker.farm.resource import start_command
from inductor_plugin.worker.jobs import (
    CallJob,
    JobFailed,
    Outcome,
    WorkerSettings,
)
from tests.support.fakes.nodes import (
    RESOURCE,
    FakeBenchCluster,
    StubNode,
    bench_on,
    environment_here,
)
from tests.support.fakes.waiting import until
from tests.support.worker.bench_node import (
    ONCE,
    SETTINGS,
    Rig,
    final,
    job,
    measured,
)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig("first", "second")
    yield rig
    rig.bench.close()


def test_one_node_measures_for_as_long_as_there_is_something(rig: Rig) -> None:
    assert rig.bench.pid is None
    assert rig.bench.why_not_available() is None
    assert rig.bench.screen(job("a")) == Outcome("a", "ok", samples_ms=(1.0,))
    assert [each.candidate_id for each in rig.bench.final(final("a", "b"))] == ["a", "b"]
    assert rig.bench.call(CallJob("module", "function"), 1.0) == "module.function"
    rig.bench.release()
    (node,) = rig.cluster.nodes
    assert node.asked[-1] == "release"
    assert rig.bench.pid == 1


@pytest.mark.parametrize("what", ["screen", "final", "call"])
def test_a_job_whose_node_is_lost_is_done_again_on_another(
    rig: Rig, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    rig.lose_at(0)
    with caplog.at_level(logging.INFO):
        if what == "screen":
            assert rig.bench.screen(job("a")).status == "ok"
        elif what == "final":
            assert [each.status for each in rig.bench.final(final("a", "b"))] == ["ok", "ok"]
        else:
            assert rig.bench.call(CallJob("m", "f"), 1.0) == "m.f"
    assert [(node.host, node.ended) for node in rig.cluster.nodes] == [
        ("first", True),
        ("second", False),
    ]
    assert "its job is done again: first: the machine is gone" in caplog.text


def test_a_job_that_costs_one_node_after_another_is_given_up_alone(rig: Rig) -> None:
    rig.lose_at(*range(TRIES))
    outcome = rig.bench.screen(job("a"))
    assert (outcome.candidate_id, outcome.status) == ("a", "skipped")
    assert f"its node was lost {TRIES} times (first: the machine is gone)" in outcome.reason
    assert len(rig.cluster.nodes) == TRIES
    assert rig.bench.screen(job("b")).status == "ok"
    rig.lose_at(*range(20))
    assert [each.status for each in rig.bench.final(final("a", "b"))] == ["skipped", "skipped"]
    failed = rig.bench.call(CallJob("m", "f"), 1.0)
    assert isinstance(failed, JobFailed)
    assert failed.status == "crashed"


def test_each_content_is_stored_once_and_each_node_gets_it_once(rig: Rig, tmp_path: Path) -> None:
    weight = tmp_path / "weight.bin"
    weight.write_bytes(b"values")
    for name in "abc":
        assert rig.bench.screen(job(name, str(weight))).status == "ok"
    assert rig.cluster.put_contents == [b"values"]
    assert len(rig.cluster.nodes[0].kept) == 1
    rig.cluster.nodes[0].lost = True
    assert rig.bench.screen(job("d", str(weight))).status == "ok"
    assert rig.cluster.put_contents == [b"values"]
    assert rig.cluster.nodes[1].kept == rig.cluster.nodes[0].kept


def test_what_was_longest_unused_leaves_the_object_store(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "_STORED_BYTES", 8)
    for name in ("first", "other", "first"):
        (tmp_path / name).write_bytes(name.encode())
        for node in rig.cluster.nodes:
            node.lost = True
        assert rig.bench.screen(job("a", str(tmp_path / name))).status == "ok"
    assert rig.cluster.put_contents == [b"first", b"other", b"first"]


def test_a_node_that_was_sent_much_is_given_back_with_its_files(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "_NODE_BYTES", 8)
    for name in ("first", "other", "third"):
        (tmp_path / name).write_bytes(name.encode())
        assert rig.bench.screen(job(name, str(tmp_path / name))).status == "ok"
    assert [(len(node.kept), node.ended) for node in rig.cluster.nodes] == [(2, True), (1, False)]
    assert rig.cluster.nodes[0].asked[-1] == "close"


def test_a_file_that_is_gone_skips_its_candidate(rig: Rig, tmp_path: Path) -> None:
    outcome = rig.bench.screen(job("a", str(tmp_path / "gone")))
    assert outcome.status == "skipped"
    assert "cannot be sent" in outcome.reason


def test_a_node_that_was_lost_measures_again_if_no_other_does(rig: Rig) -> None:
    rig.cluster.names = ["first"]
    rig.lose_at(0)
    assert rig.bench.screen(job("a")).status == "ok"
    assert [node.host for node in rig.cluster.nodes] == ["first", "first"]


def test_a_cluster_that_was_lost_is_connected_again(tmp_path: Path) -> None:
    weight = tmp_path / "weight.bin"
    weight.write_bytes(b"values")

    def new_node(settings: WorkerSettings) -> StubNode:
        return StubNode(settings, measured)

    lost, again = FakeBenchCluster("node", make=new_node), FakeBenchCluster("node", make=new_node)
    clusters = [again, lost]
    bench = bench_on(clusters.pop, SETTINGS)
    assert bench.screen(job("a", str(weight))).status == "ok"
    lost.alive, lost.nodes[0].lost = False, True
    assert bench.screen(job("b", str(weight))).status == "ok"
    assert lost.closed
    assert again.put_contents == [b"values"]  # what was in the other's object store is gone
    bench.close()


def test_without_a_node_that_has_the_gpu_nothing_is_measured() -> None:
    bench = Rig().bench
    with pytest.raises(WorkerError, match="no node of the farm has the resource"):
        bench.screen(job())
    assert start_command(RESOURCE) in str(bench.why_not_available())
    bench.close()


def test_nodes_whose_devices_others_have_are_named() -> None:
    cluster = FakeBenchCluster("first", "second")
    cluster.error = NodeLostError("others have its devices")
    bench = bench_on(cluster, SETTINGS)
    with pytest.raises(WorkerError, match=r"first: others have .*; second: others have"):
        bench.final(final("a"))
    bench.close()


def test_a_worker_that_does_not_start_on_the_node_is_an_error_as_here(rig: Rig) -> None:
    rig.answer = lambda _: NodeAnswer(error="it does not start")
    with pytest.raises(WorkerError, match="does not start"):
        rig.bench.screen(job())


def test_an_idle_node_is_given_back_and_the_next_job_finds_one_again() -> None:
    rig = Rig("only", idle_s=0.1)
    assert rig.bench.screen(job("a")).status == "ok"
    until(lambda: rig.cluster.nodes[0].ended)
    assert rig.cluster.nodes[0].asked[-1] == "close"
    assert rig.bench.screen(job("b")).status == "ok"
    assert len(rig.cluster.nodes) == 2
    assert rig.cluster.hurried is None
    rig.bench.close()
    assert rig.cluster.hurried is not None
    assert rig.cluster.hurried[-1] != "close"  # nor does the node have the time that others have


def test_closing_gives_the_node_back_and_ends_a_job_that_runs(rig: Rig) -> None:
    running, over = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow(what: Any) -> NodeAnswer:
        running.set()
        over.wait(10)
        raise NodeLostError("it was given up")

    def run() -> None:
        try:
            rig.bench.screen(job())
        except WorkerError as error:
            errors.append(error)

    rig.answer = slow
    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(10)
    threading.Timer(0.2, over.set).start()
    rig.bench.close()
    thread.join(10)
    assert "closed" in str(errors[0])
    assert rig.cluster.closed
    assert all(node.ended for node in rig.cluster.nodes)
    with pytest.raises(WorkerError, match="closed"):
        rig.bench.screen(job())


def test_closing_does_not_wait_for_a_job_that_waits_for_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_module, "_END_S", 0.05)
    connecting, answer, cluster = threading.Event(), threading.Event(), FakeBenchCluster("node")

    def connect() -> FakeBenchCluster:
        connecting.set()
        answer.wait(10.0)
        return cluster

    bench, reasons = bench_on(connect, SETTINGS), list[str | None]()
    thread = threading.Thread(target=lambda: reasons.append(bench.why_not_available()))
    thread.start()
    assert connecting.wait(10.0)
    bench.close()
    assert thread.is_alive()
    answer.set()
    thread.join(10.0)
    assert reasons == ["the benchmark worker on nodes of the farm is closed"]
    assert cluster.closed


def test_a_head_start_takes_a_node_before_the_first_job(rig: Rig) -> None:
    rig.bench.prewarm()
    until(lambda: len(rig.cluster.nodes) == 1)
    assert rig.bench.screen(job()).status == "ok"
    assert len(rig.cluster.nodes) == 1


def test_what_cannot_be_sent_is_not_measured_on_another_machine() -> None:
    called: list[int] = []
    outcome = not_here(lambda: called.append(1), "mm", ONCE, 1.0)
    assert (outcome.candidate_id, outcome.status) == ("mm", "skipped")
    assert called == []


def test_only_the_first_device_of_a_process_is_measured_on_nodes() -> None:
    with pytest.raises(WorkerError, match="not for cuda:1; show each process its own GPU"):
        bench_module.connected("ray:auto", "cuda:1")


def test_without_ray_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None: ...

    monkeypatch.setattr(bench_module, "find_spec", missing)
    with pytest.raises(OptionError, match=r"bench_farm .* pip install 'inductor-plugin\[ray\]'"):
        on_nodes("ray:auto", SETTINGS, {})


@pytest.fixture
def processes() -> Iterator[Callable[..., tuple[FakeBenchCluster, FarmBench]]]:
    started: list[FarmBench] = []

    def make(*names: str, threads: int) -> tuple[FakeBenchCluster, FarmBench]:
        cluster = FakeBenchCluster(*names, make=BenchNode)
        started.append(bench_on(cluster, SETTINGS, environment_here(threads)))
        return cluster, started[-1]

    yield make
    for bench in started:
        bench.close()


def test_a_node_says_under_which_environment_its_process_measures(processes: Any) -> None:
    started = time.monotonic()
    cluster, bench = processes("node", threads=2)  # as SETTINGS say, whatever this process has
    assert bench.why_not_available() is None
    assert bench.screen(job()).status == "ok"
    assert isinstance(bench.pid, int)
    assert time.monotonic() - started > 0
    assert cluster.nodes[0].asked[0] == "facts"


def test_records_of_an_environment_are_not_filled_by_a_node_with_another(processes: Any) -> None:
    cluster, bench = processes("node", threads=torch.get_num_threads() + 64)
    with pytest.raises(WorkerError, match=r"node: device.threads is 2 there and \d+ here"):
        bench.screen(job())
    assert cluster.nodes[0].ended
