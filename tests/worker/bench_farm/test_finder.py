"""How long a free node is searched for. None of this needs Ray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.bench_farm import cluster as cluster_module
from inductor_plugin.worker.bench_farm import finder as finder_module
from inductor_plugin.worker.bench_farm.cluster import BenchCluster, rotated
from inductor_plugin.worker.bench_farm.finder import NodeFinder, NodeLostError
from inductor_plugin.worker.bench_farm.node import NodeAnswer
from inductor_plugin.worker.jobs import WorkerSettings
from tests.support.fakes.nodes import FakeBenchCluster, StubNode
from tests.support.fakes.ray import FakeRay
from tests.support.fakes.waiting import FakeClock, until

SETTINGS = WorkerSettings((), "bench")


def test_nodes_whose_devices_others_have_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = FakeBenchCluster(*"abcdefgh"), FakeClock()

    def busy(limit_s: float) -> None:
        clock.now += limit_s

    monkeypatch.setattr(finder_module, "time", clock)
    cluster.busy, cluster.error = busy, NodeLostError("others measure")
    finder = NodeFinder(lambda: cluster, ("gpu",), SETTINGS, lambda _: None)
    started = clock.now
    with pytest.raises(WorkerError, match="2 others were not asked in 120 s"):
        finder.node()
    assert clock.now - started == 120.0
    assert cluster.limits == [(name, 20.0) for name in "abcdef"]
    clock.now += 61.0
    with pytest.raises(WorkerError):
        finder.node()
    assert [name for name, _ in cluster.limits[6:]] == list("ghabcd")
    cluster.names, cluster.limits = ["a", "b"], []
    clock.now += 61.0
    with pytest.raises(WorkerError):
        finder.node()
    assert sorted(cluster.limits) == [("a", 60.0), ("b", 60.0)]
    finder.close()


def test_a_search_in_vain_is_not_made_again_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each graph with something to measure asks for a node."""
    cluster, clock = stubs("first"), FakeClock()
    monkeypatch.setattr(finder_module, "time", clock)
    finder = NodeFinder(lambda: cluster, ("gpu",), SETTINGS, lambda _: None)
    cluster.error = NodeLostError("others measure")
    for _ in range(3):
        with pytest.raises(WorkerError, match="no node of the farm measures: first: others"):
            finder.node()
        cluster.error = None
        clock.now += 21.0
    assert len(cluster.limits) == 1
    finder.lose(finder.node())
    assert finder.node().host == "first"  # another is searched for at once where a node was lost
    assert len(cluster.limits) == 3
    finder.close()


def test_closing_does_not_wait_for_a_head_and_a_connection_that_comes_later_is_closed() -> None:
    connecting, answer, cluster = threading.Event(), threading.Event(), stubs("first")

    def connect() -> FakeBenchCluster:
        connecting.set()
        assert answer.wait(30.0)
        return cluster

    finder = NodeFinder(connect, ("gpu",), SETTINGS, lambda _: None)
    with ThreadPoolExecutor(2) as pool:
        search = pool.submit(finder.node)
        assert connecting.wait(30.0)
        closed = pool.submit(finder.close)
        try:
            closed.result(10.0)
        finally:
            answer.set()
        with pytest.raises(WorkerError, match="is closed"):
            search.result(30.0)
    assert cluster.closed
    assert cluster.limits == []


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


def stubs(*names: str) -> FakeBenchCluster:
    """Return a cluster whose nodes start no process; the facts of each are its name."""
    cluster = FakeBenchCluster(*names)

    def make(settings: WorkerSettings) -> StubNode:
        stub = StubNode(settings, lambda _: NodeAnswer())
        stub.facts_answer = NodeAnswer(cluster.limits[-1][0])
        return stub

    cluster.make = make
    return cluster


def test_a_node_that_does_not_fit_is_given_back_and_the_next_is_asked() -> None:
    cluster = stubs("old", "right")
    finder = NodeFinder(
        lambda: cluster,
        ("gpu",),
        SETTINGS,
        lambda facts: "too old" if str(facts) == "old" else None,
    )
    assert finder.node().host == "right"
    old, right = cluster.nodes
    assert (old.asked, old.ended) == (["facts", "close"], True)
    assert (right.asked, right.ended) == (["facts"], False)
    finder.close()
    with pytest.raises(WorkerError, match="is closed"):
        finder.node()


def test_why_each_node_does_not_measure_is_said() -> None:
    cluster = stubs("old", "broken", "lost")

    def make(settings: WorkerSettings) -> StubNode:
        stub = StubNode(settings, lambda _: NodeAnswer())
        is_broken = cluster.limits[-1][0] == "broken"
        stub.facts_answer = NodeAnswer(error="no driver") if is_broken else NodeAnswer("facts")
        return stub

    def lose(limit_s: float) -> None:
        if cluster.limits[-1][0] == "lost":
            raise NodeLostError("others measure")

    cluster.make, cluster.busy = make, lose
    finder = NodeFinder(lambda: cluster, ("gpu",), SETTINGS, lambda _: "too old")
    with pytest.raises(WorkerError) as raised:
        finder.node()
    assert str(raised.value) == (
        "no node of the farm measures: old: too old; broken: no driver; lost: others measure"
    )
    assert all(node.ended for node in cluster.nodes)


def test_threads_that_need_a_node_at_once_hold_the_same() -> None:
    """Else a head start and the first job reserve two devices, and nobody gives the first one back."""
    both = threading.Barrier(2)

    def busy(_: float) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for the other thread's search: never, under the lock

    cluster = stubs("first", "second")
    cluster.busy = busy
    finder = NodeFinder(lambda: cluster, ("gpu",), SETTINGS, lambda _: None)
    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(finder.node) for _ in range(2)]
    assert [search.result().host for search in searches] == ["first", "first"]
    assert len(cluster.nodes) == 1
    finder.close()


def test_who_loses_a_former_node_keeps_the_new_one() -> None:
    cluster = stubs("first", "second")
    finder = NodeFinder(lambda: cluster, ("gpu",), SETTINGS, lambda _: None)
    first = finder.node()
    finder.lose(first)
    second = finder.node()
    finder.lose(first)  # as a thread does whose question was on its way
    assert finder.held is second
    assert [node.ended for node in cluster.nodes] == [True, False]
    finder.release()
    finder.release()  # there is none any more
    assert finder.held is None
    assert cluster.nodes[1].asked == ["facts", "close"]


@pytest.mark.parametrize("when", ["it is reserved", "it says what it is"])
def test_a_search_that_is_closed_meanwhile_holds_no_node(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """By another thread, which does not wait for the search."""
    cluster = stubs("first", "second")
    finder = NodeFinder(lambda: cluster, ("gpu",), SETTINGS, lambda _: None)
    closing, hold = threading.Thread(target=finder.close), cluster.hold

    def close(_what: str) -> None:
        if closing.ident is None:
            closing.start()
            until(lambda: cluster.closed)

    def held(node: str, resources: Sequence[str], settings: WorkerSettings, limit_s: float) -> Any:
        fake: Any = hold(node, resources, settings, limit_s)
        if when == "it is reserved":
            close("hold")
            raise NodeLostError("the connection has ended")
        fake.during = close
        return fake

    monkeypatch.setattr(cluster, "hold", held)
    with pytest.raises(WorkerError, match="is closed"):
        finder.node()
    closing.join(10.0)
    assert [name for name, _ in cluster.limits] == ["first"]
    assert finder.held is None
    assert when == "it is reserved" or cluster.nodes[0].ended
