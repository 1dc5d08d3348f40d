"""Machines of their own behind one S3 server: each compiles with an empty cache."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo

from inductor_plugin.cache import open_store
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.compile import Spent, compiled
from tests.support.remote.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    """Return a server for all tests of a file."""
    with s3_server() as server:
        yield server


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Return the server without faults; clients in this process find it."""
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    running.fault()
    yield running
    running.fault()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an answer as long as a busy machine takes."""
    monkeypatch.setattr("inductor_plugin.cache.remote.records.HEAD_START_S", 30.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a remote that no other test uses."""
    return f"s3://{BUCKET}/{tmp_path.name}"


def machine(
    tmp_path: Path, name: str, url: str, function: Any, *inputs: Any, **options: Any
) -> Any:
    """Compile and run on a machine that has a cache of its own; return the result, what was spent, and the cache's counters."""
    RUNTIME.forget()
    torch._dynamo.reset()
    spent = Spent()
    options = {"remote_url": url, "remote_timeout_s": 30.0, **options}
    run = compiled(function, tmp_path / name, **options)
    answer = run(*inputs)
    RUNTIME.close()
    return answer, spent.stats, open_store(tmp_path / name).counters()
