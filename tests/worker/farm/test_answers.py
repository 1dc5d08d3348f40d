"""What becomes of a job whose node has skipped it for what the node lacks, or has sent something else. None of this needs Ray."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

import pytest

from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm.flight import MOST_FAULTS, Flight, stragglers
from inductor_plugin.worker.farm.parcel import Delivery
from inductor_plugin.worker.jobs import OUT_OF_TIME, Compiled, CppCompileJob
from tests.support.fakes.farm import Rig, a_rig, delivery
from tests.support.fakes.waiting import FakeClock, until

__all__ = ["a_rig"]  # the fixture

FULL = "cannot write: No space left on device"


def skipped_by(node: str, *keys: str, reason: str = FULL) -> Delivery:
    compiled = tuple(Compiled(key, "skipped", reason) for key in keys)
    return Delivery(compiled, {}, f"host of {node}", node=node, elapsed_s=0.01)


def a_batch(rig: Rig) -> CppCompileJob:
    folder = rig.folder / "batch"
    folder.mkdir()
    sources = tuple(CppSource(key, "", "kernel") for key in "ab")
    return CppCompileJob(sources, ("cc",), str(folder), 60.0)


def half_of_it() -> Delivery:
    answer = skipped_by("x", "a", "b")
    fine = Compiled("b", "ok", library="b.so", symbol="kernel")
    return replace(answer, compiled=(answer.compiled[0], fine), files={"b.so": b"of x"})


def test_a_node_whose_disk_is_full_does_not_take_all_jobs(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends them at once, and gets the next ones for that."""
    rig.nodes.names = ["x", "y"]
    rig.submit("a")
    rig.nodes.end(1, skipped_by("x", "a"))
    until(lambda: len(rig.nodes.started) == 2)
    rig.submit("b")
    until(lambda: len(rig.nodes.started) == 3)
    assert rig.nodes.without == [set(), {"x"}, {"x"}]
    for number in (2, 3):
        rig.nodes.end(number)
    until(lambda: rig.status() == {"a": ("ok", ""), "b": ("ok", "")})
    assert rig.local.jobs == []
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning == (
        f"inductor-plugin: a node of the farm gets no such jobs for a while: host of x: {FULL}"
    )


def test_a_job_that_two_nodes_skip_is_compiled_here(rig: Rig) -> None:
    """It may be what breaks them; so it does not go through all of a thousand."""
    rig.nodes.names = ["x", "y", "z"]
    rig.submit("a")
    rig.nodes.end(1, skipped_by("x", "a"))
    rig.nodes.end(2, skipped_by("y", "a", reason="its worker: crashed: it was killed"))
    until(lambda: rig.status() == {"a": ("ok", "")})
    assert (len(rig.local.jobs), len(rig.nodes.started)) == (1, 2)


def test_a_job_that_the_only_node_skips_is_compiled_here(rig: Rig) -> None:
    rig.submit("a")
    rig.nodes.end(1, skipped_by("x", "a"))
    until(lambda: rig.status() == {"a": ("ok", "")})
    assert (len(rig.local.jobs), len(rig.nodes.started)) == (1, 1)


def test_what_a_node_sends_for_another_job_is_compiled_by_another_node(rig: Rig) -> None:
    rig.nodes.names = ["x", "y"]
    rig.submit("a")
    rig.nodes.end(1, replace(skipped_by("x"), compiled=(Compiled("z", "ok"),)))
    rig.nodes.end(2)
    until(lambda: rig.status() == {"a": ("ok", "")})
    assert rig.nodes.without == [set(), {"x"}]
    assert rig.local.jobs == []


