"""Split K: what is refused, how many parts there are, that it is right and always the same."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from inductor_plugin.cost.gemm import LAUNCH_S, TilePrediction, predict
from inductor_plugin.cost.tile import GemmShape
from inductor_plugin.problem import Problem, SizeClass
from inductor_plugin.problem.target import target
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton.order import Tile
from inductor_plugin.templates.triton.product import Product, product_of
from inductor_plugin.templates.triton.split_k import (
    TritonSplitK,
    candidate,
    scratch_bytes,
    tiles_of,
)
from tests.support import gpu
from tests.support.lowering import Arg
from tests.support.triton import (
    H100,
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
TEMPLATE = TritonSplitK()


@pytest.fixture(autouse=True)
def device(inductor_cache: Path) -> Iterator[None]:
    with gpu.installed():
        yield


REJECTED: dict[str, tuple[Problem, str]] = {
    "a short K": (problem(k=512), "K must be at least 1024"),
    "many tiles": (problem(m=4096, n=4096), "its 1024 tiles of 128x128 fill a device"),
    "a dynamic result": (
        problem(dynamic=(SizeClass(0, 0, 4, 4, 4),)),
        "the result's size is known only at run time",
    ),
    "a dynamic batch": (
        batch(2, 4, 512, 4096, dynamic=(SizeClass(0, 0, 2, 2, 2), SizeClass(1, 0, 2, 2, 2))),
        "the result's size is known only at run time",
    ),
    "many products": (batch(200, 4, 64, 4096), "its 200 tiles of 128x128 fill a device"),
    "float32": (
        problem(inputs=(matrix(4, 4096, dtype="float32"), matrix(4096, 64, dtype="float32"))),
        "they are float32 and float32",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_it_cannot_run_is_refused_with_the_reason(name: str) -> None:
    given, reason = REJECTED[name]
    assert reason in (TEMPLATE.reject(given) or "")


def test_a_dynamic_k_is_taken() -> None:
    dynamic = problem(
        dynamic=(SizeClass(0, 1, 2049, 4096, 4096), SizeClass(1, 0, 2049, 4096, 4096))
    )
    assert TEMPLATE.reject(dynamic) is None
    assert not any(one.config["EVEN_K"] for one in TEMPLATE.candidates(dynamic))


def test_which_result_fills_a_device_depends_on_the_device() -> None:
    given = problem(1408, 1280)  # 110 tiles of 128x128
    assert TEMPLATE.reject(given) is None
    assert "its 110 tiles" in (TEMPLATE.reject(replace(given, target=target("A100"))) or "")
    assert TEMPLATE.reject(replace(given, target=None)) is None


@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 8192), (64, 64, 65536), (512, 512, 16384)])
def test_the_parts_fill_the_device_and_are_not_too_short(m: int, n: int, k: int) -> None:
    found = TEMPLATE.candidates(problem(m, n, k))
    assert 2 <= len(found) <= 6
    for one in found:
        config: Any = one.config
        assert 1 < config["SPLIT_K"] <= 32
        assert k // config["SPLIT_K"] >= 2 * config["BLOCK_K"]
    first: Any = found[0].config
    tiles = -(-m // first["BLOCK_M"]) * -(-n // first["BLOCK_N"])
    assert 64 < tiles * first["SPLIT_K"] <= 2 * 132 or first["SPLIT_K"] == 32


def test_scratch_memory_holds_all_parts_and_one_counter_a_tile() -> None:
    product = product_of(problem(40, 200, 4096))
    assert isinstance(product, Product)
    tile = Tile(16, 64, 64, 3, 4, 8)
    assert scratch_bytes(product, tile) == 12 * 8 * 16 * 64 * 4 + 12 * 4
    many = product_of(batch(3, 40, 200, 4096))
    assert isinstance(many, Product)
    assert scratch_bytes(many, tile) == 3 * (12 * 8 * 16 * 64 * 4 + 12 * 4)
    for one in TEMPLATE.candidates(problem(40, 200, 4096)):
        assert isinstance(one.kernel, TritonSource)
        assert one.kernel.scratch_bytes % 16 == 0


def test_the_ranking_counts_that_all_sums_are_zeroed() -> None:
    # Whole tiles, in L2 at half of its 5120 bytes a clock, and a launch of their own.
    tile = Tile(16, 64, 64, 3, 4, 8)
    for rows, tiles in ((40, 12), (33, 12), (16, 4)):
        shape = GemmShape(rows, 200, 4096)
        counted, free = (
            predict(H100, shape, replace(tile.config, zeroed=zeroed)) for zeroed in (True, False)
        )
        assert isinstance(counted, TilePrediction)
        assert isinstance(free, TilePrediction)
        zeroing_s = LAUNCH_S + tiles * 8 * 16 * 64 * 4 / (2560 * H100.clock_mhz * 1e6)
        assert counted.seconds - free.seconds == pytest.approx(zeroing_s)
        assert predict(H100, shape, tile.config) == counted
    assert not replace(tile, parts=1).config.zeroed


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def bmm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.bmm(a, b),)


CASES: dict[str, Case] = {
    "a few rows": Case(mm, (Arg((5, 1100), F16), Arg((1100, 70), F16))),
    "a few columns": Case(mm, (Arg((70, 1024), F16), Arg((1024, 20), F16, (1, 1024)))),
    "a scaled bias": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((130,), F16), Arg((20, 1500), F16), Arg((130, 1500), F16)),
    ),
    "transposed, padded strides": Case(
        lambda a, b: (torch.mm(a.t(), b),),
        (Arg((1050, 40), F16, (64, 1)), Arg((1050, 33), F16, (48, 1))),
    ),
    "relu and a residual": Case(
        lambda a, b, r: (torch.relu(torch.mm(a, b)) + r,),
        (Arg((100, 1024), F16), Arg((1024, 100), F16), Arg((100, 100), F16)),
    ),
    "a slice": Case(
        lambda a, b: (torch.mm(a[:, 3:1030], b[5:1032, :]),),
        (Arg((4, 1040), F16), Arg((1040, 72), F16)),
        winner=1,
    ),
    "bfloat16": Case(mm, (Arg((9, 1100)), Arg((1100, 70))), tolerance=1e-2),
    "float32 written": Case(
        lambda a, b: (torch.ops.aten.mm.dtype(a, b, torch.float32),),
        (Arg((5, 1024), F16), Arg((1024, 96), F16)),
        reference=mm,
    ),
    "a batch, odd sizes": Case(bmm, (Arg((3, 19, 1071), F16), Arg((3, 1071, 77), F16)), winner=1),
    "a batch, transposed, padded": Case(
        lambda a, b: (torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),),
        (Arg((2, 1060, 40), F16, (51000, 48, 1)), Arg((2, 36, 1060), F16, (38400, 1064, 1))),
    ),
    "a batch that shares B": Case(
        lambda a, b: (torch.bmm(a, b.expand(3, 1024, 72)),),
        (Arg((3, 70, 1024), F16), Arg((1, 1024, 72), F16)),
    ),
    "a batch with a scaled bias": Case(
        lambda c, a, b: (torch.relu(torch.baddbmm(c, a, b, alpha=0.5, beta=2)),),
        (Arg((2, 1, 70), F16), Arg((2, 20, 1050), F16), Arg((2, 1050, 70), F16)),
    ),
}
BEHIND = epilogues(torch.mm, (Arg((40, 1030), F16), Arg((1030, 90), F16)), (40, 90))
BEHIND_A_BATCH = epilogues(torch.bmm, (Arg((2, 6, 1030), F16), Arg((2, 1030, 40), F16)), (2, 6, 40))


@pytest.mark.slow
def test_generated_kernels_compute_what_torch_computes_in_any_order() -> None:
    check(TEMPLATE, "triton_split_k", CASES)


@pytest.mark.slow
def test_epilogues_fuse_and_are_right() -> None:
    check(TEMPLATE, "triton_split_k", BEHIND)
    check(TEMPLATE, "triton_split_k", BEHIND_A_BATCH)


def test_the_wrapper_zeroes_the_scratch_memory_and_the_benchmark_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = lowered(TEMPLATE, "triton_split_k", mm, (Arg((4, 4096), F16), Arg((4096, 512), F16)))
    (size,) = re.findall(r"workspace_\d+ = empty_strided_cuda\(\((\d+), \)", made.code)
    assert re.search(r"workspace_\d+\.zero_\(\)\n.*\n.*\.run\(", made.code)
    candidate: Any = made.entries[0].candidate
    request = pickle.loads(candidate.kernel.payload)
    assert (request.workspace_size, request.workspace_zero_fill) == (int(size), True)

    order: list[Any] = []
    stock = type(request).__mro__[1]
    monkeypatch.setattr(stock, "make_run_fn", lambda *_, out: lambda: order.append("run"))
    with mock.patch.object(torch.Tensor, "zero_", lambda t: order.append(t.nbytes)):
        call = request.make_run_fn(out=torch.empty(1))
        call()
        call()
    assert order == [int(size), "run"] * 2


def test_default_kernels_compile_without_spilling() -> None:
    for function, arguments in (
        (mm, (Arg((64, 8192), F16), Arg((8192, 512), F16, (1, 8192)))),
        (bmm, (Arg((2, 512, 8192), F16), Arg((2, 8192, 512), F16))),
    ):
        made = lowered(TEMPLATE, "triton_split_k", function, arguments)
        for arch in (80, 90, 100):
            (usage,) = compiled(made, arch, [0])
            assert re.search(r"atom\S*\.acq_rel\S*\.add", usage.ptx)
            assert "ld.global.cg" in usage.ptx
            # All threads have stored before one counts: the kernel asks for it, whatever Triton adds.
            said = re.findall(r"tt\.(?:store|atomic_rmw)|(?:gpu|ttg)\.barrier", usage.ttir)
            assert said[1].endswith(".barrier"), said
            assert (said[0], said[2]) == ("tt.store", "tt.atomic_rmw")
            before = usage.ptx[: usage.ptx.index("atom.global")]
            assert before.rindex("bar.sync") > before.rindex("st.global")


def all_kernels(given: Problem) -> list[Any]:
    """Return all tiles, each with one number of parts: it changes no registers."""
    product = product_of(given)
    assert isinstance(product, Product)
    return [candidate(product, one) for one in tiles_of(product) if one.parts == 4]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_all_tiles_compile_without_spilling(arch: int) -> None:
    counts: list[int] = []
    for rows, columns in ((16, 512), (32, 512), (512, 32), (64, 512), (512, 512)):
        made = lowered(
            Every(TEMPLATE, all_kernels),
            "triton_split_k",
            mm,
            (Arg((rows, 8192), F16), Arg((8192, columns), F16)),
        )
        counts.append(len(compiled(made, arch)))
    assert counts == [3, 2, 2, 3, 4]
