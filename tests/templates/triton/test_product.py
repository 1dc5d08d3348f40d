"""What the Triton templates read from a problem: factors, dynamic dimensions, orders."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.problem import SizeClass
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support.triton.lowering import NEEDS_CUDA_BUILD, batch, matrix, problem

pytestmark = NEEDS_CUDA_BUILD


def a_product(**facts: Any) -> Product:
    product = product_of(problem(**facts))
    assert isinstance(product, Product)
    return product


def with_bias(**facts: Any) -> Product:
    inputs = (matrix(4, 256), matrix(4, 512), matrix(512, 256))
    return a_product(op="addmm", inputs=inputs, output=matrix(4, 256), **facts)


def test_another_operator_is_refused_by_name() -> None:
    assert product_of(problem(op="int_mm")) == "it serves mm, addmm, bmm, baddbmm, not int_mm"
    assert "not mm_plus_mm" in str(product_of(problem(op="mm_plus_mm")))


def test_factors_are_read_and_whole_ones_stay_whole() -> None:
    scaled = with_bias(arguments=(("alpha", "0.5"), ("beta", "2.0")))
    assert scaled.epilogue == {"epilogue": "addmm", "alpha": 0.5, "beta": 2}
    assert isinstance(scaled.beta, int)
    assert (with_bias().alpha, with_bias().beta) == (1, 1)
    assert a_product().epilogue["epilogue"] == "none"


@pytest.mark.parametrize(
    ("operand", "dim", "name"), [(1, 0, "m"), (1, 1, "k"), (2, 0, "k"), (2, 1, "n")]
)
def test_a_bias_does_not_shift_which_dimension_is_dynamic(
    operand: int, dim: int, name: str
) -> None:
    assert with_bias(dynamic=(SizeClass(operand, dim, 1, 99, 64),)).dynamic == {name}


def test_a_dynamic_bias_makes_no_dimension_dynamic() -> None:
    assert with_bias(dynamic=(SizeClass(0, 1, 1, 99, 64),)).dynamic == frozenset()


@pytest.mark.parametrize(
    ("operand", "dim", "name"), [(0, 0, "b"), (0, 1, "m"), (1, 1, "k"), (1, 2, "n")]
)
def test_the_dimensions_of_a_batch_have_names(operand: int, dim: int, name: str) -> None:
    many = product_of(batch(3, 4, 512, 256, dynamic=(SizeClass(operand, dim, 1, 999, 64),)))
    assert isinstance(many, Product)
    assert (many.dynamic, many.batch, many.batched) == ({name}, 3, True)


def test_an_extent_is_even_if_it_is_known_and_divided() -> None:
    product = a_product(n=4160, dynamic=(SizeClass(0, 1, 1, 9999, 4096),))
    assert [product.even("n", block) for block in (64, 128)] == [True, False]
    assert not product.even("k", 64)


@pytest.mark.parametrize(("a_by_rows", "b_by_rows"), [(True, False), (False, True)])
def test_the_ranking_knows_the_orders(*, a_by_rows: bool, b_by_rows: bool) -> None:
    a = matrix(64, 512) if a_by_rows else matrix(64, 512, stride=(1, 64))
    b = matrix(512, 256) if b_by_rows else matrix(512, 256, stride=(1, 512))
    shape = a_product(inputs=(a, b), output=matrix(64, 256)).shape
    assert (shape.a_row_major, shape.b_row_major) == (a_by_rows, b_by_rows)
    assert (shape.m, shape.n, shape.k) == (64, 256, 512)
