"""Persistent products through TMA: which tiles come first, and what they need of a device."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton.persistent_tma import TILES, tiles_of, written_bytes
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support import gpu
from tests.support.lowering import Arg
from tests.support.triton import interpreter
from tests.support.triton.lowering import (
    F16,
    NEEDS_CUDA_BUILD,
    SMALLEST_OF,
    Every,
    batch,
    bmm,
    compiled,
    lowered,
    matrix,
    mm,
    problem,
)
from tests.support.triton.products.persistent_tma import NAME, TEMPLATE, all_kernels

pytestmark = NEEDS_CUDA_BUILD


def a_product(m: int, n: int, k: int, **facts: Any) -> Product:
    product = product_of(problem(m, n, k, **facts))
    assert isinstance(product, Product)
    return product


def test_tiles_that_leave_the_fewest_multiprocessors_idle_come_first() -> None:
    def first(*sizes: int) -> Any:
        return TEMPLATE.candidates(problem(*sizes))[0].config

    large, small = first(8192, 8192, 4096), first(512, 1024, 4096)
    assert large["BLOCK_M"] * large["BLOCK_N"] == 128 * 256
    assert small["BLOCK_M"] * small["BLOCK_N"] < 128 * 128


def test_tiles_overlap_where_shared_memory_holds_the_result_too() -> None:
    tiles = tiles_of(a_product(512, 512, 512), 227 << 10)
    assert not any(tile.flat for tile in tiles if tile.m * tile.n == 128 * 256)
    assert all(tile.flat for tile in tiles if tile.m * tile.n < 128 * 128)
    for chosen in tiles:
        assert not (chosen.flat and chosen.specialize)
        assert (chosen.beside > 0) is (chosen.flat or chosen.specialize)


def test_a_tile_that_just_fits_beside_its_operands_overlaps() -> None:
    product = a_product(512, 512, 512)
    room = replace(TILES[1], beside=written_bytes(TILES[1])).held(product.shape)
    assert tiles_of(product, room)[1].flat
    assert not tiles_of(product, room - 1)[1].flat


def test_products_of_a_batch_have_no_specialized_warps() -> None:
    products = product_of(batch(3, 512, 512, 512))
    assert isinstance(products, Product)
    assert not any(tile.specialize for tile in tiles_of(products, 227 << 10))
    assert any(tile.specialize for tile in tiles_of(a_product(512, 512, 512), 227 << 10))


def behind(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor]:
    return ((torch.mm(a, b) + r).float(),)


@pytest.mark.parametrize("size", [512, 4096])
def test_an_epilogue_of_float32_finds_its_shared_memory(size: int) -> None:
    square = Arg((size, size), F16)
    graph = lowered(TEMPLATE, NAME, behind, (square, square, square))
    (source,) = re.findall(r"async_compile\.triton\(.*?'''(.*?)'''", graph.code, re.S)
    usage = interpreter.compiled(source, 90)
    assert usage.spills == 0
    assert usage.shared <= SMALLEST_OF[90].shared_per_block


def test_sizes_beyond_32_bits_have_descriptors_too() -> None:
    """The last layer of a language model; a descriptor's coordinates are 32-bit whatever sizes are."""
    graph = lowered(TEMPLATE, NAME, mm, (Arg((16384, 4096), F16), Arg((4096, 152064), F16)))
    source = graph.job().source
    assert "INDEX_DTYPE : tl.constexpr = tl.int64" in source
    assert "cp.async.bulk.tensor" in interpreter.compiled(source, 90).ptx


def test_candidates_say_how_their_operands_lie_and_what_device_they_need() -> None:
    by_columns = problem(
        128, inputs=(matrix(128, 512, stride=(1, 128)), matrix(512, 512, stride=(1, 512)))
    )
    for product, rows in ((problem(128), True), (by_columns, False)):
        candidates = TEMPLATE.candidates(product)
        assert 2 <= len(candidates) <= 6
        for candidate in candidates:
            assert isinstance(candidate.kernel, TritonSource)
            assert (candidate.config["A_ROWS"], candidate.config["B_ROWS"]) == (rows, rows)
            assert (candidate.kernel.capability, candidate.kernel.descriptors) == ((9, 0), (0, 1))


def test_an_older_device_is_offered_none() -> None:
    arguments = (Arg((128, 512), F16), Arg((512, 256), F16))
    assert lowered(TEMPLATE, NAME, mm, arguments).entries
    with gpu.installed(major=8, minor=0, name="NVIDIA A100-SXM4-80GB"):
        graph = lowered(TEMPLATE, NAME, mm, arguments)
    assert graph.entries == ()
    assert graph.rejected[NAME] == "it needs compute capability 9.0, the device has 8.0"


def _breaks_triton(description: str, arch: int) -> bool:
    """Return True where Triton 3.6 (torch 2.11) fails to compile; such a candidate is put aside."""
    import triton

    old = triton.__version__.startswith("3.6")
    return old and arch == 100 and "WARP_SPECIALIZE=True" in description


def wide(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.ops.aten.mm.dtype(a, b, torch.float32),)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize(("function", "turn"), [(mm, 0), (wide, 1), (bmm, 0)])
def test_all_tiles_compile_without_spilling(function: Any, turn: int, arch: int) -> None:
    """Each tile for each device and of each product: products of float16 and those that write float32 take turns."""
    many = (8,) if function is bmm else ()
    stride = (4096 * 4096, 1, 4096)[-2 - len(many) :]
    a, b = Arg((*many, 4096, 4096), F16), Arg((*many, 4096, 4096), F16, stride)
    graph = lowered(Every(TEMPLATE, all_kernels), NAME, function, (a, b))
    count = sum(not (function is bmm and tile.specialize) for tile in TILES)
    assert len(graph.entries) == count
    mine = [i for i in range(count) if (i + turn) % 2 == (arch == 100)]
    broken = [i for i in mine if _breaks_triton(graph.entries[i].description, arch)]
    for index in broken:
        with pytest.raises(RuntimeError, match="PassManager"):
            interpreter.compiled(graph.job(index).source, arch)
    for usage in compiled(graph, arch, [i for i in mine if i not in broken]):
        assert "cp.async.bulk.tensor" in usage.ptx
        assert ("wgmma.mma_async" if arch == 90 else "tcgen05.mma") in usage.ptx
