"""Epilogues fused and apart, and operands in every layout, on a GPU. The epilogues have run on an H200 (FINDINGS.md), the layouts on no GPU yet.

Whole compiles with one way of fusing, or one way of reading an operand, forced to win, each in a process
of its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness.forced import WAYS, forced, forced_fusion
from inductor_plugin.errors import OutputError
from tests.gpu.cases.kernels import TEST_S
from tests.gpu.forced import fused as fused_forced
from tests.gpu.forced import layout as layout_forced
from tests.gpu.forced.start import Reports, started
from tests.gpu.harness.selected import selected
from tests.support.candidates import wrong_in_process

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

ACCEPTED = 0.01
"""Of the layouts' products: root mean square of the error, relative; bfloat16 rounds by 0.002."""
CALLS = {
    "triton": {"cutlass": 0, "triton": 1, "others": 0},
    "cutlass": {"cutlass": 1, "triton": 0, "others": 0},
}
"""What generated code calls where the fused kernel won."""

Note = Callable[[str, Any], None]


@pytest.fixture(scope="session", name="fused_reports")
def all_fused(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start the process of each way to fuse that is going to be tested."""
    names = selected(request.session, "pair")
    yield from started(fused_forced.__name__, names, kernels_dir, tmp_path_factory)


@pytest.fixture(scope="session", name="layout_reports")
def all_layouts(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start the process of each layout that is going to be tested."""
    names = selected(request.session, "layout")
    yield from started(layout_forced.__name__, names, kernels_dir, tmp_path_factory)


@pytest.mark.parametrize("pair", fused_forced.pairs())
def test_a_forced_way_to_fuse_is_right(
    pair: str, fused_reports: Reports, record_property: Note
) -> None:
    report = fused_reports[pair].result(TEST_S)
    assert "failed" not in report, report["failed"]
    for name, value in report.items():
        record_property(name, value)
    graph, _, way = pair.rpartition(", ")
    assert report["taken"]
    assert all(kernel.startswith(WAYS[way]) for kernel in report["taken"])
    called = report["calls"]
    if way == "apart":
        assert called["cutlass"] == 0
        assert called["triton"] + called["others"] == 2
    else:
        assert called == CALLS[way]
    ways = ["plain", "stream", "graphs"]
    ways += ["dynamic"] if fused_forced.GRAPHS[graph].rows else []
    errors = {each_way: report[each_way] for each_way in ways}
    assert all(error <= 1.0 for error in errors.values()), errors


@pytest.mark.parametrize("layout", layout_forced.CASES)
def test_a_layout_is_read_right_by_each_way(
    layout: str, layout_reports: Reports, record_property: Note
) -> None:
    report = layout_reports[layout].result(TEST_S)
    assert "failed" not in report, report["failed"]
    for name, value in report.items():
        record_property(name, value)
    wrong = layout_forced.complaints(layout, report["ways"], ACCEPTED)
    assert set(report["ways"]) == set(layout_forced.WAYS)
    assert not wrong, "\n".join(wrong)


def test_a_kernel_that_writes_nan_is_named(cache_dir: Path, record_property: Note) -> None:
    a, b = torch.randn(24, 16, device="cuda"), torch.randn(16, 32, device="cuda")
    options: dict[str, Any] = {
        "cache_dir": str(cache_dir),
        "table": "off",
        "check_outputs": "nan",
        "gemm_backends": "ATEN",
    }
    with wrong_in_process.offered(), forced("traitor") as taken:
        compiled = torch.compile(torch.mm, backend="inductor_plugin", options=options)
        torch.testing.assert_close(compiled(a, b), a @ b, atol=1e-3, rtol=1e-3)
        with wrong_in_process.betraying(5, 7), pytest.raises(OutputError) as caught:
            compiled(a, b)
    record_property("message", str(caught.value))
    assert taken
    assert "traitor::mm wrote nan at [5, 7]" in str(caught.value)


def root(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the root of a product: not a number where that is negative."""
    return torch.mm(a, b).sqrt()


@pytest.mark.parametrize("way", WAYS)
def test_a_fused_epilogue_that_yields_nan_is_named(
    way: str, cache_dir: Path, record_property: Note
) -> None:
    a = torch.rand(512, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.rand(256, 512, device="cuda", dtype=torch.bfloat16)
    options: dict[str, Any] = {
        "cache_dir": str(cache_dir),
        "table": "off",
        "check_outputs": "nan",
        "gemm_backends": "ATEN,TRITON,CUTLASS",
        "max_candidates": 4,
    }
    with forced_fusion(way) as taken:
        compiled = torch.compile(root, backend="inductor_plugin", options=options)
        assert compiled(a, b).isfinite().all()
        assert taken
        assert all(kernel.startswith(WAYS[way]) for kernel in taken)
        if way == "apart":  # the product itself has numbers alone; its epilogue is no choice
            assert compiled(-a, b).isnan().all()
            return
        with pytest.raises(OutputError, match="wrote nan") as caught:
            compiled(-a, b)
    record_property("message", str(caught.value))
    assert way in str(caught.value)
