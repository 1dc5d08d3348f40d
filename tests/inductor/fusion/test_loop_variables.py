"""Which dimensions of a buffer a loop variable runs over."""

from __future__ import annotations

import pytest

from inductor_plugin.inductor.fusion.loop_variables import dimensions_of


@pytest.mark.parametrize(
    ("move", "extent", "dims"),
    [
        (1, 16, (1,)),
        (16, 8, (0,)),
        # the inner, the outer and the middle part of a split loop
        (1, 4, (1,)),
        (4, 4, (1,)),
        (2, 4, (1,)),
        (32, 4, (0,)),
        (1, 128, (1, 0)),
        # beyond the end of its dimension, and in no dimension
        (4, 8, ()),
        (32, 8, ()),
        (1, 24, ()),
        (0, 8, ()),
    ],
)
def test_a_loop_may_be_a_part_of_a_dimension_up_to_its_end(
    move: int, extent: int, dims: tuple[int, ...]
) -> None:
    assert dimensions_of(move, extent, (8, 16), (16, 1)) == dims


@pytest.mark.parametrize(
    ("move", "extent", "size", "stride", "dims"),
    [
        (16, 32, (4, 8, 16), (128, 16, 1), (1, 0)),
        (1, 512, (4, 8, 16), (128, 16, 1), (2, 1, 0)),
        (1, 128, (8, 1, 16), (16, 16, 1), (2, 0)),
        (1, 128, (8, 16), (32, 1), ()),  # a gap between the rows
        (16, 8, (8, 16), (0, 1), ()),  # the rows are one
        (16, 8, (8, 1, 16), (16, 8, 1), (0,)),  # the stride of a single element means nothing
    ],
)
def test_adjacent_dimensions_are_one_loop(
    move: int, extent: int, size: tuple[int, ...], stride: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    assert dimensions_of(move, extent, size, stride) == dims
