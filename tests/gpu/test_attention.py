"""Attention with one family of kernels forced to win, forward and backward. Two families have run on an H200 (FINDINGS.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.cases.kernels import TEST_S
from tests.gpu.forced import attention as attention_forced
from tests.gpu.forced.attention import FAMILIES
from tests.gpu.forced.start import Reports, started
from tests.gpu.harness.selected import selected

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

GPU = [name for name, family in FAMILIES.items() if family.device == "cuda"]

Note = Callable[[str, Any], None]


@pytest.fixture(scope="session", name="attentions")
def all_reports(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start the process of each family that is going to be tested."""
    names = selected(request.session, "family")
    yield from started(attention_forced.__name__, names, kernels_dir, tmp_path_factory)


@pytest.mark.parametrize("family", GPU)
def test_a_forced_attention_is_right(
    family: str, attentions: Reports, record_property: Note
) -> None:
    report = attentions[family].result(TEST_S)
    assert "failed" not in report, report["failed"]
    for name, value in report.items():
        record_property(name, value)
    prefixes, accepted = FAMILIES[family].prefixes, FAMILIES[family].accepted
    for name, graph in report["graphs"].items():
        assert graph["taken"], name
        assert all(kernel.startswith(prefixes) for kernel in graph["taken"]), (name, graph["taken"])
        assert all(error <= accepted for error in graph["errors"].values()), (name, graph["errors"])
