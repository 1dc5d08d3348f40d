"""Compiling and measuring at the same time, or in turns where one disturbs the other; memory between problems."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from inductor_plugin.cache import open_store
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import Task
from tests.support.fakes.pipeline import Rig, Rigs, spans
from tests.support.fakes.tasks import cpp_build, entry, task, triton_job
from tests.support.fakes.waiting import LIMIT_S, until
from tests.support.fakes.workers import FakePool


def test_measuring_starts_with_the_first_ready_candidate_while_others_compile(
    rigs: Rigs, tmp_path: Path
) -> None:
    pool: Any = FakePool(compile_s=0.15)
    trace = SpanTrace("trace.json")
    builder = Builder(open_store(tmp_path), pool, Counters(), trace, LIMIT_S)
    rig = rigs(builder)
    rig.bench.during = lambda _name: time.sleep(0.03)
    names = [f"k{i}" for i in range(3)]
    pending = task(
        [entry("library", library=True), *(entry(n, build=triton_job(n)) for n in names)]
    )
    assert rig.run(pending)
    measured = spans(rig.trace, "measure")
    compiles = spans(trace, "compile")
    assert len(compiles) == 3
    assert any(a < d and c < b for a, b in measured for c, d in compiles)


def test_on_a_cpu_nothing_is_measured_while_anything_compiles(rigs: Rigs, tmp_path: Path) -> None:
    pool: Any = FakePool(workers=2, compile_s=0.02)
    trace = SpanTrace("trace.json")
    builder = Builder(open_store(tmp_path), pool, Counters(), trace, LIMIT_S)
    rig = rigs(builder, device="cpu")
    compiling_meanwhile: list[int] = []

    def look(_name: str) -> None:
        for _ in range(5):
            compiling_meanwhile.append(pool.running)
            time.sleep(0.002)

    rig.bench.during = look

    def compile_one(index: int) -> bool:
        """Do what one of several threads that compile models at once does."""
        entries = [entry(f"lib{index}", library=True)]
        entries += [entry(n, build=cpp_build(n)) for n in (f"a{index}", f"b{index}", f"c{index}")]
        return rig.run(task(entries, exclusive=True, digest=f"problem {index}"))

    answers: list[bool] = []

    def run(index: int) -> None:
        answers.append(compile_one(index))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join(LIMIT_S)
    assert answers == [True] * 4
    assert len(rig.bench.screened) == 16
    assert max(compiling_meanwhile) == 0
    compiles = spans(trace, "compile")
    assert compiles
    assert not any(a < d and c < b for a, b in spans(rig.trace, "measure") for c, d in compiles)


def test_on_a_cpu_a_compile_asked_for_while_measuring_starts_afterwards(
    rigs: Rigs, tmp_path: Path
) -> None:
    pool: Any = FakePool()
    builder = Builder(open_store(tmp_path), pool, Counters(), SpanTrace(), LIMIT_S)
    rig = rigs(builder, device="cpu")
    other = task([entry("k", build=cpp_build("k"))], digest="of another thread")
    jobs: list[int] = []

    def submit_more(_name: str) -> None:
        builder.add(other, other.entries[0], lambda: None)
        builder.flush()
        time.sleep(0.05)
        jobs.append(len(pool.jobs))

    rig.bench.during = submit_more
    assert rig.run(task([entry("x")], exclusive=True))
    assert jobs == [0]
    until(lambda: other.entries[0].ready)


def test_on_a_cpu_nothing_is_measured_before_anyone_waits(rig: Rig) -> None:
    pending = task([entry("library", library=True)], exclusive=True)
    rig.pipeline.submit(pending)
    time.sleep(0.12)
    assert rig.bench.screened == []
    assert rig.pipeline.wait(pending, LIMIT_S)
    assert rig.bench.screened == ["library"]


def test_on_a_cpu_the_next_problem_waits_until_it_is_waited_for(rig: Rig) -> None:
    first = task([entry("x")], exclusive=True, digest="1")
    second = task([entry("y")], exclusive=True, digest="2")
    rig.pipeline.submit(first)
    rig.pipeline.submit(second)
    assert rig.pipeline.wait(first, LIMIT_S)
    time.sleep(0.12)
    assert rig.bench.screened == ["x"]
    assert rig.pipeline.wait(second, LIMIT_S)


def test_waiting_starts_what_was_held_back(rig: Rig) -> None:
    assert rig.run(task([entry("library", library=True)]))
    assert rig.build.flushed


def test_what_is_submitted_while_it_is_waited_for_is_built_at_once(
    rigs: Rigs, tmp_path: Path
) -> None:
    pool: Any = FakePool()
    rig = rigs(Builder(open_store(tmp_path), pool, Counters(), SpanTrace(), LIMIT_S))
    pending = task([entry("library", library=True), entry("k", build=cpp_build("k"))])
    waits = threading.Thread(target=rig.pipeline.wait, args=(pending, LIMIT_S), daemon=True)
    waits.start()
    untyped: Any = rig.pipeline
    until(lambda: bool(untyped._awaited))
    rig.pipeline.submit(pending)
    waits.join(2 * LIMIT_S)
    assert not waits.is_alive()
    assert pending.error == ""
    assert sorted(rig.bench.screened) == ["k", "library"]


def test_memory_is_given_back_before_anybody_goes_on(rigs: Rigs) -> None:
    """The user's first step may need all of the GPU. While more is to be measured, the operands stay."""
    rig, given_back = rigs(), list[int]()
    many = [task([entry("library", library=True)], digest=str(i)) for i in range(3)]

    def first_alone(_name: str) -> None:
        if len(rig.bench.screened) == 1:
            for queued in many[1:]:
                rig.pipeline.submit(queued)

    rig.bench.during = first_alone
    release = rig.bench.release

    def released() -> None:
        given_back.append(sum(queued.done.is_set() for queued in many))
        release()

    rig.bench.release = released  # type: ignore[method-assign]
    rig.pipeline.submit(many[0])
    assert all(rig.pipeline.wait(queued, LIMIT_S) for queued in many)
    assert given_back == [2]
    late = task([entry("x")], digest="late")
    rig.pipeline.submit(late)
    until(late.done.is_set)
    assert rig.bench.released == 2


def test_on_a_cpu_there_is_no_memory_to_give_back(rigs: Rigs) -> None:
    rig = rigs(device="cpu")
    assert rig.run(task([entry("x")], exclusive=True))
    assert rig.bench.released == 0


def test_memory_is_given_back_after_a_failure_too(rig: Rig) -> None:
    def finish(_task: Task) -> None:
        raise OSError("the disk is gone")

    assert not rig.run(task([entry("x")], finish=finish))
    until(lambda: rig.bench.released == 1)
