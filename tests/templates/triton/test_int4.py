"""Products with 4-bit weights: which tiles come first. What is lowered is in `tests/inductor/test_int4.py`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import pytest

from inductor_plugin.problem import SizeClass
from tests.support.triton.lowering import NEEDS_CUDA_BUILD, matrix
from tests.support.triton.products.int4 import TEMPLATE, problem, weight

pytestmark = NEEDS_CUDA_BUILD


def test_a_dynamic_number_of_rows_is_taken() -> None:
    assert TEMPLATE.reject(problem(dynamic=(SizeClass(0, 0, 4, 4, 4),))) is None


def test_wide_tiles_come_first_where_they_fill_the_device_and_narrow_ones_else() -> None:
    wide, narrow = (
        [candidate.config["BLOCK_N"] for candidate in TEMPLATE.candidates(problem(b=weight(n)))]
        for n in (65536, 1024)
    )
    assert wide[0] == 64
    assert narrow[0] == 16


@pytest.mark.parametrize(("rows", "tile"), [(16, 16), (17, 32), (32, 32), (33, 64), (64, 64)])
def test_a_tile_holds_all_rows(rows: int, tile: int) -> None:
    candidates = TEMPLATE.candidates(problem(matrix(rows, 4096)))
    assert candidates
    assert all(candidate.config["BLOCK_M"] == tile for candidate in candidates)


def test_a_k_that_a_step_does_not_divide_is_masked() -> None:
    k = 4096 + 128
    candidates = TEMPLATE.candidates(problem(matrix(4, k), weight(k=k)))
    even = {candidate.config["BLOCK_K"]: candidate.config["EVEN_K"] for candidate in candidates}
    assert even == {128: True, 256: False}
