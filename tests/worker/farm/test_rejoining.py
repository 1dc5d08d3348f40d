"""When a lost cluster is tried again."""

from __future__ import annotations

import threading

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.farm import rejoining as rejoining_module
from inductor_plugin.worker.farm.rejoining import Rejoining
from tests.support.fakes.farm import FakeNodes
from tests.support.fakes.waiting import FakeClock


def test_a_cluster_is_tried_again_a_minute_after_the_last_attempt_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, done = FakeClock(), threading.Event()

    def connect() -> FakeNodes:
        clock.now += 30.0  # it takes its time
        raise WorkerError("no route")

    monkeypatch.setattr(rejoining_module, "time", clock)
    rejoining = Rejoining(connect, done.set)
    for seconds, starts in ((59.0, False), (2.0, True), (59.0, False), (2.0, True)):
        clock.now += seconds
        done.clear()
        rejoining.start(None)
        assert done.wait(10.0 if starts else 0.05) is starts
    assert rejoining.taken() is None


def test_a_connection_that_comes_too_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    late, gate, done = FakeNodes(1), threading.Event(), threading.Event()

    def connect() -> FakeNodes:
        gate.wait(10)
        return late

    monkeypatch.setattr(rejoining_module, "_AGAIN_S", -1.0)
    rejoining = Rejoining(connect, done.set)
    rejoining.start(None)
    rejoining.start(None)  # one is on its way
    rejoining.close()
    gate.set()
    assert done.wait(10)
    assert late.closed
    assert rejoining.taken() is None


def test_a_connection_that_nobody_has_taken_is_ended_and_no_other_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, calls, done = FakeNodes(1), list[int](), threading.Event()

    def connect() -> FakeNodes:
        calls.append(1)
        return there

    monkeypatch.setattr(rejoining_module, "_AGAIN_S", -1.0)
    rejoining = Rejoining(connect, done.set)
    rejoining.start(None)
    assert done.wait(10)
    rejoining.close()
    assert there.closed
    done.clear()
    rejoining.start(None)
    assert not done.wait(0.05)
    assert calls == [1]
    unable = Rejoining(None, done.set)  # where that is not tried again
    unable.start(there)
    assert not done.wait(0.05)
