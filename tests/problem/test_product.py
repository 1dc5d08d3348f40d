"""Which operands of a product are its factors and its own, and how long its sums are."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.contract import roles
from inductor_plugin.problem.product import (
    LINEAR,
    ROLES,
    SUM_OF_PRODUCTS,
    factors,
    flops,
    output_size,
    own_count,
    own_operands,
    own_roles,
    reduction_length,
)

M, N, K, G = 8, 128256, 4096, 3
"""The last layer of a language model: N is much larger than K."""
SIZES: dict[str, list[tuple[int, ...]]] = {
    "mm": [(M, K), (K, N)],
    "bmm": [(G, M, K), (G, K, N)],
    "int_mm": [(M, K), (K, N)],
    "addmm": [(N,), (M, K), (K, N)],
    "baddbmm": [(G, 1, N), (G, M, K), (G, K, N)],
    "scaled_mm": [(M, K), (K, N), (M, 1), (1, N)],
    "scaled_mm with a bias": [(M, K), (K, N), (M, 1), (1, N), (N,)],
    "grouped_mm": [(M, K), (G, K, N), (G,)],
    "grouped_mm of K": [(M, K), (K, N), (G,)],
    "grouped_mm of columns": [(G, M, K), (K, N), (G,)],
    "weight_int4pack_mm": [(M, K), (N // 8, K // 64, 32, 2), (K // 64, N, 2)],
    "packed_linear": [(M, K), (), (N, K), (N,)],
    "linear_unary": [(M, K), (), (N,)],
    "linear_binary": [(M, K), (M, N), (), (N,)],
}
OUTPUTS: dict[str, tuple[int, ...]] = {
    "bmm": (G, M, N),
    "baddbmm": (G, M, N),
    "grouped_mm of K": (G, M, N),
}


def operand(*size: int) -> Operand:
    return Operand(size, tuple(prod(size[dim + 1 :]) for dim in range(len(size))), "float32", "cpu")


def call(name: str, *read: tuple[int, ...], **facts: Any) -> Problem:
    """Return a call, with an epilogue if that reads anything."""
    inputs = tuple(operand(*size) for size in (*SIZES[name], *read))
    output = operand(*OUTPUTS.get(name, (M, N)))
    facts = {"epilogue": "mul-0123", "epilogue_reads": len(read), **facts} if read else facts
    return Problem(name.split()[0], inputs, output, **facts)


def test_every_operator_is_among_the_calls() -> None:
    assert {name.split()[0] for name in SIZES} == ROLES.keys() | LINEAR.keys()


@pytest.mark.parametrize("name", SIZES)
def test_a_sum_has_k_terms_however_wide_the_product_is(name: str) -> None:
    problem = call(name)
    assert reduction_length(problem.op, problem.inputs) == K
    batch = G if name in ("bmm", "baddbmm") else 1
    assert flops(problem) == 2 * batch * M * N * K


@pytest.mark.parametrize("name", SIZES)
def test_what_an_epilogue_reads_makes_no_sum_longer(name: str) -> None:
    fused = call(name, (M, 1 << 22))
    assert reduction_length(fused.op, own_operands(fused)) == K
    assert flops(fused) == flops(call(name))


def test_a_sum_of_products_has_the_terms_of_both() -> None:
    operands = [operand(*size) for size in [(M, 32), (32, N), (M, 64), (64, N)]]
    assert reduction_length(SUM_OF_PRODUCTS, operands) == 96
    assert flops(Problem(SUM_OF_PRODUCTS, tuple(operands), operand(M, N))) == 2 * M * N * 96


def test_the_sums_of_other_operators() -> None:
    image, filters = operand(1, 64, 8, 8), operand(16, 64, 3, 3)
    assert reduction_length("convolution", (image, filters)) == 64 * 9
    q, k = operand(1, 2, 8, 64), operand(1, 2, 300, 64)
    assert reduction_length("attention", (q, k, k, operand(1, 1, 8, 300))) == 300  # with its bias
    assert reduction_length("attention", (q, k, k)) == 64
    assert reduction_length("sort", ()) == 1
    assert reduction_length("mm", (operand(), operand(K, N))) == 1


def test_factors_are_those_of_the_roles() -> None:
    pairs = {op: factors(op) for op in ROLES}
    assert {op for op, pair in pairs.items() if pair == (1, 2)} == {"addmm", "baddbmm"}
    assert {pairs[op] for op in pairs.keys() - {"addmm", "baddbmm"}} == {(0, 1)}
    for op in (*LINEAR, "convolution", SUM_OF_PRODUCTS, "attention"):
        assert factors(op) is None


@pytest.mark.parametrize("name", [name for name in SIZES if name.split()[0] in ROLES])
@pytest.mark.parametrize("read", [0, 1, 2])
def test_the_operators_own_operands_come_before_those_of_its_epilogue(name: str, read: int) -> None:
    sizes = [(N,), (M, N)][:read]
    fused = call(name, *sizes)
    count = len(SIZES[name])
    assert own_operands(fused) == fused.inputs[:count]
    assert own_roles(fused) == ROLES[fused.op][:count]
    assert roles(fused) == (*ROLES[fused.op][:count], *[""] * read, "d")


def test_an_epilogue_that_reads_nothing_leaves_the_bias_to_the_product() -> None:
    fused = call("scaled_mm with a bias", epilogue="relu-0123", epilogue_reads=0)
    assert own_roles(fused)[-1] == "c"
    assert len(own_operands(fused)) == 5


@pytest.mark.parametrize(
    ("op", "inputs", "count"),
    [
        ("mm", 3, 2),
        ("addmm", 5, 3),
        ("grouped_mm", 4, 3),
        ("mm_plus_mm", 5, 4),
        ("scaled_mm", 4, 4),
        ("scaled_mm", 5, None),
        ("scaled_mm", 6, None),
        ("convolution", 3, None),
        ("mm", 1, 1),
    ],
)
def test_where_the_reads_are_not_known_a_bias_that_may_be_missing_is_not_guessed(
    op: str, inputs: int, count: int | None
) -> None:
    assert own_count(op, inputs) == count
    assert own_count(op, inputs, 1) == inputs - 1
    assert own_count(op, 1, 2) == 0


def test_the_extents_of_a_product_are_those_of_its_factors() -> None:
    for name in SIZES:
        problem = call(name)
        size = output_size(problem.op, problem.inputs)
        if problem.op in LINEAR:
            assert size is None
        elif name == "grouped_mm of K":
            assert size == (M, N)
        else:
            assert size == problem.output.size, name
    assert output_size("mm", (operand(M, K), operand())) is None
