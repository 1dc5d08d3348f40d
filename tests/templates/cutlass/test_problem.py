from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.templates.cutlass.problem import GemmFacts, facts_of


def dense(size: Sequence[int], dtype: str = "bfloat16", **values: Any) -> Operand:
    """Return a contiguous operand, unless ``stride`` says otherwise."""
    stride: list[int] = []
    step = 1
    for extent in reversed(size):
        stride.insert(0, step)
        step *= extent
    return Operand(tuple(size), values.pop("stride", tuple(stride)), dtype, "cuda", **values)


def product(a: Operand, b: Operand, dtype: str = "bfloat16") -> Problem:
    size = (*a.size[:-1], b.size[-1])
    return Problem("bmm" if len(size) == 3 else "mm", (a, b), dense(size, dtype))


def facts(problem: Problem, **options: Any) -> GemmFacts:
    gemm = facts_of(problem, **options)
    assert isinstance(gemm, GemmFacts), gemm
    return gemm


def with_bias(bias: Operand, m: int = 64, n: int = 128, **arguments: str) -> Problem:
    return Problem(
        "addmm",
        (bias, dense((m, 32)), dense((32, n))),
        dense((m, n)),
        arguments=tuple(arguments.items()),
    )


def scaled(scale_a: Operand, scale_b: Operand, *bias: Operand, **arguments: str) -> Problem:
    a = dense((64, 32), "float8_e4m3fn")
    b = dense((32, 128), "float8_e4m3fn", stride=(1, 32))
    return Problem(
        "scaled_mm",
        (a, b, scale_a, scale_b, *bias),
        dense((64, 128)),
        arguments=tuple(arguments.items()),
    )


def test_a_plain_product() -> None:
    gemm = facts(product(dense((64, 32)), dense((32, 128), stride=(1, 32))))
    assert (gemm.m, gemm.n, gemm.k, gemm.batch) == (64, 128, 32, 1)
    assert (gemm.a, gemm.b, gemm.c, gemm.d) == ("bf16", "bf16", "bf16", "bf16")
    assert (gemm.layout_a, gemm.layout_b) == ("row", "column")
    assert (gemm.align_a, gemm.align_b, gemm.align_d) == (8, 8, 8)
    assert (gemm.bias, gemm.scale) == ("none", "none")


@pytest.mark.parametrize(
    ("operand", "align"),
    [
        (dense((64, 32)), 8),
        (dense((64, 32), offset=4), 4),
        (dense((64, 32), stride=(34, 1)), 2),
        (dense((64, 31), stride=(32, 1)), 1),
        (dense((64, 12), stride=(16, 1)), 4),
        (dense((64, 32), stride=(4096, 1), divisors=(1, 1, 16)), 1),
        (dense((64, 32), stride=(4096, 1), divisors=(4, 1, 16)), 4),
        (dense((64, 32), divisors=(16, 1, 1)), 1),
        (dense((64, 32), divisors=(16, 1, 2)), 2),
    ],
)
def test_the_alignment_counts_offset_stride_and_extent(operand: Operand, align: int) -> None:
    gemm = facts(product(operand, dense((operand.size[1], 128))))
    assert gemm.align_a == align


def test_the_stride_of_a_single_row_does_not_count() -> None:
    gemm = facts(product(dense((1, 32), stride=(37, 1)), dense((32, 128))))
    assert (gemm.layout_a, gemm.align_a) == ("row", 8)


def test_a_single_column_is_read_along_k() -> None:
    gemm = facts(product(dense((64, 32)), dense((32, 1))))
    assert (gemm.layout_b, gemm.align_b, gemm.align_d) == ("column", 8, 1)


def test_a_batch_counts_its_stride_and_may_be_shared() -> None:
    shared = dense((3, 32, 128), stride=(0, 128, 1))
    assert facts(product(dense((3, 64, 32)), shared)).align_b == 8
    odd = dense((3, 64, 32), stride=(64 * 32 + 2, 32, 1))
    gemm = facts(product(odd, shared))
    assert (gemm.batch, gemm.align_a) == (3, 2)


