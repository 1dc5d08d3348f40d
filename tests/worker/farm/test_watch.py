"""What a process sends to a cluster on which others compile, too; what it sees of that steers it."""

from __future__ import annotations

import math
import time

import pytest

from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm import flight as flight_module
from inductor_plugin.worker.farm import pool as pool_module
from inductor_plugin.worker.farm import watch as watch_module
from inductor_plugin.worker.farm.flight import Flight
from inductor_plugin.worker.farm.watch import Watch
from inductor_plugin.worker.farm.window import Load
from inductor_plugin.worker.jobs import CppCompileJob
from tests.support.fakes.farm import FakeNodes, Rig, a_rig
from tests.support.fakes.waiting import FakeClock, unfinished, until

__all__ = ["a_rig"]  # the fixture


def test_where_others_compile_too_a_process_keeps_what_runs_and_a_task_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent early may start before a longer job that is submitted later."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)

    def look() -> None:
        seen = rig.nodes.looks
        until(lambda: rig.nodes.looks > seen + 1)  # the first of them may have begun before

    rig.nodes.cpus, rig.nodes.does = 64, Load(free=64, running=0)
    for number in range(40):
        rig.submit(f"{number}")
    until(lambda: len(rig.nodes.running) == 40)  # all, in some looks
    rig.nodes.does = Load(free=0, running=3)
    look()
    for number in range(40, 80):
        rig.submit(f"{number}")
    for number in range(1, 60):
        rig.nodes.end(number)
        look()
    assert len(rig.nodes.running) == 5  # three that run, and one for 32 CPUs
    rig.submit("heavy", 9.0)
    rig.nodes.end(60)
    until(lambda: rig.nodes.started[-1] == "heavy")
    (sender,) = rig.nodes.senders
    assert all(parcel.key.startswith(sender) for parcel, _ in rig.nodes.running.values())


def test_a_straggler_is_not_started_again_where_all_cpus_compile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", 0.05)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    rig.nodes.does = Load(free=0, running=1)
    rig.submit("quick")
    until(lambda: rig.nodes.started == ["quick"])
    rig.nodes.end(1)
    rig.submit("slow")
    until(lambda: rig.nodes.started == ["quick", "slow"])
    time.sleep(0.2)
    assert rig.nodes.started == ["quick", "slow"]
    rig.nodes.does = Load(free=1, running=1)
    until(lambda: rig.nodes.started == ["quick", "slow", "slow"])


def test_a_cluster_that_begins_nothing_leaves_all_to_the_cores_that_are_idle_here(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is not sent, since no CPU is free: sent after a minute, it would wait another one."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(pool_module, "_BEGIN_S", 0.2)
    rig.nodes.cpus, rig.nodes.does = 64, Load(free=0, running=0)
    late = iter([math.inf, -1.0])
    for number in range(20):
        rig.submit(f"{number}", ends=lambda: next(late, math.inf))
    until(lambda: len(rig.answers) == 20)
    assert {status for status, _ in rig.status().values()} == {"ok", "skipped"}
    assert len(rig.local.jobs) == 19
    assert len(rig.nodes.started) < 12
    until(lambda: unfinished(rig.pool) == 0)


def test_a_pool_that_was_idle_for_long_sends_its_next_job_to_the_cluster(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not looked for as long: that is no cluster that begins nothing."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(pool_module, "_BEGIN_S", 0.1)
    rig.nodes.does = Load(free=2, running=0)
    rig.submit("first")
    until(lambda: rig.nodes.started == ["first"])
    rig.nodes.end(1)
    until(lambda: unfinished(rig.pool) == 0)
    time.sleep(0.2)
    rig.submit("second")
    until(lambda: rig.nodes.started == ["first", "second"])
    assert rig.local.jobs == []


def test_the_time_in_which_there_was_nothing_to_compile_is_none_without_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, nodes = FakeClock(), FakeNodes(2)
    monkeypatch.setattr(watch_module, "time", clock)
    nodes.does = Load(free=0, running=0)
    watch = Watch()
    clock.now += 100.0  # an idle pool does not look
    watch.look(nodes, 2, [], 1.0)  # before it sends its next job
    job = CppCompileJob((CppSource("a", "", "kernel"),), ("cc",), "", 60.0)
    flight = Flight(job, lambda _: None, 0, 0.0, None, key=watch.new_key())
    clock.now += 2.0
    watch.look(nodes, 2, [flight], 1.0)
    assert watch.unserved_s([flight]) == 2.0
    assert watch.unserved_s([]) == 0.0
