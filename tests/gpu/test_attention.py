"""Attention with one family of kernels forced to win, forward and backward. Compiled, not yet run on a GPU.

Each family has a process of its own; they start in the tests' order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.harness.attention_forced import FAMILIES
from tests.gpu.harness.kernels import TEST_S
from tests.gpu.harness.selected import selected
from tests.gpu.test_forced import run
from tests.support.repository import REPOSITORY

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

GPU = [name for name, one in FAMILIES.items() if one.device == "cuda"]
MODULE = "tests.gpu.harness.attention_forced"

Note = Callable[[str, Any], None]


@pytest.fixture(scope="session", name="attentions")
def all_reports(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Start the process of each family that is going to be tested."""
    repository = REPOSITORY
    threads = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 4))

    def started(name: str) -> Future[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("attention")
        return threads.submit(run, name, kernels_dir, repository, folder, module=MODULE)

    yield {name: started(name) for name in selected(request.session, "family")}
    threads.shutdown(wait=False, cancel_futures=True)  # after a run that was broken off


@pytest.mark.parametrize("family", GPU)
def test_a_forced_attention_is_right(
    family: str, attentions: dict[str, Future[dict[str, Any]]], record_property: Note
) -> None:
    report = attentions[family].result(TEST_S)
    assert "failed" not in report, report["failed"]
    for name, value in report.items():
        record_property(name, value)
    prefixes, accepted = FAMILIES[family].prefixes, FAMILIES[family].accepted
    for name, graph in report["graphs"].items():
        assert graph["taken"], name
        assert all(one.startswith(prefixes) for one in graph["taken"]), (name, graph["taken"])
        assert all(error <= accepted for error in graph["errors"].values()), (name, graph["errors"])
