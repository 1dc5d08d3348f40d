"""Epilogues fused and apart, and operands in every layout, on a GPU. Compiled, not yet run on a GPU.

Each epilogue of the list as a CUTLASS kernel, called as generated code calls it; then whole compiles
with one way of fusing, or one way of reading an operand, forced to win, each in a process of its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from inductor_plugin.errors import OutputError
from inductor_plugin.tuning import selection
from inductor_plugin.worker.jobs import CallJob, JobFailed
from inductor_plugin.worker.process import WorkerProcess
from tests.gpu.harness import fused_forced, layout_forced
from tests.gpu.harness.forced import all_contending, forced_decision
from tests.gpu.harness.fused_cases import cases
from tests.gpu.harness.kernels import TEST_S, Built, Kernels
from tests.gpu.harness.offers import Offered, all_offered, built, settings
from tests.gpu.harness.selected import selected
from tests.gpu.test_forced import run
from tests.support import traitor
from tests.support.repository import REPOSITORY

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

BUILD_S = 300.0
"""Longest build of a slice."""
RUN_S = 60.0
ACCEPTED = 0.01
"""Of the layouts' products: root mean square of the error, relative; bfloat16 rounds by 0.002."""
CALLS = {
    "triton": {"cutlass": 0, "triton": 1, "others": 0},
    "cutlass": {"cutlass": 1, "triton": 0, "others": 0},
}
"""What generated code calls where the fused kernel won."""

Note = Callable[[str, Any], None]
Reports = dict[str, Future[dict[str, Any]]]


@pytest.fixture(scope="session", name="fused_kernels")
def all_kernels(request: pytest.FixtureRequest, kernels_dir: Path) -> Iterator[Kernels]:
    """Begin to build the kernels of each case that is going to run."""
    wanted = selected(request.session, "fused")
    workers = max(1, len(os.sched_getaffinity(0)) // 2)
    kernels = Kernels(wanted, lambda some: built_slice(some, kernels_dir, workers), 2 * workers)
    yield kernels
    kernels.close()


def built_slice(wanted: Sequence[str], kernels_dir: Path, workers: int) -> Built:
    """Return the kernels of some cases, built; or why there are none."""
    place = kernels_dir / "inductor"
    offers = all_offered(wanted, place, workers, module="tests.gpu.harness.fused_offers")
    lists = [one for one in offers.values() if not isinstance(one, str)]
    made = built([one for each in lists for one in each], kernels_dir, 2 * workers, BUILD_S)
    return {identity: ready(found, made) for identity, found in offers.items()}


def ready(
    found: list[Offered] | str, made: dict[tuple[str, str], Offered | str]
) -> list[Offered] | str:
    """Return the kernels of a case with their libraries, or why one is not there."""
    if isinstance(found, str):
        return found
    results = [made[one.case, one.identity] for one in found]
    failed = [one for one in results if isinstance(one, str)]
    good = [one for one in results if not isinstance(one, str)]
    return f"not built: {failed[0]}" if failed else good


@pytest.fixture(scope="session", name="fused_worker")
def bench_worker() -> Iterator[WorkerProcess]:
    """Return the worker that runs the kernels; it starts again after one that broke it."""
    worker = WorkerProcess(settings("bench"), "fused cases")
    yield worker
    worker.close()


@pytest.mark.parametrize("fused", cases())
def test_an_epilogue_of_visitors_is_right(
    fused: str, fused_kernels: Kernels, fused_worker: WorkerProcess, record_property: Note
) -> None:
    ends = time.monotonic() + TEST_S
    candidates = fused_kernels.of(fused)
    assert not isinstance(candidates, str), candidates
    assert candidates
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for one in candidates:
        call: Any = getattr(one, "call")  # noqa: B009
        job = CallJob("tests.gpu.harness.fused_check", "checked", (fused, call))
        report = fused_worker.attempt(job, min(RUN_S, max(1.0, ends - time.monotonic())))
        if isinstance(report, JobFailed):
            fused_worker.stop()  # its context may be broken
            rows.append({"candidate": one.about, "failed": f"{report.status}: {report.reason}"})
            wrong.append(f"{one.about}: {report.status}: {report.reason}\n{report.traceback}")
            continue
        rows.append({"candidate": one.about, **report.to_dict()})
        if not report.good:
            wrong.append(f"{one.about}: {report}")
    record_property("candidates", rows)
    assert not wrong, "\n".join(wrong)


def _started(
    names: Sequence[str], module: str, kernels_dir: Path, folders: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start a process for each name, as many at once as the cores bear."""
    repository = REPOSITORY
    threads = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 4))
    yield {
        name: threads.submit(
            run, name, kernels_dir, repository, folders.mktemp("one"), module=module
        )
        for name in names
    }
    threads.shutdown(wait=False, cancel_futures=True)  # after a run that was broken off


@pytest.fixture(scope="session", name="fused_reports")
def all_fused(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start the process of each way to fuse that is going to be tested."""
    names = selected(request.session, "pair")
    yield from _started(names, fused_forced.__name__, kernels_dir, tmp_path_factory)


@pytest.fixture(scope="session", name="layout_reports")
def all_layouts(
    request: pytest.FixtureRequest, kernels_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """Start the process of each layout that is going to be tested."""
    names = selected(request.session, "layout")
    yield from _started(names, layout_forced.__name__, kernels_dir, tmp_path_factory)


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
    assert all(one.startswith(fused_forced.WAYS[way]) for one in report["taken"])
    called = report["calls"]
    if way == "apart":
        assert called["cutlass"] == 0
        assert called["triton"] + called["others"] == 2
    else:
        assert called == CALLS[way]
    ways = ["plain", "stream", "graphs"]
    ways += ["dynamic"] if fused_forced.GRAPHS[graph].rows else []
    errors = {one: report[one] for one in ways}
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
    taken: list[str] = []
    with (
        traitor.offered(),
        mock.patch.object(selection, "decide", forced_decision("traitor", taken)),
        all_contending(),
    ):
        compiled = torch.compile(torch.mm, backend="inductor_plugin", options=options)
        torch.testing.assert_close(compiled(a, b), a @ b, atol=1e-3, rtol=1e-3)
        with traitor.betraying(5, 7), pytest.raises(OutputError) as caught:
            compiled(a, b)
    record_property("message", str(caught.value))
    assert taken
    assert "traitor::mm wrote nan at [5, 7]" in str(caught.value)


def root(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the root of a product: not a number where that is negative."""
    return torch.mm(a, b).sqrt()


@pytest.mark.parametrize("way", fused_forced.WAYS)
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
    with fused_forced.forced(way) as taken:
        compiled = torch.compile(root, backend="inductor_plugin", options=options)
        assert compiled(a, b).isfinite().all()
        assert taken
        assert all(one.startswith(fused_forced.WAYS[way]) for one in taken)
        if (
            way == "apart"
        ):  # the product itself has numbers alone; what stands behind it is no choice
            assert compiled(-a, b).isnan().all()
            return
        with pytest.raises(OutputError, match="wrote nan") as caught:
            compiled(-a, b)
    record_property("message", str(caught.value))
    assert way in str(caught.value)
