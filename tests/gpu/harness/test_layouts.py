"""The GPU tests of layouts, as far as a machine without a GPU can prove them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.gpu.forced import layout as layout_forced
from tests.gpu.test_fused import ACCEPTED
from tests.support import gpu
from tests.support.candidates.row_major_ops import picky_offered
from tests.support.graphs import layouts
from tests.support.lowering import Arg, Lab

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch"
)


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_every_layout_of_the_table_is_a_case() -> None:
    more = {"unbacked size", "open strides", "conflict at scheduling"}
    assert layout_forced.CASES.keys() == layouts.CASES.keys() | more
    assert [name for name, case in layout_forced.CASES.items() if case.conflict] == [
        "conflict at scheduling"
    ]


QUICK = ("slice with padding", "unbacked size", "conflict at scheduling")


def on_a_cpu(layout: str, cache_dir: Path) -> dict[str, Any]:
    with Lab(lambda _: 1.0, cache_dir).open():
        return layout_forced.report(
            layout, cache_dir, "cpu", layout_forced.SMALL, layout_forced.ON_A_CPU
        )


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("layout", QUICK)
def test_a_layout_runs_on_a_cpu_as_it_will_on_a_gpu(layout: str, cache_dir: Path) -> None:
    report = on_a_cpu(layout, cache_dir)
    assert layout_forced.complaints(layout, report["ways"], ACCEPTED) == []
    assert report["ways"].keys() == set(layout_forced.ON_A_CPU)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("layout", sorted(layout_forced.CASES.keys() - set(QUICK)))
def test_every_layout_runs_on_a_cpu(layout: str, cache_dir: Path) -> None:
    assert layout_forced.complaints(layout, on_a_cpu(layout, cache_dir)["ways"], ACCEPTED) == []


def lowered_ways(layout: str, cache_dir: Path) -> dict[str, dict[str, Any]]:
    """Return what each way of a layout takes and calls on a GPU that is not there."""
    case, result = layout_forced.CASES[layout], dict[str, dict[str, Any]]()
    arguments = [
        Arg(operand.size, operand.dtype, operand.stride)
        for operand in case.inputs(*layout_forced.LARGE)
    ]

    def listed(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = case.function(*tensors)
        return answer if isinstance(answer, tuple) else (answer,)

    for way, backends in layout_forced.WAYS.items():
        with (
            picky_offered(),
            layout_forced.forced_way(way) as taken,
            gpu.installed(),
            Lab(lambda _: 0.1, cache_dir / way).open() as lab,
        ):
            lab.lower(listed, *arguments, gemm_backends=backends, max_candidates=case.most)
        warned = ["warned"] if case.conflict and way != "library" else []
        calls = layout_forced.calls(lab.written[-1])
        result[way] = {"error": 0.0, "taken": taken[-1], "calls": calls, "warnings": warned}
    return result


@needs_cuda_build
@pytest.mark.parametrize("layout", ["misaligned base"])
def test_each_way_to_read_a_layout_can_be_forced(layout: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    assert layout_forced.complaints(layout, lowered_ways(layout, cache_dir), ACCEPTED) == []


@needs_cuda_build
@pytest.mark.parametrize("layout", layout_forced.CASES)
def test_each_way_to_read_every_layout_can_be_forced(layout: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    assert layout_forced.complaints(layout, lowered_ways(layout, cache_dir), ACCEPTED) == []


def as_designed() -> dict[str, dict[str, Any]]:
    none = {"copied": 0, "picky": 0, "cutlass": 0, "library": 0}

    def way(taken: str, **calls: int) -> dict[str, Any]:
        return {"error": 0.001, "taken": taken, "calls": none | calls, "warnings": []}

    return {
        "triton": way("triton_mm-1"),
        "picky": way("picky.mm_copied_0-1", copied=1),
        "cutlass": way("cutlass.mm_copied_0-1", copied=1),
        "library": way("mm-1", library=1),
    }


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        ("triton", {"error": 0.5}),
        ("triton", {"error": math.nan}),
        ("triton", {"taken": "none of ['mm-1']"}),
        ("triton", {"warnings": ["the library runs instead"]}),
        ("picky", {"calls": {"copied": 0, "picky": 1, "cutlass": 0, "library": 0}}),
        ("library", {"calls": {"copied": 0, "picky": 0, "cutlass": 0, "library": 0}}),
    ],
)
def test_what_is_not_as_designed_is_told(way: str, wrong: dict[str, Any]) -> None:
    ways = as_designed()
    assert layout_forced.complaints("slice with padding", ways, ACCEPTED) == []
    ways[way] |= wrong
    (complaint,) = layout_forced.complaints("slice with padding", ways, ACCEPTED)
    assert complaint.startswith(way)


def test_a_kernel_that_is_fused_is_of_its_way() -> None:
    ways = as_designed()
    ways["triton"] |= {"taken": "fused.triton_mm-1"}
    assert layout_forced.complaints("slice with padding", ways, ACCEPTED) == []
