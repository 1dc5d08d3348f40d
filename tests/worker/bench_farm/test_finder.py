"""How long a free node is searched for. None of this needs Ray."""

from __future__ import annotations

import sys

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.bench_farm import cluster as cluster_module
from inductor_plugin.worker.bench_farm import finder as finder_module
from inductor_plugin.worker.bench_farm.cluster import BenchCluster, rotated
from inductor_plugin.worker.bench_farm.finder import NodeFinder, NodeLostError
from inductor_plugin.worker.jobs import WorkerSettings
from tests.support.fakes.nodes import FakeBenchCluster
from tests.support.fakes.ray import FakeRay
from tests.support.fakes.waiting import FakeClock


def test_nodes_whose_devices_others_have_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = FakeBenchCluster(*"abcdefgh"), FakeClock()

    def busy(limit_s: float) -> None:
        clock.now += limit_s

    monkeypatch.setattr(finder_module, "time", clock)
    cluster.busy, cluster.error = busy, NodeLostError("others measure")
    finder = NodeFinder(lambda: cluster, ("gpu",), WorkerSettings((), "bench"), lambda _: "")
    started = clock.now
    with pytest.raises(WorkerError, match="2 others were not asked in 120 s"):
        finder.node()
    assert clock.now - started == 120.0
    assert cluster.limits == [(name, 20.0) for name in "abcdef"]
    with pytest.raises(WorkerError):
        finder.node()
    assert [name for name, _ in cluster.limits[6:]] == list("ghabcd")
    cluster.names, cluster.limits = ["a", "b"], []
    with pytest.raises(WorkerError):
        finder.node()
    assert sorted(cluster.limits) == [("a", 60.0), ("b", 60.0)]
    finder.close()


def test_each_process_begins_with_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [rotated("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert rotated("abc", 1) == ["b", "c", "a"]
    assert rotated("", 1) == []
    ray = FakeRay()
    known = [
        {"NodeID": name, "Alive": True, "Resources": {resource: 1.0}}
        for name, resource in (("x", "own"), ("p", "type"), ("y", "own"), ("q", "type"))
    ]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray, "nodes", lambda: known)
    monkeypatch.setattr(cluster_module, "_own_number", lambda: 3)
    cluster = BenchCluster("ray:auto", on_gpu=True)
    assert cluster.known_by(("own", "type")) == ["y", "x", "q", "p"]
    cluster.close()
