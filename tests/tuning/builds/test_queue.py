"""Builds begin by their rank, and only as many at once as the workers need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inductor_plugin.tuning.builds import queue as queue_module
from inductor_plugin.tuning.builds.item import BuildItem
from inductor_plugin.tuning.builds.queue import LEAD, SPARE, BuildQueue, Work
from tests.support.fakes.tasks import cpp_build, entry, task, triton_job
from tests.support.fakes.waiting import until
from tests.support.fakes.workers import FakePool


def work(name: str, *, cpp: bool = False) -> Work:
    candidate = entry(name, build=cpp_build(name) if cpp else triton_job(name))
    return [BuildItem(task([candidate]), candidate, lambda: None)], lambda: None


def name_of(items: Sequence[BuildItem]) -> str:
    return items[0].candidate.name


def test_no_more_builds_are_in_progress_than_keep_the_workers_busy() -> None:
    gate, running = threading.Event(), list[str]()

    def run(items: Sequence[BuildItem], build: Callable[[], None]) -> None:
        running.append(name_of(items))
        gate.wait()

    pool: Any = FakePool(workers=2)
    queue = BuildQueue(pool, run)
    queue.add([work(str(number)) for number in range(50)])
    most = LEAD * pool.workers + SPARE
    until(lambda: len(running) == most)
    queue.add([work("late")])
    assert len(running) == most
    gate.set()
    until(lambda: len(running) == 51)
    queue.add([work("last")])  # no thread is left
    until(lambda: running[-1] == "last")


def test_a_large_cluster_has_no_thread_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MOST", 3)
    gate, running = threading.Event(), list[str]()

    def run(items: Sequence[BuildItem], build: Callable[[], None]) -> None:
        running.append(name_of(items))
        gate.wait()

    pool: Any = FakePool(workers=10_000)
    queue = BuildQueue(pool, run)
    queue.add([work(str(number)) for number in range(20)])
    until(lambda: len(running) == 3)
    queue.add([work("late")])
    assert len(running) == 3
    gate.set()
    until(lambda: len(running) == 21)


def test_where_the_system_starts_no_further_thread_those_that_run_build_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, start, left = list[str](), threading.Thread.start, [1]

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    def run(items: Sequence[BuildItem], build: Callable[[], None]) -> None:
        begun.append(name_of(items))

    monkeypatch.setattr(threading.Thread, "start", limited)
    pool: Any = FakePool(workers=2)
    queue = BuildQueue(pool, run)
    queue.add([work(str(number)) for number in range(20)])
    until(lambda: len(begun) == 20)
    until(lambda: not threads_of_builds())
    with pytest.raises(RuntimeError, match="start new thread"):
        queue.add([work("lost")])
    left.append(1)
    queue.add([work("next")])
    until(lambda: begun[20:] == ["next"])


def threads_of_builds() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "inductor-plugin-build"]


def test_the_long_builds_come_first_since_the_last_is_waited_for() -> None:
    gate, begun = threading.Event(), list[str]()

    def run(items: Sequence[BuildItem], build: Callable[[], None]) -> None:
        gate.wait()
        begun.append(name_of(items))

    pool: Any = FakePool(workers=-SPARE // LEAD + 1)  # one or two threads
    queue = BuildQueue(pool, run)
    queue.add([work("first"), work("short"), work("long", cpp=True)])
    queue.add([work("longer", cpp=True)])
    gate.set()
    until(lambda: len(begun) == 4)
    assert begun.index("longer") < begun.index("short")
