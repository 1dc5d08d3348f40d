"""Builds begin by their rank, and only as many at once as the workers need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

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