def test_a_file_outside_of_the_jobs_folder_is_not_written(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.submit("a")
    until(lambda: rig.nodes.started == ["a"])
    rig.nodes.end(1, delivery(rig.nodes.running[1][0], "x", "../outside.so"))
    until(lambda: rig.status() == {"a": ("ok", "")})
    assert len(rig.local.jobs) == 1
    assert "outside of the job's folder" in caplog.text
    assert not (rig.folder / "outside.so").exists()


@pytest.mark.parametrize(
    ("status", "reason"),
    [("skipped", OUT_OF_TIME), ("compile_failed", FULL), ("crashed", "it was killed")],
)
def test_what_is_no_fault_of_the_node_is_the_answer(rig: Rig, status: str, reason: str) -> None:
    answer = skipped_by("x", "a", reason=reason)
    compiled = replace(answer.compiled[0], status=status)
    rig.submit("a")
    rig.nodes.end(1, replace(answer, compiled=(compiled,)))
    until(lambda: rig.status() == {"a": (status, reason)})
    rig.submit("b")
    until(lambda: rig.nodes.without == [set(), set()])
    assert rig.local.jobs == []


def test_a_batch_of_which_a_node_skips_a_kernel_is_compiled_again(rig: Rig) -> None:
    rig.nodes.names = ["x", "y"]
    job = a_batch(rig)
    rig.pool.submit(job, rig.answers.extend)
    rig.nodes.end(1, half_of_it())
    fine = tuple(Compiled(key, "ok", library="unit.so", symbol="kernel") for key in "ab")
    rig.nodes.end(2, Delivery(fine, {"unit.so": b"of y"}, "host of y", node="y"))
    until(lambda: rig.status() == {"a": ("ok", ""), "b": ("ok", "")})
    assert {each.library for each in rig.answers} == {f"{job.workdir}/unit.so"}


def test_of_a_batch_whose_time_is_over_what_is_fine_is_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("inductor_plugin.worker.farm.pool.time", clock)
    rig.nodes.names = ["x", "y"]
    rig.pool.submit(a_batch(rig), rig.answers.extend, until=lambda: clock.now + 1.0)
    until(lambda: 1 in rig.nodes.running)
    clock.now += 2.0
    rig.nodes.end(1, half_of_it())
    until(lambda: rig.status() == {"a": ("skipped", FULL), "b": ("ok", "")})
    rig.submit("c", ends=lambda: clock.now + 1.0)
    until(lambda: 2 in rig.nodes.running)
    clock.now += 2.0
    rig.nodes.end(2, skipped_by("y", "another"))
    until(lambda: rig.status().get("c", ("", ""))[0] == "skipped")
    assert "host of y: what it sent is not kept" in rig.status()["c"][1]
    assert (len(rig.nodes.started), rig.local.jobs) == (2, [])


def test_a_disk_of_this_machine_that_is_full_is_no_fault_of_a_node(rig: Rig) -> None:
    rig.nodes.names = ["x", "y"]
    rig.submit("a")
    until(lambda: 1 in rig.nodes.running)
    (rig.folder / "a" / "kept.so").mkdir()  # so that the file cannot be written
    answer = delivery(rig.nodes.running[1][0], "", "kept.so")
    rig.nodes.end(1, replace(answer, node="x"))
    until(lambda: rig.status() == {"a": ("ok", "")})
    assert len(rig.local.jobs) == 1
    rig.submit("b")
    until(lambda: rig.nodes.without == [set(), set()])


def test_a_job_at_which_two_nodes_have_failed_gets_no_further_copies(rig: Rig) -> None:
    flight = Flight(a_batch(rig), rig.answers.extend, 0, 0.0, None, tasks=["one left"])
    flight.started = time.monotonic() - 1000.0
    assert stragglers([flight], deque([1.0])) == [flight]
    flight.faults = MOST_FAULTS
    assert stragglers([flight], deque([1.0])) == []


def test_a_copy_that_is_skipped_leaves_the_first(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inductor_plugin.worker.farm.flight._STRAGGLER_S", 0.05)
    monkeypatch.setattr("inductor_plugin.worker.farm.pool._LOOK_S", 0.01)
    rig.submit("quick")
    rig.nodes.end(1)
    rig.submit("slow")
    until(lambda: rig.nodes.started == ["quick", "slow", "slow"])
    rig.nodes.end(3, skipped_by("x", "slow"))
    until(lambda: rig.nodes.tried > 3)  # a third copy, which nobody takes
    rig.nodes.end(2)
    until(lambda: rig.status().get("slow", ("", ""))[0] == "ok")
    assert (rig.nodes.cancelled, rig.local.jobs) == ([], [])
