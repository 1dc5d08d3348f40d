"""Products of a few rows: which tiles come first, and what fuses into them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from inductor_plugin.problem import SizeClass
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton.decode import dots_of, vectors_of
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support.lowering import Arg
from tests.support.triton.lowering import F16, NEEDS_CUDA_BUILD, batch, lowered, matrix, problem
from tests.support.triton.products.decode import TEMPLATE

pytestmark = NEEDS_CUDA_BUILD


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, 32])
def test_a_few_rows_are_taken(rows: int) -> None:
    assert TEMPLATE.reject(problem(m=rows)) is None
    candidates = TEMPLATE.candidates(problem(m=rows))
    assert 2 <= len(candidates) <= 6
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    for competitor in candidates:
        assert isinstance(competitor.kernel, TritonSource)
        assert competitor.config["USE_DOT"] is (rows > 2) or competitor.config["BLOCK_M"] == 16
        assert competitor.config["BLOCK_M"] == (
            rows if not competitor.config["USE_DOT"] else 16 * -(-rows // 16)
        )


def a_product(**facts: Any) -> Product:
    product = product_of(problem(**facts))
    assert isinstance(product, Product)
    return product


def test_wide_tiles_come_first_where_they_fill_the_device_and_narrow_ones_else() -> None:
    wide, narrow = (TEMPLATE.candidates(problem(n=n))[0].config["BLOCK_N"] for n in (65536, 2048))
    assert (wide, narrow) == (64, 32)


def test_each_order_of_b_has_tiles_along_its_unit_stride() -> None:
    by_n = a_product(m=1)
    by_k = a_product(m=1, inputs=(matrix(1, 4096), matrix(4096, 4096, stride=(1, 4096))))
    assert max(vector.n for vector in vectors_of(by_k)) < 32
    assert min(vector.n for vector in vectors_of(by_n)) >= 64
    assert vectors_of(a_product(m=3)) == []


@pytest.mark.parametrize(
    ("k", "vector", "dot"), [(127, 0, 128), (128, 256, 256), (511, 512, 256), (512, 1024, 256)]
)
def test_a_step_is_at_most_twice_as_long_as_k(k: int, vector: int, dot: int) -> None:
    product = a_product(m=1, k=k, inputs=(matrix(1, k), matrix(k, 4096, stride=(1, k))))
    assert max((tile.k for tile in vectors_of(product)), default=0) == vector
    assert max(tile.k for tile in dots_of(product)) == dot


def test_products_in_a_batch_are_taken() -> None:
    many = batch(24, 4, 512, 128)
    assert TEMPLATE.reject(many) is None
    for sizes, is_batched in ((many, True), (problem(), False)):
        offered = TEMPLATE.candidates(sizes)
        assert {bool(candidate.config["BATCHED"]) for candidate in offered} == {is_batched}
    assert "at most 32 rows" in (TEMPLATE.reject(batch(24, 64, 512, 128)) or "")


def test_a_dynamic_size_is_never_taken_for_even() -> None:
    dynamic = problem(dynamic=(SizeClass(0, 1, 4096, 4096, 4096), SizeClass(1, 1, 1, 9999, 4096)))
    for sizes, is_even in ((dynamic, False), (problem(), True)):
        configs = [candidate.config for candidate in TEMPLATE.candidates(sizes)]
        assert {(config["EVEN_K"], config["EVEN_N"]) for config in configs} == {(is_even, is_even)}


def test_a_prologue_fuses_into_the_load_of_b() -> None:
    graph = lowered(
        TEMPLATE,
        "triton_decode",
        lambda a, b: (torch.mm(a, b.to(F16)),),
        (Arg((4, 4096), F16), Arg((4096, 2048), torch.int8)),
    )
    assert graph.code.count(".run(") == 1
    assert "*i8" in graph.code


def test_a_kernel_for_a_dynamic_number_of_rows_takes_it_as_an_argument() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(a, b))

    graph = lowered(
        TEMPLATE,
        "triton_decode",
        function,
        (Arg((4, 512), F16), Arg((512, 256), F16)),
        dynamic=True,
    )
    assert re.search(r"def triton_tem_fused_\w+\(arg_A, arg_B, out_ptr\d, ks0", graph.code)
    assert "// 16" in graph.code.rsplit(".run(", 1)[1]
