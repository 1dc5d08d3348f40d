"""Other work ends with what has started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from benchmarks.harness.load import LOADS, load
from tests.support.repository import REPOSITORY


def test_a_load_ends_with_its_block() -> None:
    with load("2 busy"):
        pass
    with load("quiet"):
        pass
    assert len(LOADS["4 busy"]) == 4


@pytest.mark.parametrize("name", ["2 busy", "2 copying"])
def test_a_load_ends_with_a_benchmark_that_is_killed(name: str) -> None:
    """Two busy processes that nobody ends would be beside all that is measured later."""
    text = (
        f"from benchmarks.harness.load import load\nwith load({name!r}): print(flush=True); input()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", text], cwd=REPOSITORY, start_new_session=True, **pipes
    ) as benchmark:
        assert benchmark.stdout.readline()  # pyright: ignore[reportOptionalMemberAccess]
        assert lives(benchmark.pid)
        benchmark.kill()
    ends = time.monotonic() + 20
    while (is_left := lives(benchmark.pid)) and time.monotonic() < ends:
        time.sleep(0.1)
    if is_left:
        os.killpg(benchmark.pid, signal.SIGKILL)
    assert not is_left


def lives(group: int) -> bool:
    """Return whether a group of processes has any."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
