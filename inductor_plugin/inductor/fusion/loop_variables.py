"""The dimensions of a buffer that a loop variable runs over. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def dimensions_of(
    move: int, extent: int, size: Sequence[int], stride: Sequence[int]
) -> tuple[int, ...]:
    """Return the dimensions of a buffer that a loop variable runs over; empty if it is ambiguous.

    Args:
        move: By how many elements the variable moves the buffer's index.
        extent: How many values the variable has.
        size: Extents of the buffer.
        stride: Strides of the buffer.
    """
    if move <= 0:
        return ()
    for dim in reversed(range(len(size))):
        if size[dim] == 1 or stride[dim] <= 0 or move % stride[dim]:
            continue
        if move // stride[dim] * extent <= size[dim]:
            return (dim,)
    return _merged(move, extent, size, stride)


def _merged(move: int, extent: int, size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the adjacent dimensions that one variable covers together."""
    order = [dim for dim in range(len(size)) if size[dim] > 1]
    for place in reversed(range(len(order))):
        if stride[order[place]] != move:
            continue
        covered, dims, left = size[order[place]], [order[place]], place
        while covered < extent and left > 0:
            inner, outer = order[left], order[left - 1]
            if stride[outer] != stride[inner] * size[inner]:
                return ()
            covered, left = covered * size[outer], left - 1
            dims.append(outer)
        return tuple(dims) if covered == extent else ()
    return ()
