"""How large numbers are, in a type in which they can be compared; part by part, since a whole output in float32 takes too much memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

PART = 1 << 24
"""Numbers that are looked at together: 64 MiB in float32. An output of 8192x128256 has 1e9."""
_SQUARED = (1e-12, 1e12)
"""Largest numbers between which squares are in the range of float32."""

Place = tuple[slice, ...]


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a type whose differences are exact enough; complex numbers as pairs in its last dimension."""
    if tensor.dtype.is_complex:
        pairs = torch.view_as_real(tensor)
        tensor = pairs.flatten(-2) if pairs.dim() > 1 else pairs
    narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4
    return tensor.to(torch.float32 if narrow else torch.float64)


def whole(tensor: torch.Tensor) -> bool:
    """Return True for integers and truth values."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def places(shape: tuple[int, ...]) -> Iterator[Place]:
    """Yield the slices of parts of a tensor, of its first dimensions; each has all of the last one.

    Args:
        shape: The tensor's.
    """
    if math.prod(shape) <= PART or len(shape) < 2:
        yield tuple(slice(None) for _ in shape)
        return
    below = math.prod(shape[1:])
    step = max(1, PART // below)
    for start in range(0, shape[0], step):
        first = slice(start, start + step)
        if below > PART:
            yield from ((first, *rest) for rest in places(shape[1:]))
        else:
            yield (first, *(slice(None) for _ in shape[1:]))


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor's parts, comparable."""
    for place in places(tuple(tensor.shape)):
        yield comparable(tensor[place])


def runs(values: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Yield views of so many elements of a tensor with one dimension, in order."""
    for start in range(0, values.numel(), count):
        yield values[start : start + count]


def share(tensor: torch.Tensor, holds: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the share of a tensor's numbers of which a condition holds; 1 if there are none.

    Args:
        tensor: The tensor.
        holds: Returns truth values for a part of it.
    """
    count = total = 0
    for part in parts(tensor):
        count += int(torch.count_nonzero(holds(part)).item())
        total += part.numel()
    return count / total if total else 1.0


def all_finite(values: torch.Tensor) -> bool:
    """Return True if all numbers are finite. A mask of 1e6 numbers takes 1.1 ms, their extremes 0.1 ms."""
    return math.isfinite(largest(values))


def largest(values: torch.Tensor) -> float:
    """Return the largest absolute value, NaN if any number is."""
    low, high = torch.aminmax(values)  # both NaN then
    return max(abs(low.item()), abs(high.item()))


def rms(values: torch.Tensor) -> float:
    """Return the root mean square of finite numbers."""
    most = largest(values)
    if most == 0.0 or not math.isfinite(most):
        return most
    # In units of the largest: the square of 1e-23 is none in float32, that of 1e20 infinite.
    unit = 1.0 if _SQUARED[0] < most < _SQUARED[1] else most
    total = _norm(values if unit == 1.0 else values / unit).item()
    return unit * total / values.numel() ** 0.5


def norms(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the root of the sum of squares along a dimension, which is kept, without memory for the squares."""
    linalg: Any = torch.linalg  # typed partly
    return linalg.vector_norm(values, dim=dim, keepdim=True)


def _norm(values: torch.Tensor) -> torch.Tensor:
    """Return the root of the sum of all squares.

    The last dimension is summed first, the others in float64: a sum of 3e7 squares in float32 is 1 % wrong.
    """
    lines = norms(values if values.dim() else values.view(1), -1)
    return lines.double().square().sum().sqrt()
