"""Starts a process for each of the whole compiles, as many at once as the cores bear.

They start in the tests' order, so that a test waits for its own process at most: when it begins, all
earlier ones have ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.cases.kernels import TEST_S
from tests.support.repository import REPOSITORY

LIMIT_S = TEST_S - 20
"""Longest process. What it has built by then is in the cache, for the next run."""
Reports = dict[str, Future[dict[str, Any]]]


def run(
    module: str, name: str, kernels_dir: Path, folder: Path, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """Return what one process reports, or why it does not: ``{"failed": reason}``."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    environment.pop("TRITON_CACHE_DIR", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, name, str(kernels_dir)],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not ready after {limit_s:.0f} s"}
    if done.returncode:
        return {"failed": done.stderr[-3000:]}
    return json.loads(done.stdout.splitlines()[-1])


def started(
    module: str, names: Sequence[str], kernels_dir: Path, folders: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start a process for each name; begin no other when the tests have ended."""
    threads = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 4))
    yield {
        name: threads.submit(run, module, name, kernels_dir, folders.mktemp("process"))
        for name in names
    }
    threads.shutdown(wait=False, cancel_futures=True)  # after a run that was broken off
