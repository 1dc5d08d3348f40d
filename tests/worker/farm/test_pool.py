"""The pool of a farm on nodes that tests steer: what is lost, refused, late or too much. None of this needs Ray."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm import flight as flight_module
from inductor_plugin.worker.farm import pool as pool_module
from inductor_plugin.worker.farm import rejoining as rejoining_module
from inductor_plugin.worker.farm.flight import is_straggler
from inductor_plugin.worker.farm.parcel import Delivery
from inductor_plugin.worker.farm.pool import FarmPool, on_farm
from inductor_plugin.worker.jobs import OUT_OF_TIME, Compiled, CppCompileJob, WorkerSettings
from tests.support.fakes.farm import FakeNodes, Rig, a_rig
from tests.support.fakes.waiting import unfinished, until

__all__ = ["a_rig"]  # the fixture

SETTINGS = WorkerSettings((), "compile")


def test_no_more_tasks_than_the_cluster_needs_are_sent_and_the_highest_rank_is_next(
    rig: Rig,
) -> None:
    for name, rank in (("a", 0), ("b", 0), ("c", 0)):
        rig.submit(name, rank)
    until(lambda: len(rig.nodes.started) == 3)  # one more than there are CPUs
    rig.submit("light", 1.0)
    rig.submit("heavy", 9.0)
    rig.nodes.end(2)
    until(lambda: len(rig.nodes.started) == 4)
    assert rig.nodes.started[3] == "heavy"
    assert unfinished(rig.pool) == 4
    rig.nodes.cpus = 4  # a node has come
    rig.nodes.end(1)
    until(lambda: "light" in rig.nodes.started)


def test_what_was_made_on_a_node_lies_where_the_job_would_have_put_it(rig: Rig) -> None:
    rig.submit("a")
    until(lambda: rig.nodes.started == ["a"])
    rig.nodes.end(1)
    until(lambda: bool(rig.answers))
    library = rig.answers[0].library
    assert library is not None
    assert Path(library) == rig.folder / "a" / "unit.so"
    assert Path(library).read_text() == "task 1"
    assert unfinished(rig.pool) == 0


@pytest.mark.parametrize("lost", [True, False])
def test_what_no_node_compiles_is_compiled_here(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, lost: bool
) -> None:
    refusal = Delivery((), {}, "node", "torch is '2.11.0' there and '2.14.1' here")
    for name in "ab":
        rig.submit(name)
    until(lambda: len(rig.nodes.started) == 2)
    for number in (1, 2):
        rig.nodes.end(number, "WorkerCrashedError: it died four times" if lost else refusal)
    until(lambda: len(rig.answers) == 2)
    assert {status for status, _ in rig.status().values()} == {"ok"}
    assert len(rig.local.jobs) == 2
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert ("WorkerCrashedError" if lost else "node: torch is '2.11.0' there") in warning
    until(lambda: unfinished(rig.pool) == 0)


def test_a_cluster_that_is_gone_costs_nothing_but_time(rig: Rig) -> None:
    rig.nodes.error = ConnectionError("the cluster is gone")
    rig.submit("a")
    until(lambda: rig.status().get("a", ("", ""))[0] == "ok")
    assert len(rig.local.jobs) == 1


def test_a_straggler_is_started_again_and_the_first_to_end_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", 0.2)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.05)
    rig.submit("quick")
    until(lambda: rig.nodes.started == ["quick"])
    rig.nodes.end(1)  # in 0.1 s
    rig.submit("slow")
    until(lambda: rig.nodes.started == ["quick", "slow", "slow"])
    rig.nodes.end(3)
    until(lambda: len(rig.answers) == 2)
    assert rig.nodes.cancelled == [2]
    rig.nodes.end(2, "TaskCancelledError: it was cancelled")  # late, and no answer any more
    rig.submit("next")
    until(lambda: rig.nodes.started[-1] == "next")
    assert (len(rig.answers), len(rig.local.jobs)) == (2, 0)


def test_a_cluster_that_is_lost_while_a_straggler_is_started_again_stops_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "_STRAGGLER_S", 0.2)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.05)
    rig.submit("quick")
    until(lambda: rig.nodes.started == ["quick"])
    rig.nodes.end(1)
    rig.submit("slow")
    until(lambda: rig.nodes.started == ["quick", "slow"])
    rig.nodes.error = ConnectionError("the head is gone")
    until(lambda: rig.nodes.tried >= 4)  # twice in vain
    rig.submit("here")
    until(lambda: rig.status().get("here", ("", ""))[0] == "ok")
    rig.nodes.error = None
    rig.nodes.end(2)  # its first task was never in doubt
    until(lambda: len(rig.answers) == 3)
    assert {status for status, _ in rig.status().values()} == {"ok"}
    assert len(rig.local.jobs) == 1


def test_jobs_of_a_connection_that_ends_are_compiled_here_though_nobody_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.05)
    for name in "abcd":
        rig.submit(name)
    until(lambda: len(rig.nodes.started) == 3)
    rig.nodes.error = WorkerError("the connection to the cluster has ended")
    rig.nodes.alive = False
    until(lambda: len(rig.answers) == 4)
    assert {status for status, _ in rig.status().values()} == {"ok"}
    assert len(rig.local.jobs) == 4
    rig.nodes.end(1)  # late, and no answer any more
    rig.submit("next")
    until(lambda: len(rig.answers) == 5)
    until(lambda: unfinished(rig.pool) == 0)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "the rest is compiled here: the connection to the cluster has ended" in warning


def test_a_task_that_cannot_be_waited_for_is_given_up(rig: Rig) -> None:
    rig.nodes.deaf = ConnectionError("the head is gone")
    rig.submit("a")
    until(lambda: rig.status().get("a", ("", ""))[0] == "ok")
    assert rig.nodes.cancelled == [1]
    assert len(rig.local.jobs) == 1


def test_a_turn_that_fails_does_not_stop_the_farm(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.05)
    monkeypatch.setattr(rig.nodes, "cpus", "many")
    rig.submit("a")
    until(lambda: "a turn of the compile farm failed" in caplog.text)
    monkeypatch.setattr(rig.nodes, "cpus", 2)
    until(lambda: rig.nodes.started == ["a"])


def test_an_idle_pool_asks_the_cluster_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a request to the head, and a thread."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    rig.submit("a")
    until(lambda: rig.nodes.started == ["a"])
    rig.nodes.end(1)
    until(lambda: unfinished(rig.pool) == 0)
    time.sleep(0.05)  # a turn that has begun ends
    asked = rig.nodes.asked
    time.sleep(0.1)
    assert rig.nodes.asked == asked


def test_who_is_a_straggler() -> None:
    others = deque([2.0, 2.0, 10.0])
    assert not is_straggler(100.0, 1, deque())  # nothing to compare with
    assert not is_straggler(19.0, 1, others)
    assert is_straggler(21.0, 1, others)
    assert not is_straggler(21.0, 8, others)
    assert is_straggler(49.0, 8, others)


def test_a_job_whose_time_is_over_is_not_sent(rig: Rig) -> None:
    rig.submit("late", ends=lambda: time.monotonic() - 1.0)
    until(lambda: rig.status() == {"late": ("skipped", OUT_OF_TIME)})
    assert rig.nodes.started == []


def test_a_job_that_no_node_begins_in_time_is_skipped(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit is one of the task, which counts from when that runs."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(pool_module, "_ON_THE_WAY_S", 0.0)
    ends = time.monotonic() + 0.2
    rig.submit("a", ends=lambda: ends)
    until(lambda: rig.nodes.started == ["a"])
    until(lambda: rig.status() == {"a": ("skipped", OUT_OF_TIME)})
    assert time.monotonic() >= ends
    assert rig.nodes.cancelled == [1]
    assert unfinished(rig.pool) == 0


def test_a_job_whose_time_is_over_is_answered_while_others_are_submitted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job and each answer wakes the pool: it is never quiet then."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.1)
    monkeypatch.setattr(pool_module, "_ON_THE_WAY_S", 0.0)
    ends = time.monotonic() + 0.2
    rig.submit("late", ends=lambda: ends)
    for number in range(30):
        rig.submit(f"{number}")
        time.sleep(0.02)
    assert rig.status() == {"late": ("skipped", OUT_OF_TIME)}


def test_jobs_that_no_node_begins_are_compiled_by_the_cores_that_are_idle_here(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All CPUs of the cluster are somebody else's."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    for name in "abc":
        rig.submit(name)
    until(lambda: len(rig.nodes.running) == 3)
    rig.nodes.begun.add(rig.nodes.running[1][0].key)
    monkeypatch.setattr(rig.local, "idle", 0)
    monkeypatch.setattr(pool_module, "_BEGIN_S", 0.05)
    time.sleep(0.1)
    assert rig.nodes.cancelled == []
    monkeypatch.setattr(rig.local, "idle", 2)
    until(lambda: len(rig.answers) == 2)
    assert sorted(rig.nodes.cancelled) == [2, 3]
    assert {status for status, _ in rig.status().values()} == {"ok"}
    assert "no CPU was free for a job in 0 s" in caplog.text
    rig.nodes.end(1)
    until(lambda: len(rig.answers) == 3)
    assert len(rig.local.jobs) == 2


def test_a_job_that_has_begun_on_a_node_that_is_lost_is_compiled_here(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray begins it again on another node: where there is none, it waits for ever."""
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(pool_module, "_BEGIN_S", 0.05)
    rig.submit("a")
    until(lambda: len(rig.nodes.running) == 1)
    key = rig.nodes.running[1][0].key
    rig.nodes.begun.add(key)
    until(lambda: rig.nodes.questions >= 1)
    assert rig.answers == []
    rig.nodes.begun.remove(key)
    until(lambda: rig.status() == {"a": ("ok", "")})
    assert rig.nodes.cancelled == [1]