def test_a_batch_stride_known_at_run_time_has_the_alignment_that_is_proven() -> None:
    b = dense((3, 32, 128))
    for divisor in (1, 2, 16):
        a = dense((3, 64, 32), divisors=(divisor, 16, 1, 16))
        assert facts(product(a, b)).align_a == min(divisor, 8)


def test_a_dynamic_contiguous_extent_has_no_known_alignment() -> None:
    problem = product(dense((64, 32)), dense((32, 128)))
    rows = replace(problem, dynamic=(SizeClass(0, 0, 33, 64, 64),))
    assert facts(rows).align_a == 8
    columns = replace(problem, dynamic=(SizeClass(1, 1, 65, 128, 128),))
    gemm = facts(columns)
    assert (gemm.align_a, gemm.align_b, gemm.align_d) == (8, 1, 1)


@pytest.mark.parametrize(
    ("bias", "shape"),
    [
        (dense((128,)), "row"),
        (dense((64, 128), stride=(0, 1)), "row"),
        (dense((1, 128)), "row"),
        (dense((64, 128), stride=(1, 0)), "column"),
        (dense((64, 1)), "column"),
        (dense((64, 128)), "full"),
        (dense((64, 128), stride=(256, 1)), "full"),
    ],
)
def test_a_bias_is_told_by_its_strides(bias: Operand, shape: str) -> None:
    assert facts(with_bias(bias)).bias == shape


def test_biases_of_a_single_row_or_column() -> None:
    assert facts(with_bias(dense((1, 128)), m=1)).bias == "row"
    assert facts(with_bias(dense((64, 1), stride=(1, 1)), n=1)).bias == "column"
    assert facts(with_bias(dense((64, 1), stride=(8, 1)), n=1)).bias == "full"
    assert facts(with_bias(dense((1, 1)), m=1, n=1)).bias == "row"


@pytest.mark.parametrize("size", [(1,), (1, 1)])
def test_one_number_is_a_row_of_one_element_and_no_column(size: tuple[int, ...]) -> None:
    number = dense(size)
    for m in (2, 64):
        assert "is no row and no column of D" in str(facts_of(with_bias(number, m=m, n=1)))
    assert facts(with_bias(number, m=1, n=1)).bias == "row"


@pytest.mark.parametrize(
    ("bias", "reason"),
    [
        (dense((128,), stride=(2,)), "contiguous along n"),
        (dense((64, 128), stride=(1, 64)), "contiguous along n"),
        (dense((64, 128), stride=(3, 0)), "a column of bias must be contiguous"),
        (dense((64, 128), stride=(0, 0)), "one number for all of D"),
    ],
)
def test_a_bias_no_kernel_reads_is_refused(bias: Operand, reason: str) -> None:
    assert reason in str(facts_of(with_bias(bias)))


def test_a_bias_times_zero_is_not_read() -> None:
    gemm = facts(with_bias(dense((128,), stride=(2,)), beta="0", alpha="0.5"))
    assert (gemm.bias, gemm.alpha, gemm.beta) == ("none", 0.5, 0.0)


def test_the_alignment_of_a_full_bias_counts() -> None:
    assert facts(with_bias(dense((64, 128), stride=(130, 1)))).align_c == 2
    assert facts(with_bias(dense((128,), offset=3))).align_c == 1
    assert facts(with_bias(dense((128,), divisors=(1, 2)))).align_c == 2
    batched = Problem(
        "baddbmm",
        (
            dense((3, 64, 128), stride=(132, 0, 1)),
            dense((3, 64, 32)),
            dense((3, 32, 128)),
        ),
        dense((3, 64, 128)),
    )
    gemm = facts(batched)
    assert (gemm.bias, gemm.align_c) == ("row", 4)
    shared = dense((1, 64, 128), stride=(132, 0, 1))  # its batch stride is never added
    assert facts(replace(batched, inputs=(shared, *batched.inputs[1:]))).align_c == 8


def test_float32_needs_leave_to_be_rounded() -> None:
    problem = product(dense((64, 32), "float32"), dense((32, 128), "float32"), "float32")
    assert "TF32, which is off" in str(facts_of(problem))
    gemm = facts(problem, allow_tf32=True)
    assert (gemm.a, gemm.d, gemm.align_a) == ("tf32", "f32", 4)


