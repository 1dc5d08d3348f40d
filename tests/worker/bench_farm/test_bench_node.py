"""What the worker of a farm asks of the node that it holds, for how long, and when it gives it back. Nothing needs Ray."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.version import __version__
from inductor_plugin.worker.bench_farm import bench as bench_module
from inductor_plugin.worker.bench_farm import finder
from inductor_plugin.worker.bench_farm.bench import on_nodes
from inductor_plugin.worker.bench_farm.fit import NodeFacts
from inductor_plugin.worker.bench_farm.node import NodeAnswer
from inductor_plugin.worker.bench_worker import SETUP_S
from inductor_plugin.worker.jobs import CallJob
from inductor_plugin.worker.process import START_S
from inductor_plugin.worker.turn import WAIT_S
from tests.support.fakes.nodes import FakeBenchCluster, StubNode
from tests.support.fakes.waiting import until
from tests.support.worker.bench_node import SETTINGS, Rig, candidate, final, job, measured

TIMEOUT_S = candidate("any").timeout_s


@pytest.fixture(name="rig")
def a_rig() -> Iterator[Rig]:
    rig = Rig("first", "second")
    yield rig
    rig.bench.close()


def test_a_content_that_was_used_again_stays_and_one_that_is_too_large_is_sent_all_the_same(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "_STORED_BYTES", 10)
    for name in ("first", "other", "first", "third", "first", "the largest of all", "first"):
        (tmp_path / name).write_bytes(name.encode())
        for node in rig.cluster.nodes:
            node.lost = True
        assert rig.bench.screen(job("a", str(tmp_path / name))).status == "ok"
    assert rig.cluster.put_contents == [
        *(b"first", b"other", b"third", b"the largest of all", b"first")
    ]


def test_a_file_that_goes_before_it_is_sent_skips_its_candidate(rig: Rig, tmp_path: Path) -> None:
    weight = tmp_path / "weight.bin"
    weight.write_bytes(b"values")
    rig.cluster.busy = lambda _: weight.unlink()
    outcome = rig.bench.screen(job("a", str(weight)))
    assert (outcome.status, "cannot be sent" in outcome.reason) == ("skipped", True)
    assert [node.ended for node in rig.cluster.nodes] == [False]  # it is not the node's fault


def test_a_node_has_the_time_of_all_that_it_runs(rig: Rig) -> None:
    """Otherwise it is taken for lost, and its job is done again elsewhere."""

    def expected(candidates: int) -> float:
        return 2 * START_S + WAIT_S + candidates * (2 * SETUP_S + TIMEOUT_S)

    compared = replace(job(), library=candidate("library"))
    for screened, count in ((job(), 1), (compared, 2), (replace(job(), ends=(compared,)), 3)):
        rig.bench.screen(screened)
        assert rig.cluster.nodes[0].limits_s["measure"] == expected(count)
    rig.bench.final(final("a", "b"))  # each of them may break it, and then the other goes on
    assert rig.cluster.nodes[0].limits_s["measure"] == 2 * expected(2)
    rig.bench.screen(replace(job(), candidate=replace(candidate("a"), timeout_s=0.0)))
    assert rig.cluster.nodes[0].limits_s["measure"] == math.inf
    rig.bench.call(CallJob("m", "f"), 7.0)
    assert rig.cluster.nodes[0].limits_s["call"] == 7.0 + 2 * START_S


def test_a_node_whose_worker_does_not_start_or_that_is_lost_is_an_obstacle(rig: Rig) -> None:
    assert rig.bench.screen(job()).status == "ok"
    (node,) = rig.cluster.nodes
    node.answers["why_not_available"] = NodeAnswer("its compute mode is exclusive")
    assert rig.bench.why_not_available() == "its compute mode is exclusive"
    node.answers["why_not_available"] = NodeAnswer(error="no device")
    assert rig.bench.why_not_available() == "no device"
    node.lost = True
    assert rig.bench.why_not_available() == "its node was lost"
    assert node.ended
    assert rig.bench.pid is None
    rig.bench.release()  # nothing is held, and nothing is searched for
    assert len(rig.cluster.nodes) == 1
    assert rig.bench.screen(job()).status == "ok"
    assert [each.host for each in rig.cluster.nodes] == ["first", "second"]


def test_closing_an_idle_worker_removes_what_lies_on_its_node(rig: Rig) -> None:
    assert rig.bench.screen(job()).status == "ok"
    rig.bench.close()
    (node,) = rig.cluster.nodes
    assert (node.asked[-1], node.ended, rig.cluster.closed) == ("close", True, True)


@pytest.mark.parametrize("begins", ["why_not_available", "prewarm"])
def test_a_node_that_never_measured_is_given_back_too(begins: str) -> None:
    rig = Rig("only", idle_s=0.05)
    assert not getattr(rig.bench, begins)()
    until(lambda: bool(rig.cluster.nodes) and rig.cluster.nodes[0].ended)
    assert rig.cluster.nodes[0].asked[-1] == "close"
    rig.bench.close()


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cpu"])
def test_nodes_are_searched_by_the_name_of_the_device_and_judged_by_its_environment(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    asked: list[object] = []
    cluster = FakeBenchCluster("node", make=lambda settings: StubNode(settings, measured))

    def connect(farm: str, *, on_gpu: bool) -> FakeBenchCluster:
        asked.extend((farm, on_gpu))
        return cluster

    def known_by(resources: Sequence[str]) -> list[str]:
        asked.append(tuple(resources))
        return cluster.names

    monkeypatch.setattr(bench_module, "find_spec", str)
    monkeypatch.setattr(bench_module, "BenchCluster", connect)
    monkeypatch.setattr(cluster, "known_by", known_by)
    monkeypatch.setattr(finder, "_AGAIN_S", 0.0)
    environment = {"device": {"name": "NVIDIA H200"}}
    there = NodeFacts("node", __version__, {"device": {"name": "NVIDIA H100"}})
    monkeypatch.setattr(StubNode, "facts_answer", NodeAnswer(there))
    bench = on_nodes("ray:auto", replace(SETTINGS, device=device), environment)
    assert "device.name is 'NVIDIA H100' there and 'NVIDIA H200' here" in str(
        bench.why_not_available()
    )
    monkeypatch.setattr(
        StubNode, "facts_answer", NodeAnswer(replace(there, environment=environment))
    )
    assert bench.why_not_available() is None
    resources = ("inductor-plugin:NVIDIA_H200", "accelerator_type:H200")
    assert asked[:3] == ["ray:auto", device != "cpu", resources]
    bench.close()
