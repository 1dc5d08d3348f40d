"""Persistent products through TMA: what is refused, which tiles come first, that they are right."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _triton

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton.persistent_tma import (
    TILES,
    TritonPersistentTma,
    candidate,
    tiles_of,
)
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support import gpu, triton_interpreter
from tests.support.lowering import Arg
from tests.support.triton import (
    SMALLEST_OF,
    Case,
    Every,
    batch,
    check,
    compiled,
    epilogues,
    lowered,
    matrix,
    problem,
)

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F16 = torch.float16
TEMPLATE = TritonPersistentTma()
NAME = "triton_persistent_tma"


@pytest.fixture(autouse=True)
def device(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gpu.installed():
        # It asks `torch.cuda.is_available`, which is False for a device that is not there.
        monkeypatch.setattr(_triton, "has_triton_tma_device", lambda: True)
        yield


def cube(b: int, rows: int, columns: int, stride: int) -> Operand:
    return Operand((b, rows, columns), (stride, columns, 1), "bfloat16", "cuda")


REJECTED: dict[str, tuple[Problem, str]] = {
    "few rows": (problem(m=32), "at least 33 and K at least 64, this is 32x4096x4096"),
    "an older device": (
        problem(m=128, target=target("A100")),
        "it needs compute capability 9.0, the device has 8.0",
    ),
    "a batch with an odd stride": (
        batch(3, 65, 128, 64, inputs=(cube(3, 65, 64, 4164), cube(3, 64, 128, 8192))),
        "A's batch stride is 4164 elements",
    ),
    "a matrix for all of a batch": (
        batch(3, 64, 128, 64, inputs=(cube(3, 64, 64, 4096), cube(3, 64, 128, 0))),
        "B is broadcast",
    ),
    "an aligned batch": (batch(3, 65, 128, 64), ""),
    "an odd stride": (
        problem(inputs=(matrix(128, 512, stride=(516, 1)), matrix(512, 512))),
        "A's stride is 516 elements",
    ),
    "an odd offset": (
        problem(inputs=(matrix(128, 512), matrix(512, 512, offset=4))),
        "B's offset is 4 elements",
    ),
    "an odd extent": (
        problem(inputs=(matrix(128, 500, stride=(504, 1)), matrix(500, 512))),
        "A's inner extent is 500 elements",
    ),
    "an odd extent of columns": (
        problem(inputs=(matrix(128, 512), matrix(512, 516, stride=(1, 520)))),
        "",
    ),
    "overlapping rows": (
        problem(inputs=(matrix(128, 512, stride=(8, 1)), matrix(512, 512))),
        "the rows of A overlap",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_it_cannot_run_is_refused_with_the_reason(name: str) -> None:
    given, reason = REJECTED[name]
    found = TEMPLATE.reject(given)
    assert (reason in (found or "")) if reason else found is None


def a_product(m: int, n: int, k: int, **facts: Any) -> Product:
    found = product_of(problem(m, n, k, **facts))
    assert isinstance(found, Product)
    return found


def test_tiles_that_leave_the_fewest_multiprocessors_idle_come_first() -> None:
    def first(*sizes: int) -> Any:
        return TEMPLATE.candidates(problem(*sizes))[0].config

    large, small = first(8192, 8192, 4096), first(512, 1024, 4096)
    assert large["BLOCK_M"] * large["BLOCK_N"] == 128 * 256
    assert small["BLOCK_M"] * small["BLOCK_N"] < 128 * 128


def test_tiles_overlap_where_shared_memory_holds_the_result_too() -> None:
    found = tiles_of(a_product(512, 512, 512), 227 << 10)
    assert not any(one.flat for one in found if one.m * one.n == 128 * 256)
    assert all(one.flat for one in found if one.m * one.n < 128 * 128)
    for one in found:
        assert not (one.flat and one.specialize)
        assert (one.beside > 0) is (one.flat or one.specialize)


def behind(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor]:
    return ((torch.mm(a, b) + r).float(),)


@pytest.mark.parametrize("size", [512, 4096])
def test_an_epilogue_of_float32_finds_its_shared_memory(size: int) -> None:
    square = Arg((size, size), F16)
    made = lowered(TEMPLATE, NAME, behind, (square, square, square))
    (source,) = re.findall(r"async_compile\.triton\(.*?'''(.*?)'''", made.code, re.S)
    usage = triton_interpreter.compiled(source, 90)
    assert usage.spills == 0
    assert usage.shared <= SMALLEST_OF[90].shared_per_block


def test_candidates_say_how_their_operands_lie_and_what_device_they_need() -> None:
    by_columns = problem(
        128, inputs=(matrix(128, 512, stride=(1, 128)), matrix(512, 512, stride=(1, 512)))
    )
    for given, rows in ((problem(128), True), (by_columns, False)):
        found = TEMPLATE.candidates(given)
        assert 2 <= len(found) <= 6
        for one in found:
            assert isinstance(one.kernel, TritonSource)
            assert (one.config["A_ROWS"], one.config["B_ROWS"]) == (rows, rows)
            assert (one.kernel.capability, one.kernel.descriptors) == ((9, 0), (0, 1))


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def bmm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.bmm(a, b),)


def test_an_older_device_is_offered_none() -> None:
    arguments = (Arg((128, 512), F16), Arg((512, 256), F16))
    assert lowered(TEMPLATE, NAME, mm, arguments).entries
    with gpu.installed(major=8, minor=0, name="NVIDIA A100-SXM4-80GB"):
        made = lowered(TEMPLATE, NAME, mm, arguments)
    assert made.entries == ()
    assert made.rejected[NAME] == "it needs compute capability 9.0, the device has 8.0"


CASES: dict[str, Case] = {
    "rows by rows": Case(mm, (Arg((200, 136), F16), Arg((136, 264), F16))),
    "columns by columns": Case(
        lambda a, b: (torch.mm(a.t(), b.t()),), (Arg((72, 136), F16), Arg((80, 72), F16)), winner=1
    ),
    "a linear layer, scaled": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((131,), F16), Arg((75, 200), F16), Arg((131, 200), F16)),
        winner=2,
    ),
    "more tiles than multiprocessors": Case(mm, (Arg((1100, 64), F16), Arg((64, 1104), F16))),
    "padded strides, relu and a residual": Case(
        lambda a, b, r: (torch.relu(torch.mm(a, b)) + r,),
        (Arg((70, 88), F16, (96, 1)), Arg((88, 72), F16, (80, 1)), Arg((70, 72), F16)),
        winner=3,
    ),
    "bfloat16": Case(mm, (Arg((70, 136)), Arg((136, 72))), tolerance=1e-2),
    "float32 written": Case(
        lambda a, b: (torch.ops.aten.mm.dtype(a, b, torch.float32),),
        (Arg((70, 136), F16), Arg((136, 72), F16)),
        reference=mm,
    ),
    "a batch, odd sizes": Case(bmm, (Arg((3, 67, 72), F16), Arg((3, 72, 136), F16)), winner=1),
    "a batch of more tiles than multiprocessors": Case(
        bmm, (Arg((70, 65, 64), F16), Arg((70, 64, 136), F16))
    ),
    "a batch, transposed, padded": Case(
        lambda a, b: (torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),),
        (Arg((2, 72, 40), F16, (5120, 48, 1)), Arg((2, 67, 72), F16, (5600, 80, 1))),
    ),
    "a batch of heads side by side": Case(
        bmm, (Arg((4, 50, 64), F16, (64, 256, 1)), Arg((4, 64, 70), F16, (64, 1, 256)))
    ),
    "a batch with a scaled bias": Case(
        lambda c, a, b: (torch.relu(torch.baddbmm(c, a, b, alpha=0.5, beta=2)),),
        (Arg((2, 1, 72), F16), Arg((2, 67, 88), F16), Arg((2, 88, 72), F16)),
    ),
}
BEHIND = epilogues(torch.mm, (Arg((70, 136), F16), Arg((136, 72), F16)), (70, 72))
BEHIND_A_BATCH = epilogues(torch.bmm, (Arg((2, 50, 72), F16), Arg((2, 72, 72), F16)), (2, 50, 72))


@pytest.mark.slow
def test_generated_kernels_compute_what_torch_computes() -> None:
    check(TEMPLATE, NAME, CASES)


@pytest.mark.slow
def test_epilogues_fuse_and_are_right() -> None:
    check(TEMPLATE, NAME, BEHIND)
    check(TEMPLATE, NAME, BEHIND_A_BATCH)


def test_default_kernels_compile_without_spilling() -> None:
    for function, arguments in (
        (mm, (Arg((4096, 4096), F16), Arg((4096, 4096), F16, (1, 4096)))),
        (bmm, (Arg((8, 4096, 4096), F16), Arg((8, 4096, 4096), F16))),
    ):
        made = lowered(TEMPLATE, NAME, function, arguments)
        for arch in (90, 100):
            (usage,) = compiled(made, arch, [0])
            assert "cp.async.bulk.tensor" in usage.ptx
            assert ("wgmma.mma_async" if arch == 90 else "tcgen05.mma") in usage.ptx


def all_kernels(given: Problem) -> list[Any]:
    product = product_of(given)
    assert isinstance(product, Product)
    return [candidate(product, one) for one in tiles_of(product, SMALLEST_OF[90].shared_per_block)]


def _breaks_triton(description: str, arch: int) -> bool:
    """Return True where Triton 3.6 (torch 2.11) fails to compile; such a candidate is put aside."""
    import triton

    old = triton.__version__.startswith("3.6")
    return old and arch == 100 and "WARP_SPECIALIZE=True" in description


def wide(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.ops.aten.mm.dtype(a, b, torch.float32),)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("function", [mm, wide, bmm])
def test_all_tiles_compile_without_spilling(function: Any, arch: int) -> None:
    many = (8,) if function is bmm else ()
    stride = (4096 * 4096, 1, 4096)[-2 - len(many) :]
    a, b = Arg((*many, 4096, 4096), F16), Arg((*many, 4096, 4096), F16, stride)
    made = lowered(Every(TEMPLATE, all_kernels), NAME, function, (a, b))
    count = sum(not (function is bmm and one.specialize) for one in TILES)
    assert len(made.entries) == count
    broken = [i for i, one in enumerate(made.entries) if _breaks_triton(one.description, arch)]
    for index in broken:
        with pytest.raises(RuntimeError, match="PassManager"):
            triton_interpreter.compiled(made.job(index).source, arch)
    for usage in compiled(made, arch, [i for i in range(count) if i not in broken]):
        assert "cp.async.bulk.tensor" in usage.ptx
        assert ("wgmma.mma_async" if arch == 90 else "tcgen05.mma") in usage.ptx
