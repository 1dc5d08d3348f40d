"""What sizes and strides say of a tensor's memory. Pure, no torch."""

from __future__ import annotations

from collections.abc import Sequence


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether a tensor is row-major without gaps; the stride of an extent of 1 may be anything.

    Args:
        size: Elements along each dimension.
        stride: Strides in elements.
    """
    expected = 1
    for extent, step in zip(reversed(size), reversed(stride), strict=True):
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def storage_elements(size: Sequence[int], stride: Sequence[int], offset: int = 0) -> int:
    """Return the least number of elements of a storage that holds a tensor; of an empty one its offset.

    Args:
        size: Elements along each dimension.
        stride: Strides in elements.
        offset: Of the first element in the storage, in elements.
    """
    if 0 in size:
        return offset
    return offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
