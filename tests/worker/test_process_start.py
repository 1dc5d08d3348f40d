"""When the process of a worker is started, and how often. None starts here."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker import process as process_module
from inductor_plugin.worker.jobs import WorkerSettings
from inductor_plugin.worker.process import WorkerProcess

SETTINGS = WorkerSettings((), "compile")


class Child:
    """What a worker takes for its process."""

    pid = 7

    def __init__(self, during: Callable[[], object]) -> None:
        during()
        self.owner, self.killed, self.closed = os.getpid(), False, False

    @property
    def alive(self) -> bool:
        return not self.killed and not self.closed

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.closed = True


class Started:
    """The processes that were started; ``during`` is called while one starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[Child] = []
        self.during: Callable[[], object] = lambda: None

        def child(_name: str, _settings: WorkerSettings) -> Child:
            self.children.append(Child(self.during))
            return self.children[-1]

        def initialize(_worker: WorkerProcess, _child: Child) -> None:
            """Be ready at once."""

        monkeypatch.setattr(process_module, "_Child", child)
        monkeypatch.setattr(WorkerProcess, "_initialize", initialize)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def test_threads_that_start_it_at_once_have_one_process(started: Started) -> None:
    """A head start and the first job: nobody would end the other one."""
    started.during = lambda: time.sleep(0.05)
    worker = WorkerProcess(SETTINGS, "worker")
    threads = [threading.Thread(target=worker.start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert (len(started.children), worker.starts) == (1, 1)
    worker.close()
    assert started.children[0].closed


def test_a_process_that_starts_while_its_worker_is_closed_is_ended(started: Started) -> None:
    worker = WorkerProcess(SETTINGS, "worker")
    started.during = worker.close  # it sees no process yet
    worker.start()
    assert started.children[0].killed
    started.children.clear()
    with pytest.raises(WorkerError, match="worker is closed"):
        worker.start()
    assert started.children == []


def test_no_process_is_started_while_the_interpreter_exits(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    exiting = threading.Event()
    monkeypatch.setattr(process_module, "_exiting", exiting)
    worker = WorkerProcess(SETTINGS, "worker")
    exiting.set()
    with pytest.raises(WorkerError, match="worker is closed"):
        worker.start()
    assert started.children == []


def test_a_process_that_ends_before_it_takes_a_job_is_started_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had idled for long enough just then."""
    idle = 2

    def exchange(worker: WorkerProcess, child: Child, *_: object) -> tuple[bool, object]:
        if len(started.children) <= idle:
            child.killed = True
            return False, None
        return True, "result"

    monkeypatch.setattr(WorkerProcess, "_exchange", exchange)
    worker = WorkerProcess(SETTINGS, "worker")
    assert worker.run("job", 1.0) == "result"
    assert worker.starts == 3
    assert [child.closed for child in started.children] == [True, True, False]
    idle = 6
    with pytest.raises(WorkerError, match="ended three times before it took a job"):
        worker.run("job", 1.0)
