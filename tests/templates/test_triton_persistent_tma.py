"""Persistent products through TMA: what is refused, which tiles come first, that they are right."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _triton

from inductor_plugin.problem import Problem
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton_persistent_tma import Tile, TritonPersistentTma, ranked
from inductor_plugin.templates.triton_product import Product, product_of
from tests import fake_cuda, triton_interpreter
from tests.cuda_lowering import Arg
from tests.templates.triton_cases import Case, check, lowered, matrix, problem

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F16 = torch.float16
TEMPLATE = TritonPersistentTma()
NAME = "triton_persistent_tma"


@pytest.fixture(autouse=True)
def device(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_cuda.installed():
        # It asks `torch.cuda.is_available`, which is False for a device that is not there.
        monkeypatch.setattr(_triton, "has_triton_tma_device", lambda: True)
        yield


REJECTED: dict[str, tuple[Problem, str]] = {
    "few rows": (problem(m=63), "each dimension must be at least 64, this is 63x4096x4096"),
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
        "A's rows overlap",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_it_cannot_run_is_refused_with_the_reason(name: str) -> None:
    given, reason = REJECTED[name]
    found = TEMPLATE.reject(given)
    assert (reason in (found or "")) if reason else found is None


def a_product(m: int, n: int, k: int) -> Product:
    found = product_of(problem(m, n, k))
    assert isinstance(found, Product)
    return found


def test_tiles_that_leave_the_fewest_multiprocessors_idle_come_first() -> None:
    large, small = ranked(a_product(8192, 8192, 4096))[0], ranked(a_product(512, 1024, 4096))[0]
    assert large.block_m * large.block_n == 128 * 256
    assert small.block_m * small.block_n < 128 * 128
    # 132 tiles of 128x128 are one round; of 128x256, 66 tiles, are one round of twice the work.
    assert ranked(a_product(128 * 12, 128 * 11, 4096))[0].block_n == 128


def test_a_tile_costs_whole_rounds() -> None:
    tile = Tile(128, 128, 64, 3, 8, specialize=False, rate=0.5)
    assert tile.cost(a_product(128 * 132, 128, 64)) == 128 * 128 / 0.5
    assert tile.cost(a_product(128 * 133, 128, 64)) == 2 * 128 * 128 / 0.5


def test_candidates_say_how_their_operands_lie_and_what_device_they_need() -> None:
    by_columns = problem(
        128, inputs=(matrix(128, 512, stride=(1, 128)), matrix(512, 512, stride=(1, 512)))
    )
    for given, rows in ((problem(128), True), (by_columns, False)):
        found = TEMPLATE.candidates(given)
        assert len(found) == 5
        for one in found:
            assert isinstance(one.kernel, TritonSource)
            assert (one.config["A_ROWS"], one.config["B_ROWS"]) == (rows, rows)
            assert (one.kernel.capability, one.kernel.descriptors) == ((9, 0), (0, 1))


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def test_an_older_device_is_offered_none() -> None:
    arguments = (Arg((128, 512), F16), Arg((512, 256), F16))
    assert lowered(TEMPLATE, NAME, mm, arguments).entries
    with fake_cuda.installed(major=8, minor=0, name="NVIDIA A100-SXM4-80GB"):
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
}


@pytest.mark.slow
def test_generated_kernels_compute_what_torch_computes() -> None:
    check(TEMPLATE, NAME, CASES)


def _breaks_triton(description: str, arch: int) -> bool:
    """Return True where Triton 3.6 (torch 2.11) fails to compile; such a candidate is put aside."""
    import triton

    old = triton.__version__.startswith("3.6")
    return old and arch == 100 and "WARP_SPECIALIZE=True" in description


@pytest.mark.slow
@pytest.mark.parametrize("arch", [90, 100])
def test_default_kernels_compile_without_spilling(arch: int) -> None:
    seen: set[Any] = set()
    for rows in (64, 4096):
        for weight in (Arg((4096, 4096), F16), Arg((4096, 4096), F16, (1, 4096))):
            made = lowered(TEMPLATE, NAME, mm, (Arg((rows, 4096), F16), weight))
            for index, entry in enumerate(made.entries):
                if _breaks_triton(entry.description, arch):
                    with pytest.raises(RuntimeError, match="PassManager"):
                        triton_interpreter.compiled(made.job(index).source, arch)
                    continue
                usage = triton_interpreter.compiled(made.job(index).source, arch)
                assert usage.spills == 0, f"{entry.description}: {usage.spills} bytes spilled"
                assert usage.shared <= 227 << 10, entry.description
                assert "cp.async.bulk.tensor" in usage.ptx, entry.description
                assert ("wgmma.mma_async" if arch == 90 else "tcgen05.mma") in usage.ptx
                seen.add(entry.description)
    assert len(seen) > 10
