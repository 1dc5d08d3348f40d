"""Split K: how many parts there are, and the scratch memory they are summed in."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from inductor_plugin.cost.gemm import LAUNCH_S, TilePrediction, predict
from inductor_plugin.cost.tile import GemmShape
from inductor_plugin.problem import SizeClass
from inductor_plugin.problem.target import target
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton.order import TritonTile
from inductor_plugin.templates.triton.product import Product, product_of
from inductor_plugin.templates.triton.split_k import scratch_bytes, tiles_of
from tests.support.lowering import Arg
from tests.support.triton.lowering import F16, H100, NEEDS_CUDA_BUILD, batch, lowered, mm, problem
from tests.support.triton.products.split_k import TEMPLATE

pytestmark = NEEDS_CUDA_BUILD


def test_a_dynamic_k_is_taken() -> None:
    dynamic = problem(
        dynamic=(SizeClass(0, 1, 2049, 4096, 4096), SizeClass(1, 0, 2049, 4096, 4096))
    )
    assert TEMPLATE.reject(dynamic) is None
    assert not any(candidate.config["EVEN_K"] for candidate in TEMPLATE.candidates(dynamic))


def test_which_result_fills_a_device_depends_on_the_device() -> None:
    product = problem(1408, 1280)  # 110 tiles of 128x128
    assert TEMPLATE.reject(product) is None
    assert "its 110 tiles" in (TEMPLATE.reject(replace(product, target=target("A100"))) or "")
    assert TEMPLATE.reject(replace(product, target=None)) is None


@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 8192), (64, 64, 65536), (512, 512, 16384)])
def test_the_parts_fill_the_device_and_are_not_too_short(m: int, n: int, k: int) -> None:
    candidates = TEMPLATE.candidates(problem(m, n, k))
    assert 2 <= len(candidates) <= 6
    for candidate in candidates:
        config: Any = candidate.config
        assert 1 < config["SPLIT_K"] <= 32
        assert k // config["SPLIT_K"] >= 2 * config["BLOCK_K"]
    first: Any = candidates[0].config
    tiles = -(-m // first["BLOCK_M"]) * -(-n // first["BLOCK_N"])
    assert 64 < tiles * first["SPLIT_K"] <= 2 * 132 or first["SPLIT_K"] == 32


def test_scratch_memory_holds_all_parts_and_one_counter_a_tile() -> None:
    product = product_of(problem(40, 200, 4096))
    assert isinstance(product, Product)
    tile = TritonTile(16, 64, 64, 3, 4, 8)
    assert scratch_bytes(product, tile) == 12 * 8 * 16 * 64 * 4 + 12 * 4
    many = product_of(batch(3, 40, 200, 4096))
    assert isinstance(many, Product)
    assert scratch_bytes(many, tile) == 3 * (12 * 8 * 16 * 64 * 4 + 12 * 4)
    for candidate in TEMPLATE.candidates(problem(40, 200, 4096)):
        assert isinstance(candidate.kernel, TritonSource)
        assert candidate.kernel.scratch_bytes % 16 == 0


def test_the_ranking_counts_that_all_sums_are_zeroed() -> None:
    # Whole tiles, in L2 at half of its 5120 bytes a clock, and a launch of their own.
    tile = TritonTile(16, 64, 64, 3, 4, 8)
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


def test_the_wrapper_zeroes_the_scratch_memory_and_the_benchmark_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = lowered(TEMPLATE, "triton_split_k", mm, (Arg((4, 4096), F16), Arg((4096, 512), F16)))
    (size,) = re.findall(r"workspace_\d+ = empty_strided_cuda\(\((\d+), \)", graph.code)
    assert re.search(r"workspace_\d+\.zero_\(\)\n.*\n.*\.run\(", graph.code)
    candidate: Any = graph.entries[0].candidate
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


def a_product(m: int, n: int, k: int) -> Product:
    product = product_of(problem(m, n, k))
    assert isinstance(product, Product)
    return product


@pytest.mark.parametrize(("k", "most"), [(1023, 2), (1024, 4), (2047, 4), (2048, 8)])
def test_a_part_is_at_least_two_steps_long(k: int, most: int) -> None:
    assert max(tile.parts for tile in tiles_of(a_product(4, 4096, k))) == most


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (16, 4096, (16, 128)),
        (17, 4096, (32, 128)),
        (32, 16, (32, 128)),
        (33, 32, (128, 32)),
        (33, 33, (64, 128)),
        (64, 4096, (64, 128)),
        (65, 33, (128, 128)),
    ],
)
def test_tiles_are_as_small_as_the_result(m: int, n: int, tile: tuple[int, int]) -> None:
    first = tiles_of(a_product(m, n, 8192))[0]
    assert (first.m, first.n) == tile