def test_closing_answers_every_job_and_disconnects(rig: Rig) -> None:
    for name in "abcd":
        rig.submit(name)
    until(lambda: len(rig.nodes.started) == 3)
    rig.pool.close()
    assert {status for status, _ in rig.status().values()} == {"skipped"}
    assert len(rig.answers) == 4
    assert sorted(rig.nodes.cancelled) == [1, 2, 3]
    assert (rig.nodes.hurried, rig.nodes.closed, rig.local.closed) == (True, True, True)
    with pytest.raises(WorkerError, match="closed"):
        rig.submit("e")


def test_a_pool_whose_thread_does_not_start_has_queued_nothing_and_can_be_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's limit of threads; later one may start."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            rig.submit("a")
        rig.pool.close()
    assert rig.nodes.closed
    local: Any = rig.local
    pool = FarmPool(rig.nodes, local, 0)
    monkeypatch.setattr(rig, "pool", pool)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            rig.submit("b")
    rig.submit("c")
    until(lambda: rig.nodes.started == ["c"])
    rig.nodes.end(1)
    until(lambda: rig.status() == {"c": ("ok", "")})
    assert unfinished(pool) == 0


def test_an_answer_that_raises_does_not_stop_the_farm(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def fail(_: list[Compiled]) -> None:
        raise ValueError("no")

    job = CppCompileJob((CppSource("a", "", "kernel"),), ("cc",), str(rig.folder), 60.0)
    rig.pool.submit(job, fail)
    until(lambda: rig.nodes.started == ["a"])
    rig.nodes.end(1)
    until(lambda: len(raised) == 1)
    rig.submit("b")
    until(lambda: rig.nodes.started == ["a", "b"])


def test_without_ray_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    local = CompilePool(1, SETTINGS, 0)
    with pytest.raises(OptionError, match=r"pip install 'inductor-plugin\[ray\]'"):
        on_farm("ray:auto", SETTINGS, local, 0)


def test_a_farm_that_cannot_be_reached_is_tried_again_and_the_local_pool_compiles_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there: list[FakeNodes] = []

    def cluster(farm: str, _settings: WorkerSettings) -> FakeNodes:
        if not there:
            raise WorkerError(f"the farm {farm} cannot be reached: no route")
        return there[0]

    local: Any = rig.local
    monkeypatch.setattr(pool_module, "Cluster", cluster)
    pool = on_farm("ray://nowhere:10001", SETTINGS, local, 0)
    assert "no route; everything is compiled here" in caplog.text
    assert pool.workers == rig.local.workers
    monkeypatch.setattr(rig, "pool", pool)
    rig.submit("here")
    until(lambda: rig.status() == {"here": ("ok", "")})
    there.append(FakeNodes(5))
    monkeypatch.setattr(rejoining_module, "_AGAIN_S", 0.0)
    rig.submit("starts an attempt")
    until(lambda: pool.workers == 5)
    rig.submit("there")
    until(lambda: there[0].started == ["there"])
    pool.close()
    assert there[0].closed


def test_a_cluster_that_was_lost_compiles_again_once_it_is_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = FakeNodes(5)
    rig.submit("a")
    until(lambda: rig.nodes.started == ["a"])
    rig.nodes.alive = False
    rig.submit("b")
    until(lambda: len(rig.answers) == 2)  # here
    assert not rig.nodes.closed  # it has just been connected
    monkeypatch.setattr(rejoining_module, "_AGAIN_S", 0.0)
    rig.again.append(back)
    rig.submit("c")
    until(lambda: rig.pool.workers == 5)
    assert rig.nodes.closed
    rig.submit("d")
    until(lambda: back.started == ["d"])
    assert len(rig.local.jobs) == 3


def test_a_job_that_comes_while_this_machine_takes_another_has_the_cluster_connected_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends() -> float:
        """Be asked in the turn that takes the job: the second one is taken in the same."""
        monkeypatch.setattr(rejoining_module, "_AGAIN_S", 0.0)
        rig.again.append(FakeNodes(5))
        rig.submit("second")
        return math.inf

    rig.nodes.alive = False
    rig.submit("first", ends=ends)
    until(lambda: rig.pool.workers == 5)
