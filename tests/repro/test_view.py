"""How operands and results that lie under a product by strides are written, against torch itself."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math

import pytest
import torch

from inductor_plugin.repro.operand import Made
from inductor_plugin.repro.view import Shape, dense, seen, split, stored

PRODUCT = (6, 8)


def made(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Made:
    return Made(size, stride, offset, "float32", "cpu", constant=False, opaque="")


@pytest.mark.parametrize(
    ("size", "stride", "read", "offset", "text"),
    [
        ((8,), (1,), (0, 1), 0, "x"),
        ((1, 8), (8, 1), (0, 1), 0, "x"),
        ((), (), (0, 0), 0, "x"),
        ((6, 8), (8, 1), (8, 1), 0, "x"),
        ((6, 8), (16, 1), (16, 1), 0, "x"),
        ((6, 1), (1, 1), (1, 0), 0, "x"),
        ((6,), (1,), (1, 0), 0, "x.view(6, 1)"),
        ((8, 6), (6, 1), (1, 6), 0, "x.t()"),
        ((2, 3, 8), (24, 8, 1), (8, 1), 0, "x.view(6, 8)"),
        ((6, 16), (16, 1), (16, 1), 8, "torch.as_strided(x, (6, 8), (16, 1), 8)"),
        ((6, 16), (16, 1), (16, 2), 0, "torch.as_strided(x, (6, 8), (16, 2), 0)"),
        ((6, 16), (32, 1), (32, 1), 8, None),
    ],
)
def test_an_operand_is_written_as_people_would(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    read: tuple[int, ...],
    offset: int,
    text: str | None,
) -> None:
    operand = made(size, stride)
    assert seen("x", operand, Shape(PRODUCT, PRODUCT), read, offset) == text
    if text is None:
        return
    flat = torch.arange(operand.elements, dtype=torch.float32)
    found = eval(text, {"torch": torch, "x": torch.as_strided(flat, size, stride)})
    wanted = torch.as_strided(flat, PRODUCT, read, offset)
    assert torch.equal(torch.broadcast_to(found, PRODUCT), wanted)


def test_a_product_whose_dimensions_are_split() -> None:
    shape = split(PRODUCT, (2, 3, 8))
    assert shape is not None
    assert shape.of_product() == "product.view(2, 3, 8)"
    assert shape.strides((8, 1)) == (24, 8, 1) == dense((2, 3, 8))
    assert shape.strides((1, 0)) == (3, 1, 0)
    assert seen("x", made((2, 3, 8), (24, 8, 1)), shape, (24, 8, 1), 0) == "x"
    assert seen("x", made((6,), (1,)), shape, (3, 1, 0), 0) == "x.view(2, 3, 1)"
    unknown = Shape(PRODUCT, (2, 3, 8), (2, 1), dynamic=True)
    assert unknown.of_product() == "product.view(-1, 3, product.shape[1])"
    assert seen("x", made((6,), (1,)), unknown, (3, 1, 0), 0) == (
        "x.view(shaped.shape[0], shaped.shape[1], 1)"
    )
    assert seen("x", made((6, 16), (16, 1)), unknown, (48, 16, 1), 8) is None


@pytest.mark.parametrize("size", [(8, 6), (48,), (6, 9), (3, 2, 4), (4, 12)])
def test_what_is_no_split(size: tuple[int, ...]) -> None:
    assert split(PRODUCT, size) is None


@pytest.mark.parametrize(
    ("along", "size", "text"),
    [
        ((8, 1), (6, 8), "{}"),
        ((1, 6), (6, 8), "{}"),
        ((1, 6), (8, 6), "{}.t().contiguous()"),
        ((1, 6), (2, 4, 6), "{}.t().contiguous().view(2, 4, 6)"),
        ((8, 1), (48,), "{}.view(48)"),
        ((16, 1), (6, 16), None),
    ],
)
def test_a_result_is_turned_as_it_lies(
    along: tuple[int, ...], size: tuple[int, ...], text: str | None
) -> None:
    assert stored(Shape(PRODUCT, PRODUCT), along, 0, size) == text
    if text is None:
        return
    value = torch.arange(math.prod(PRODUCT)).view(PRODUCT)
    found = eval(text.format("value"), {"value": value})
    assert tuple(found.shape) == size
    if text != "{}":
        # Where element [m, n] must be: at the strides along the product.
        assert torch.equal(torch.as_strided(found, PRODUCT, along), value)


def test_a_result_that_may_be_turned_or_a_view_is_refused() -> None:
    assert stored(Shape(PRODUCT, PRODUCT), (8, 1), 0, (8, 6)) is None


def test_a_result_behind_another_one_is_refused() -> None:
    assert stored(Shape(PRODUCT, PRODUCT), (8, 1), 8, PRODUCT) is None
