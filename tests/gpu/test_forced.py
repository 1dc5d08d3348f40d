"""Whole compiles with one template forced to win: stream, CUDA graphs, dynamic rows.

Compiled, not yet run on a GPU. Each template has a process of its own; they start in the tests' order,
so that a test waits for its own process at most: when it begins, all earlier ones have ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.harness.forced import FORCED
from tests.gpu.harness.kernels import TEST_S
from tests.gpu.harness.selected import selected
from tests.support.repository import REPOSITORY

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

LIMIT_S = TEST_S - 20
"""Longest process. What it has built by then is in the cache, for the next run."""
GPU = [name for name, one in FORCED.items() if one.device == "cuda"]

Note = Callable[[str, Any], None]


def run(
    name: str,
    kernels_dir: Path,
    repository: Path,
    folder: Path,
    limit_s: float = LIMIT_S,
    module: str = "tests.gpu.harness.forced",
) -> dict[str, Any]:
    """Return what one process reports, or why it does not: ``{"failed": reason}``."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    environment.pop("TRITON_CACHE_DIR", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, name, str(kernels_dir)],
            cwd=repository,
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


@pytest.fixture(scope="session", name="reports")
def all_reports(
    request: pytest.FixtureRequest,
    kernels_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Start the process of each template that is going to be tested."""
    repository = REPOSITORY
    wanted = selected(request.session, "template")
    threads = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 4))
    yield {
        name: threads.submit(run, name, kernels_dir, repository, tmp_path_factory.mktemp("one"))
        for name in wanted
    }
    threads.shutdown(wait=False, cancel_futures=True)  # after a run that was broken off


@pytest.mark.parametrize("template", GPU)
def test_a_forced_winner_is_right(
    template: str, reports: dict[str, Future[dict[str, Any]]], record_property: Note
) -> None:
    report = reports[template].result(TEST_S)
    assert "failed" not in report, report["failed"]
    for name, value in report.items():
        record_property(name, value)
    assert all(one.startswith(template.partition(" ")[0]) for one in report["taken"])
    assert report["taken"]
    ways = ["plain", "stream", "graphs", *(["dynamic"] if FORCED[template].rows else [])]
    errors = {way: report[way] for way in ways}
    assert all(error <= report["accepted"] for error in errors.values()), errors
    if FORCED[template].rows:
        assert report["dynamic_graphs"] == 1
