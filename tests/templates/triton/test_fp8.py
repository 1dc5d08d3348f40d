"""Scaled products of 8-bit floats: which scales are taken, and what exact sums ask for."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import pytest

from inductor_plugin.problem import Operand, SizeClass
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton.fp8 import BLOCK, Scaled, _granularity, scaled_of
from tests.support.triton.lowering import NEEDS_CUDA_BUILD, matrix
from tests.support.triton.products.fp8 import E4, TEMPLATE, operands, problem

pytestmark = NEEDS_CUDA_BUILD


KINDS: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int, bool]]] = {
    "rows and columns": ((256, 1), (1, 512), (1, 1, False)),
    "1x128 and 128x128": ((256, 8), (8, 4), (1, 128, True)),
    "1x128 and 1x128": ((256, 8), (8, 512), (1, 1, True)),
    "128x128 and 1x128": ((2, 8), (8, 512), (128, 1, True)),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_sizes_of_the_scales_say_what_they_stand_for(name: str) -> None:
    a_scale, b_scale, expected = KINDS[name]
    scaled = scaled_of(problem(*operands(a_scale, b_scale)))
    assert isinstance(scaled, Scaled)
    assert (scaled.a_rows, scaled.b_columns, scaled.blockwise) == expected
    candidates = TEMPLATE.candidates(problem(*operands(a_scale, b_scale)))
    assert 2 <= len(candidates) <= 12
    for candidate in candidates:
        assert isinstance(candidate.kernel, TritonSource)
        assert candidate.kernel.capability == (9, 0)


def test_one_row_is_taken() -> None:
    few = problem(*operands((1, 1), a=matrix(1, 1024, **E4)))
    assert TEMPLATE.reject(few) is None
    assert TEMPLATE.candidates(few)[0].config["BLOCK_M"] == 64


@pytest.mark.parametrize(("b_scale", "columns"), [((8, 4), 128), ((8, 512), 1)])
def test_the_scales_of_one_row_are_no_blocks(b_scale: tuple[int, int], columns: int) -> None:
    few = problem(*operands((1, 8), b_scale, a=matrix(1, 1024, **E4)))
    assert TEMPLATE.reject(few) is None
    (result,) = {
        (candidate.config["A_ROWS_PER_SCALE"], candidate.config["B_COLUMNS_PER_SCALE"])
        for candidate in TEMPLATE.candidates(few)
    }
    assert result == (1, columns)


def test_the_scales_of_one_column_are_no_blocks() -> None:
    scales = matrix(2, 8, dtype="float32"), matrix(8, 1, dtype="float32")
    assert _granularity(256, 1, 1024, *scales) == (BLOCK, 1, True)


@pytest.mark.parametrize("a_scale", [(256, 1), (256, 8)])
def test_a_dynamic_number_of_rows_is_taken(a_scale: tuple[int, int]) -> None:
    rows = tuple(SizeClass(operand, 0, 129, 256, 256) for operand in (0, 2))
    b_scale = (1, 512) if a_scale[1] == 1 else (8, 4)
    many = problem(*operands(a_scale, b_scale), dynamic=rows)
    assert TEMPLATE.reject(many) is None
    assert TEMPLATE.candidates(many)


def test_the_callers_wish_for_exact_sums_is_kept() -> None:
    for text, fast in (("True", True), ("False", False)):
        candidates = TEMPLATE.candidates(problem(arguments=(("use_fast_accum", text),)))
        assert all(candidate.config["FAST_ACCUM"] is fast for candidate in candidates)
        assert (256 in [candidate.config["BLOCK_N"] for candidate in candidates]) is fast


@pytest.mark.parametrize(("bias", "epilogue"), [((), "none"), ((matrix(1, 512),), "bias")])
def test_a_bias_is_added(bias: tuple[Operand, ...], epilogue: str) -> None:
    for candidate in TEMPLATE.candidates(problem(*operands(), *bias)):
        assert isinstance(candidate.kernel, TritonSource)
        assert candidate.kernel.epilogue == epilogue
