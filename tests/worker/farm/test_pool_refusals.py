"""Which nodes are tried with a job that one has refused. None of this needs Ray."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm import flight as flight_module
from inductor_plugin.worker.farm import pool as pool_module
from inductor_plugin.worker.farm import refusals as refusals_module
from inductor_plugin.worker.jobs import CppCompileJob
from tests.support.fakes.farm import Rig, a_rig, delivery, refused_by
from tests.support.fakes.waiting import FakeClock, until

__all__ = ["a_rig"]  # the fixture


def test_a_job_that_a_node_refuses_is_tried_on_the_others(rig: Rig) -> None:
    rig.nodes.names = ["x", "y", "z"]
    rig.submit("a")
    until(lambda: rig.nodes.started == ["a"])
    rig.nodes.end(1, refused_by("x"))
    until(lambda: len(rig.nodes.started) == 2)
    rig.nodes.end(2, refused_by("y"))
    until(lambda: len(rig.nodes.started) == 3)
    rig.nodes.end(3)
    until(lambda: rig.status() == {"a": ("ok", "")})
    rig.submit("b")  # which needs the same
    until(lambda: len(rig.nodes.started) == 4)
    assert rig.nodes.without == [set(), {"x"}, {"x", "y"}, {"x", "y"}]
    job = CppCompileJob(
        (CppSource("c", "", "kernel"),), ("cc", str(rig.folder)), str(rig.folder), 1.0
    )
    rig.pool.submit(job, rig.answers.extend)  # which needs something else
    until(lambda: len(rig.nodes.started) == 5)
    assert rig.nodes.without[4] == set()
    assert rig.local.jobs == []


def test_a_job_that_all_nodes_refuse_is_compiled_here(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.nodes.names = ["x", "y"]
    rig.submit("a")
    until(lambda: len(rig.nodes.started) == 1)
    rig.nodes.end(1, refused_by("x"))
    until(lambda: len(rig.nodes.started) == 2)
    rig.nodes.end(2, refused_by("y"))
    until(lambda: rig.status().get("a", ("", ""))[0] == "ok")
    assert "the rest is compiled here: host of y: torch is older there" in caplog.text
    rig.submit("b")
    until(lambda: rig.status().get("b", ("", ""))[0] == "ok")
    assert (len(rig.local.jobs), len(rig.nodes.started)) == (2, 2)
    assert rig.nodes.sent == 1  # the second stays here


def test_two_jobs_that_one_node_refuses_both_go_to_another(rig: Rig) -> None:
    rig.nodes.names = ["x", "y"]
    for name in "ab":
        rig.submit(name)
    until(lambda: len(rig.nodes.started) == 2)
    for number in (1, 2):
        rig.nodes.end(number, refused_by("x"))
    until(lambda: len(rig.nodes.started) == 4)
    assert rig.nodes.without[2:] == [{"x"}, {"x"}]
    assert rig.local.jobs == []


def test_a_node_that_refuses_a_job_twice_is_not_asked_for_ever(rig: Rig) -> None:
    rig.nodes.names = ["x", "y"]
    rig.submit("a")
    until(lambda: len(rig.nodes.started) == 1)
    rig.nodes.end(1, refused_by("x"))
    until(lambda: len(rig.nodes.started) == 2)
    rig.nodes.end(2, refused_by("x"))  # which it was not to be sent to
    until(lambda: rig.status().get("a", ("", ""))[0] == "ok")
    assert len(rig.local.jobs) == 1


def test_a_second_copy_that_is_refused_leaves_the_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", 0.2)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.05)
    rig.submit("quick")
    until(lambda: rig.nodes.started == ["quick"])
    rig.nodes.end(1)
    rig.submit("slow")
    until(lambda: rig.nodes.started == ["quick", "slow", "slow"])
    rig.nodes.end(3, refused_by("x"))
    until(lambda: rig.nodes.tried > 3)  # a third copy, which nobody takes
    rig.nodes.end(2)
    until(lambda: rig.status().get("slow", ("", ""))[0] == "ok")
    assert (rig.nodes.cancelled, rig.local.jobs) == ([], [])


def test_a_node_without_memory_is_asked_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals_module, "_PAUSE_S", 0.0)
    rig.nodes.names = ["x", "y"]
    rig.submit("a")
    until(lambda: len(rig.nodes.started) == 1)
    rig.nodes.end(1, refused_by("x", passing=True))
    until(lambda: len(rig.nodes.started) == 2)
    rig.nodes.end(2)
    rig.submit("b")
    until(lambda: len(rig.nodes.started) == 3)
    assert rig.nodes.without == [set(), {"x"}, set()]


def test_a_job_whose_only_node_is_lost_is_started_on_another_once(rig: Rig) -> None:
    """Ray runs it again only where it may choose the node."""
    rig.nodes.names = ["x", "y", "z"]
    rig.submit("a")
    until(lambda: len(rig.nodes.started) == 1)
    rig.nodes.end(1, refused_by("x"))
    until(lambda: len(rig.nodes.started) == 2)
    rig.nodes.end(2, "TaskUnschedulableError: its node has died")
    until(lambda: len(rig.nodes.started) == 3)
    assert rig.local.jobs == []
    rig.nodes.end(3, "TaskUnschedulableError: its node has died")
    until(lambda: rig.status().get("a", ("", ""))[0] == "ok")
    assert (len(rig.local.jobs), len(rig.nodes.started)) == (1, 3)


def test_a_second_copy_that_is_lost_leaves_the_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", 0.05)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    rig.submit("quick")
    until(lambda: 1 in rig.nodes.running)
    rig.nodes.end(1, replace(delivery(rig.nodes.running[1][0], "x"), elapsed_s=0.0))
    rig.submit("slow")
    until(lambda: rig.nodes.started[:3] == ["quick", "slow", "slow"])
    rig.nodes.end(3, "WorkerCrashedError: it died four times")
    until(lambda: len(rig.nodes.started) == 4)  # another copy
    rig.nodes.end(2)
    until(lambda: rig.status().get("slow", ("", ""))[0] == "ok")
    assert rig.local.jobs == []


def test_no_more_stragglers_are_started_again_than_there_are_idle_cpus(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", 0.02)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    rig.submit("quick")
    until(lambda: 1 in rig.nodes.running)
    rig.nodes.end(1, replace(delivery(rig.nodes.running[1][0], "x"), elapsed_s=0.0))
    for name in "abc":
        rig.submit(name)
    until(lambda: len(rig.nodes.started) == 4)  # one more than there are CPUs
    time.sleep(0.1)
    assert sorted(rig.nodes.started) == ["a", "b", "c", "quick"]


def test_the_answer_of_a_job_whose_time_is_over_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way, with the kernels that were in time."""
    clock = FakeClock()
    monkeypatch.setattr(pool_module, "time", clock)
    rig.submit("a", ends=lambda: clock.now + 1.0)
    until(lambda: rig.nodes.started == ["a"])
    assert rig.nodes.limits_s == [1.0]
    clock.now += 3.0
    rig.submit("b")
    until(lambda: rig.nodes.started == ["a", "b"])  # a turn later
    assert rig.nodes.limits_s[1] == math.inf
    rig.nodes.end(1)
    until(lambda: rig.status() == {"a": ("ok", "")})


def test_what_is_compiled_here_has_its_memory_its_rank_and_its_limit(rig: Rig) -> None:
    rig.submit("a")
    until(lambda: rig.nodes.memory == [1 << 30])  # the pool's default
    rig.nodes.error = ConnectionError("the head is gone")
    ends = time.monotonic() + 60.0
    job = CppCompileJob((CppSource("c", "", "kernel"),), ("cc",), str(rig.folder), 1.0)
    rig.pool.submit(job, rig.answers.extend, 5 << 20, 3.0, lambda: ends)
    until(lambda: rig.status().get("c", ("", ""))[0] == "ok")
    assert rig.nodes.memory == [1 << 30, 5 << 20]
    assert (rig.local.memory, rig.local.ranks, rig.local.limits) == ([5 << 20], [3.0], [ends])


def test_jobs_on_their_way_are_kept_in_the_order_in_which_they_were_sent(rig: Rig) -> None:
    """Those sent at the same time are doubled, or compiled here, in it, too: a simulation is the same twice."""
    rig.nodes.cpus = 12
    for number in range(12):
        rig.submit(f"job {number}", rank=float(number))
    until(lambda: len(rig.nodes.started) == 12)
    rig.pool.close()
    assert rig.nodes.cancelled == list(range(1, 13))
