"""How an operand or a result that lies under a product by strides is written in Python. Pure.

What Inductor tells of an index is a stride along each dimension of the product. A script should have
what a person would write for it: the name alone where it is broadcast, ``.t()``, ``.view(...)``, and
`torch.as_strided` only where nothing else says it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.repro.operand import Made

_RANK = 4
"""Dimensions up to which all orders are tried."""


@dataclass(frozen=True)
class Shape:
    """What the lines of an epilogue work on: the product, its dimensions as they are or split.

    Attributes:
        product: The product's extents.
        size: Its extents as the lines see it.
        runs: How many of them each dimension of the product has become; empty: one each.
        dynamic: Whether a size is unknown, so that views must not name it.
    """

    product: tuple[int, ...]
    size: tuple[int, ...]
    runs: tuple[int, ...] = ()
    dynamic: bool = False

    def strides(self, along: Sequence[int]) -> tuple[int, ...]:
        """Return strides along these dimensions from those along the product's; zero where one has extent 1."""
        made: list[int] = []
        runs = self.runs or (1,) * len(self.product)
        for stride, count in zip(along, runs, strict=True):
            extents = self.size[len(made) : len(made) + count]
            made += [stride * math.prod(extents[place + 1 :]) for place in range(count)]
        return _effective(self.size, made)

    def of_product(self) -> str:
        """Return the product seen like this."""
        if self.size == self.product:
            return "product"
        if not self.dynamic:
            return f"product.view({_list(self.size)})"
        made: list[str] = []
        for dim, count in enumerate(self.runs):
            extents = [str(n) for n in self.size[len(made) : len(made) + count]]
            if count > 1 and "-1" not in made:
                extents[0] = "-1"
            made += [f"product.shape[{dim}]"] if count == 1 else extents
        return f"product.view({', '.join(made)})"

    def listed(self, kept: Sequence[int]) -> str:
        """Return those of these extents that are kept, the others 1, as arguments of a view."""
        if not self.dynamic:
            return _list(kept)
        name = "product" if self.size == self.product else "shaped"
        return ", ".join("1" if n == 1 else f"{name}.shape[{i}]" for i, n in enumerate(kept))


def split(product: Sequence[int], size: Sequence[int]) -> Shape | None:
    """Return extents as the product's, each dimension split into one or several; None if they are not."""
    runs: list[int] = []
    place = 0
    for extent in product:
        start, covered = place, 1
        while place < len(size) and (covered < extent or place == start):
            covered *= size[place]
            place += 1
        if covered != extent:
            return None
        runs.append(place - start)
    if place != len(size):
        return None
    return Shape(tuple(product), tuple(size), tuple(runs))


def dense(size: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor in C order; zero where the extent is 1."""
    return _effective(size, [math.prod(size[place + 1 :]) for place in range(len(size))])


def seen(
    name: str, operand: Made, shape: Shape, strides: tuple[int, ...], offset: int
) -> str | None:
    """Return an expression for an operand read at these strides; None if there is none.

    Args:
        name: The operand's.
        operand: Its extents and strides.
        shape: What it is read under.
        strides: Along the dimensions of ``shape``, zero where it is repeated.
        offset: Of the first element that is read.
    """
    if offset == operand.offset:
        for order in _orders(len(operand.size)):
            size = [operand.size[one] for one in order]
            stride = [operand.stride[one] for one in order]
            if _broadcast(size, stride, shape.size) == strides:
                return _turned(name, order)
        kept = tuple(n if step else 1 for n, step in zip(shape.size, strides, strict=True))
        full = _effective(operand.size, operand.stride) == dense(operand.size)
        if full and math.prod(kept) == math.prod(operand.size) and dense(kept) == strides:
            return f"{name}.view({shape.listed(kept)})"
    # A tensor with gaps loses them when it is converted to float64; unknown strides are no numbers.
    if shape.dynamic or operand.offset or operand.elements != math.prod(operand.size):
        return None
    return f"torch.as_strided({name}, {shape.size}, {strides}, {offset})"


def stored(shape: Shape, along: Sequence[int], offset: int, size: Sequence[int]) -> str | None:
    """Return an expression for a result with a place for its value; None if there is none.

    Args:
        shape: Of the value.
        along: The result's strides along the dimensions of the product.
        offset: Of its first element.
        size: Its extents.
    """
    if offset:
        return None
    strides = shape.strides(along)
    if tuple(size) == shape.size:
        return "{}"
    for order in _orders(len(shape.size)):
        turned = tuple(shape.size[one] for one in order)
        if tuple(strides[one] for one in order) != dense(turned):
            continue
        text = _turned("{}", order)
        text = text if text == "{}" else f"{text}.contiguous()"
        if tuple(size) == turned:
            return text
        # With the same extents in another order, only strides would tell a turned result from a view.
        if math.prod(size) == math.prod(turned) and sorted(size) != sorted(turned):
            return f"{text}.view({_list(size)})"
    return None


def _orders(rank: int) -> list[tuple[int, ...]]:
    """Return orders of dimensions, the one there is first."""
    return list(itertools.permutations(range(rank))) if rank <= _RANK else [tuple(range(rank))]


def _turned(name: str, order: Sequence[int]) -> str:
    if list(order) == sorted(order):
        return name
    return f"{name}.t()" if len(order) == 2 else f"{name}.permute({_list(order)})"


def _broadcast(
    size: Sequence[int], stride: Sequence[int], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the strides a tensor has where it is broadcast to a shape; None where it is not."""
    missing = len(shape) - len(size)
    if missing < 0:
        return None
    if any(one not in (1, wide) for one, wide in zip(size, shape[missing:], strict=True)):
        return None
    return (*(0,) * missing, *_effective(size, stride))


def _effective(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if n == 1 else step for n, step in zip(size, stride, strict=True))


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
