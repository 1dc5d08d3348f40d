"""A worker process under test."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator

import pytest

from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(sys_path=(str(REPOSITORY), *sys.path), kind="compile")
GET_PID = CallJob("os", "getpid")


@pytest.fixture(name="worker")
def a_worker() -> Generator[WorkerProcess, None, None]:
    worker = WorkerProcess(SETTINGS, "worker under test")
    yield worker
    worker.close()


def until(true: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()
