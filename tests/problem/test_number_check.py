"""What the worker is asked to check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem.definition import Operand, Problem
from inductor_plugin.problem.number_check import (
    added_operands,
    amplitudes,
    bias_of,
    random_factors,
    steepness,
    tolerance_of,
)
from inductor_plugin.problem.tolerance import STEPPED, Tolerance, product_tolerance


def operand(*size: int, dtype: str = "bfloat16") -> Operand:
    stride = tuple(1 if i == len(size) - 1 else size[-1] for i in range(len(size)))
    return Operand(size, stride, dtype, "cuda")


A, B, C, D = operand(8, 4096), operand(4096, 16), operand(16), operand(8, 16)
SCALE = operand()


@pytest.mark.parametrize(
    ("problem", "added"),
    [
        (Problem("mm", (A, B), D), ()),
        (Problem("addmm", (C, A, B), D), (0,)),
        (Problem("mm", (A, B, C), D, epilogue="add.relu-0123"), (2,)),
        (Problem("addmm", (C, A, B, D), D, epilogue="add-0123"), (0, 3)),
        (Problem("mm", (A, B, C), D, epilogue="add.mul-0123"), ()),
        (Problem("convolution", (A, B), D), ()),
        (Problem("scaled_mm", (A, B, SCALE, SCALE), D), ()),
        (Problem("scaled_mm", (A, B, SCALE, SCALE, C), D), (4,)),
        (Problem("scaled_mm", (A, B, SCALE, SCALE, C), D, epilogue="mul-0", epilogue_reads=1), ()),
        (
            Problem("scaled_mm", (A, B, SCALE, SCALE, C), D, epilogue="add-0", epilogue_reads=1),
            (4,),
        ),
        (
            Problem("scaled_mm", (A, B, SCALE, SCALE, C, D), D, epilogue="mul-0", epilogue_reads=1),
            (4,),
        ),
    ],
    ids=lambda value: value.describe() if isinstance(value, Problem) else "",
)
def test_operands_that_are_added(problem: Problem, added: tuple[int, ...]) -> None:
    assert added_operands(problem) == added


@pytest.mark.parametrize(("extent", "factor"), [(1, 1.0), (4096, 64.0), (14336, 128.0)])
def test_they_are_as_large_as_the_product(extent: int, factor: float) -> None:
    wide = operand(extent, 1 << 20)
    assert amplitudes(Problem("addmm", (C, operand(8, extent), wide), D)) == {0: factor}


@pytest.mark.parametrize(("extent", "factor"), [(1, 1.0), (4096, 1 / 64)])
def test_a_product_that_an_epilogue_reads_is_about_1(extent: int, factor: float) -> None:
    fused = Problem("addmm", (C, operand(8, extent), operand(extent, 16)), D, epilogue="exp-01")
    assert amplitudes(fused) == {1: factor}


def test_what_has_fixed_or_whole_numbers_is_not_scaled_for_an_epilogue() -> None:
    fused = Problem("addmm", (C, operand(8, 4096), operand(4096, 16)), D, epilogue="exp-01")
    assert amplitudes(fused, shared={2}) == {0: 64.0}
    assert amplitudes(fused, frozen={2}) == {0: 1.0}
    whole = (operand(8, 4096, dtype="int8"), operand(4096, 16, dtype="int8"))
    assert amplitudes(Problem("int_mm", whole, D, epilogue="mul-01")) == {}


@pytest.mark.parametrize(
    ("arguments", "frozen", "factor"),
    [
        ({"alpha": "0.01"}, (), 0.5),
        ({"alpha": "-4", "beta": "0.5"}, (), 512.0),
        ({"alpha": "0.25"}, (2,), 0.25),
        ({"beta": "0"}, (), 64.0),
        ({"beta": "1e-9"}, (), 4096.0),
    ],
)
def test_what_is_added_is_as_large_as_the_product_with_its_scalars(
    arguments: dict[str, str], frozen: tuple[int, ...], factor: float
) -> None:
    inputs = (C, operand(8, 4096), operand(4096, 16))
    problem = Problem("addmm", inputs, D, arguments=tuple(arguments.items()))
    assert amplitudes(problem, frozen) == {0: factor}


def test_a_frozen_weight_is_the_larger_part_of_a_steep_product() -> None:
    problem = Problem("mm", (A, B), D, epilogue="exp-0")
    assert (steepness(problem), random_factors(problem, ())) == (4, 2)
    assert (steepness(problem, frozen=(1,)), random_factors(problem, (1,))) == (8, 1)


@pytest.mark.parametrize(
    ("op", "operands", "index"),
    [
        ("mm", (A, B), None),
        ("addmm", (C, A, B), 0),
        ("packed_linear", (A, B, B, C), 3),
        ("packed_linear", (A, B, B), None),
        ("linear_unary", (A, B, C), 2),
        ("linear_unary", (A, B, operand(16, dtype="int32")), None),
        ("qlinear_unary", (A, B, C), None),
    ],
)
def test_the_bias_of_a_product(op: str, operands: tuple[Operand, ...], index: int | None) -> None:
    assert bias_of(Problem(op, operands, D)) == index


@pytest.mark.parametrize(("reads", "index"), [(0, 4), (1, None)])
def test_what_an_epilogue_reads_is_no_bias(reads: int, index: int | None) -> None:
    inputs = (A, B, SCALE, SCALE, C)
    fused = Problem("scaled_mm", inputs, D, epilogue="mul-0", epilogue_reads=reads)
    assert bias_of(fused) == index


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_a_wide_product_is_judged_by_the_length_of_its_sums(op: str, *, tf32: bool) -> None:
    """By N terms, up to 5 times as much is accepted in float32, and less in TF32, where few terms average less out."""
    wide = operand(128256, dtype="float32")
    a, b = operand(8, 4096, dtype="float32"), operand(4096, 128256, dtype="float32")
    inputs = (a, b) if op == "mm" else (wide, a, b)
    problem = Problem(op, inputs, operand(8, 128256, dtype="float32"))
    accepted = product_tolerance("float32", "float32", 4096, tf32=tf32)
    assert tolerance_of(problem, tf32=tf32) == replace(accepted, own_units=True)


@pytest.mark.parametrize(
    ("op", "arguments", "own"),
    [
        ("linear_unary", {"attr": "'none'", "algorithm": "''"}, True),
        ("linear_unary", {"attr": "'relu'"}, False),
        ("linear_binary", {"attr": "'add'"}, True),
        ("linear_binary", {"attr": "'mul'"}, False),
        ("qlinear_unary", {"post_op_name": "'none'"}, True),
        ("qlinear_unary", {"post_op_name": "'relu'"}, False),
        ("qlinear_binary", {"unary_post_op": "'relu'"}, False),
    ],
)
def test_rows_of_what_is_computed_of_a_product_have_no_units(
    op: str, arguments: dict[str, str], *, own: bool
) -> None:
    """A column of which relu leaves a few numbers is small beside its errors."""
    problem = Problem(op, (A, B), D, tuple(arguments.items()))
    assert tolerance_of(problem, tf32=False).own_units is own


def test_integers_that_a_call_rounds_to_may_differ_in_steps() -> None:
    inputs = operand(8, 16, dtype="uint8"), operand(16, 16, dtype="int8")
    exact = operand(8, 16, dtype="int32")
    assert tolerance_of(Problem("int_mm", inputs, exact), tf32=False).spread == 0
    rounded = Problem("qlinear_unary", inputs, operand(8, 16, dtype="uint8"))
    assert tolerance_of(rounded, tf32=False) == Tolerance(STEPPED, STEPPED, steps=1.0)


def test_a_convolution_is_as_long_as_its_filters() -> None:
    image, filters = operand(1, 64, 8, 8), operand(16, 64, 3, 3)
    assert amplitudes(Problem("convolution", (image, filters), D, epilogue="relu-0")) == {0: 1 / 32}


@pytest.mark.parametrize(("extent", "exponent"), [(1, 4), (64, 2), (4096, 1), (65536, 0)])
def test_products_of_steep_operands_are_some_hundreds(extent: int, exponent: int) -> None:
    inputs = (operand(8, extent), operand(extent, 16))
    assert steepness(Problem("mm", inputs, D)) == exponent
    assert 100 < 4**exponent * extent**0.5 <= 256
    assert steepness(Problem("mm", inputs, D, epilogue="exp-0")) == 4


def test_an_epilogue_does_not_widen_the_tolerance() -> None:
    bare = tolerance_of(Problem("mm", (A, B), D), tf32=False)
    wide = operand(8, 1 << 22)
    assert tolerance_of(Problem("mm", (A, B, wide), D, epilogue="add-0123"), tf32=False) == replace(
        bare, own_units=False
    )
    steps = Problem("mm", (A, B), operand(8, 16, dtype="bool"), epilogue="gt-0123")
    assert tolerance_of(steps, tf32=False).spread == STEPPED
    assert (
        tolerance_of(Problem("int_mm", (A, B), operand(8, 16, dtype="int32")), tf32=False).largest
        == 0
    )
