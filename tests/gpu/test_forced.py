"""Whole compiles with one template forced to win: stream, CUDA graphs, dynamic rows.

Two of them have run on an H200 (FINDINGS.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.cases.kernels import TEST_S
from tests.gpu.forced import product as product_forced
from tests.gpu.forced.product import FORCED
from tests.gpu.forced.start import Reports, started
from tests.gpu.harness.selected import selected

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

GPU = [name for name, graph in FORCED.items() if graph.device == "cuda"]

Note = Callable[[str, Any], None]


@pytest.fixture(scope="session", name="reports")
def all_reports(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start the process of each template that is going to be tested."""
    names = selected(request.session, "template")
    yield from started(product_forced.__name__, names, kernels_dir, tmp_path_factory)


@pytest.mark.parametrize("template", GPU)
def test_a_forced_winner_is_right(template: str, reports: Reports, record_property: Note) -> None:
    report = reports[template].result(TEST_S)
    assert "failed" not in report, report["failed"]
    for name, value in report.items():
        record_property(name, value)
    assert product_forced.complaints(template, report["taken"]) == []
    ways = ["plain", "stream", "graphs", *(["dynamic"] if FORCED[template].rows else [])]
    errors = {way: report[way] for way in ways}
    assert all(error <= 1.0 for error in errors.values()), errors
    if FORCED[template].rows:
        assert report["dynamic_graphs"] == 1