def test_scales_are_told_by_their_numbers() -> None:
    scale = dense((1,), "float32")
    assert facts(scaled(scale, scale)).scale == "tensor"
    rows, columns = dense((64, 1), "float32"), dense((1, 128), "float32")
    gemm = facts(scaled(rows, columns, dense((128,)), use_fast_accum="True"))
    assert (gemm.scale, gemm.bias, gemm.fast_accumulation) == ("rowwise", "row", True)
    assert not facts(scaled(rows, columns)).fast_accumulation


def test_only_scales_of_whole_matrices_leave_room_for_a_factor() -> None:
    scale = dense((1,), "float32")
    assert facts(scaled(scale, scale, alpha="2")).alpha == 2
    rows, columns = dense((64, 1), "float32"), dense((1, 128), "float32")
    assert "no room for alpha" in str(facts_of(scaled(rows, columns, alpha="2")))


@pytest.mark.parametrize(
    ("scale_a", "scale_b", "reason"),
    [
        (dense((1,)), dense((1,)), "must be float32"),
        (dense((1,)), dense((1,), "float32"), "must be float32"),
        (dense((1,), "float32"), dense((1,)), "must be float32"),
        (dense((64, 1), "float32"), dense((1,), "float32"), "64 and 1 numbers"),
        (
            dense((64, 1), "float32", stride=(2, 1)),
            dense((1, 128), "float32"),
            "must be contiguous",
        ),
    ],
)
def test_other_scales_are_refused(scale_a: Operand, scale_b: Operand, reason: str) -> None:
    assert reason in str(facts_of(scaled(scale_a, scale_b)))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem("convolution", (dense((2, 2)),), dense((2, 2))), "not convolution"),
        (product(dense((0, 32)), dense((32, 8))), "a dimension is empty"),
        (product(dense((64, 32), stride=(64, 2)), dense((32, 8))), "A needs a unit stride"),
        (product(dense((64, 32), "float64"), dense((32, 8))), "no kernel for float64"),
        (product(dense((64, 32), "int32"), dense((32, 8), "int32"), "int32"), "no tensor core"),
        (product(dense((64, 32)), dense((32, 8)), "float16"), "do not give float16"),
        (
            Problem("mm", (dense((64, 32)), dense((32, 8))), dense((64, 8), stride=(1, 64))),
            "the output must be row-major",
        ),
        (
            Problem("mm", (Operand((4, 4), (4, 1), "bfloat16", "cpu"),) * 2, dense((4, 4))),
            "strided CUDA tensors",
        ),
        (with_bias(dense((128,)), alpha="s0"), "alpha must be a number"),
        (product(dense((64, 32), stride=(0, 1)), dense((32, 8))), "A is expanded"),
        (product(dense((64, 32), stride=(1, 0)), dense((32, 8))), "A is expanded"),
        (product(dense((64, 32)), dense((32, 8), stride=(0, 1))), "B is expanded"),
        (product(dense((64, 32), stride=(8, 1)), dense((32, 8))), "the rows of A overlap"),
        (product(dense((64, 32)), dense((32, 8), stride=(1, 16))), "the rows of B overlap"),
        (
            product(dense((3, 64, 32), stride=(2048, 8, 1)), dense((3, 32, 8))),
            "the rows of A overlap",
        ),
        (with_bias(dense((64, 128), stride=(8, 1))), "the rows of the bias overlap"),
        (
            Problem("mm", (dense((64, 32)), dense((32, 8))), dense((64, 8), stride=(4, 1))),
            "the rows of the output overlap",
        ),
        (product(dense((65536, 2, 8)), dense((65536, 8, 8))), "65535 products at once"),
    ],
)
def test_what_cutlass_cannot_run_says_why(problem: Problem, reason: str) -> None:
    assert reason in str(facts_of(problem))


def test_the_largest_batch_and_shared_matrices_are_taken() -> None:
    assert facts(product(dense((65535, 2, 8)), dense((65535, 8, 8)))).batch == 65535
    shared = dense((3, 32, 128), stride=(0, 128, 1))
    assert facts(product(dense((3, 64, 32)), shared)).batch == 3
    assert facts(product(dense((64, 1), stride=(1, 1)), dense((1, 128)))).k == 1
