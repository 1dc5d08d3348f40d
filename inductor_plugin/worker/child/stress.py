"""Operands that show what random numbers hide: NaN where nothing may be read, NaN where it has to show, large, small and other values.

Changes are made in place, on copies of the operands. No operand overflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem.strides import is_dense
from inductor_plugin.worker.child.magnitude import PART, runs
from inductor_plugin.worker.child.operands import covered, elements_of

EXPONENTS = (20, 12, 5, 2, 0)
"""Powers of two by which operands are multiplied, the first with which the library kernel stays finite: operands times
2^20 are beyond float16, their products are in bfloat16's range; products of 4-fold operands are not beyond float16's
65504 up to k = 65536."""
SMALL = (-20, -8, -4)
"""Powers of two for small operands, the first with which the output's numbers are normal ones: below 1e-5, in float16
below 0.02. Narrow types have a smallest exponent of their own."""
OVERFLOWING = (6, 7, 8, 9, 10, 12)
"""Powers of two for float16, the first with which enough numbers of the output are infinite."""
_MOST_BORDERS = 12
_MOST_MASKED = 1 << 28
"""Elements of a storage beyond which its gaps are left as they are: the mask takes a byte each."""
_HEADROOM = {
    "float16": 12,
    "float8_e4m3fn": 5,
    "float8_e4m3fnuz": 4,
    "float8_e5m2": 10,
    "float8_e5m2fnuz": 10,
}
"""Exponents that normal random numbers can be multiplied by and stay below the largest number of narrow types."""
_FOOTROOM = {
    "float16": 8,
    "float8_e4m3fn": 2,
    "float8_e4m3fnuz": 2,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
}
"""The same for division: most stay above the smallest normal number."""
_WHOLE = {"int8": 16, "uint8": 36, "int16": 4001, "int32": 4001, "int64": 4001}
"""Factors of small integers, -8..7 and 0..7 by `operands.build`: that use the range of 8 bits with -128, or exceed it and
that of float32's digits."""


@dataclass(frozen=True)
class Stress:
    """A change of operands.

    Attributes:
        exponent: Power of two that floats are multiplied by; above 0 integers are multiplied by `_WHOLE`, too.
        planted: Elements that become NaN, as (seed, index in the storage).
        added: Exponents of operands that are added to a product, by their seed.
        renewed: Whether each operand has other numbers, of about the same size.
    """

    exponent: int = 0
    planted: tuple[tuple[int, int], ...] = ()
    added: tuple[tuple[int, int], ...] = ()
    renewed: bool = False

    def apply(self, tensors: Mapping[TensorSpec, torch.Tensor]) -> None:
        """Change the operands in place; those from files and packed ones stay as they are."""
        changed = [(spec, flat(spec, tensor)) for spec, tensor in tensors.items() if plain(spec)]
        added = dict(self.added)
        for spec, values in changed:
            own = limited(spec.dtype, self.exponent)
            _scale(spec, values, added.get(spec.seed, own))
            if self.renewed:
                _renew(spec, values)
        for seed, index in self.planted:
            for spec, values in changed:
                if spec.seed == seed and index < values.numel():
                    values[index : index + 1].view(torch.uint8).fill_(0xFF)


def limited(dtype: str, exponent: int, amplitude: float = 1.0) -> int:
    """Return the power of two nearest to an exponent with which normal random numbers stay numbers of a type."""
    size = round(math.log2(amplitude))
    most, least = _HEADROOM.get(dtype), _FOOTROOM.get(dtype)
    if most is None or least is None:
        return exponent
    return max(-least - size, min(exponent, most - size))


def plain(spec: TensorSpec) -> bool:
    """Return True for an operand of random values in memory that every candidate sees."""
    return spec.file is None and spec.packing is None


def flat(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of an operand, in one dimension."""
    return torch.as_strided(tensor, (elements_of(spec),), (1,), 0)


def sites(inputs: Iterable[TensorSpec], added: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return where NaN is planted: the last element of each operand, of those that are added the second of each dimension.

    The last elements spoil the last row and the last column of a product, those of `borders` others; a NaN in an operand
    that is not to be read (``beta=0``) has to be outside of these to show.

    Args:
        inputs: Operands of the library kernel.
        added: Seeds of operands that are added.
    """
    chosen: dict[int, int] = {}
    first = set(added)
    for spec in inputs:
        if not plain(spec) or not _has_nan(spec) or 0 in spec.size:
            continue
        unread = spec.seed in first
        place = (min(size - 1, 1) if unread else size - 1 for size in spec.size)
        index = sum(i * stride for i, stride in zip(place, spec.stride, strict=True))
        chosen.setdefault(spec.seed, spec.offset + index)
    return tuple(chosen.items())


def borders(inputs: Iterable[TensorSpec], added: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return further places for NaN: where tiles and the slices of split-K begin and end.

    Each is in a row or a column of its own, so that a term which is left out shows as a number in a row or a column
    that is to be NaN. At most a quarter of an operand's rows and columns are spoiled.

    Args:
        inputs: Operands of the library kernel.
        added: Seeds of operands that are added.

    Returns:
        Places as (seed, index in the storage).
    """
    chosen: dict[tuple[int, int], None] = {}
    for spec in inputs:
        if not plain(spec) or not _has_nan(spec) or spec.seed in added or 0 in spec.stride:
            continue
        if len(spec.size) not in (2, 3):
            continue
        rows, columns = spec.size[-2:]
        most = min(rows // 8, columns // 8, _MOST_BORDERS)
        places = [(rows - 2 - i, column) for i, column in enumerate(_ends(columns)[:most])]
        places += [(row, columns - 2 - i) for i, row in enumerate(_ends(rows)[:most])]
        for row, column in places:
            index = spec.offset + row * spec.stride[-2] + column * spec.stride[-1]
            chosen[spec.seed, index] = None
    return tuple(chosen)


def _ends(extent: int) -> list[int]:
    """Return indices at which parts of an extent are likely to begin or end, the likeliest first."""
    starts = [
        extent // 2,
        extent // 128 * 128,
        extent // 32 * 32,
        extent // 4,
        128,
        64,
        32,
        extent // 3,
    ]
    likely = [0, *(index for start in starts for index in (start, start - 1))]
    return list(dict.fromkeys(index for index in likely if 0 <= index < extent - 1))


def fill_gaps(
    inputs: Sequence[TensorSpec], tensors: Mapping[TensorSpec, torch.Tensor], byte: int = 0xFF
) -> bool:
    """Fill what no operand of the library kernel covers; return whether there is any.

    Args:
        inputs: Operands of the library kernel.
        tensors: All operands that have been built.
        byte: What they are filled with, NaN if not stated.
    """
    filled = False
    for spec, tensor in tensors.items():
        elements = elements_of(spec)
        views = [view for view in inputs if view.seed == spec.seed and plain(view)]
        if not views or not plain(spec) or not _has_nan(spec) or elements > _MOST_MASKED:
            continue
        if any(_dense(view) and len(view.size) and _count(view) == elements for view in views):
            continue
        gaps = ~covered(elements, views, tensor.device)
        if bool(gaps.any()):
            bytes_of = flat(spec, tensor).view(torch.uint8).view(elements, -1)
            bytes_of[gaps] = byte
            filled = True
    return filled


def _scale(spec: TensorSpec, values: torch.Tensor, exponent: int) -> None:
    if not exponent:
        return
    if spec.dtype in _WHOLE:
        if exponent > 0:
            values.mul_(_WHOLE[spec.dtype])
    elif _has_nan(spec) or spec.dtype.endswith("fnuz"):
        factor = 2.0**exponent
        if values.element_size() == 1:
            for part in runs(values, PART):
                part.copy_(part.float() * factor)
        else:
            values.mul_(factor)


def _renew(spec: TensorSpec, values: torch.Tensor) -> None:
    """Replace an operand's numbers: floats by half of their negatives, integers by their complement in the range of `build`."""
    if spec.dtype == "bool":
        values.logical_not_()
    elif spec.dtype == "uint8":
        values.copy_(7 - values)
    elif not values.dtype.is_floating_point and not values.dtype.is_complex:
        values.bitwise_not_()
    else:
        factor = 0.5 if spec.dtype == "float8_e8m0fnu" else -0.5
        for part in runs(values, PART):
            part.copy_((part.float() if part.element_size() == 1 else part) * factor)


def _has_nan(spec: TensorSpec) -> bool:
    floats = ("float8", "float16", "float32", "float64", "bfloat", "complex")
    return spec.dtype.startswith(floats) and not spec.dtype.endswith("fnuz")


def _count(spec: TensorSpec) -> int:
    count = 1
    for size in spec.size:
        count *= size
    return count


def _dense(spec: TensorSpec) -> bool:
    """Return True if the view has no gaps: its strides are those of a permuted contiguous tensor."""
    outermost_first = sorted(zip(spec.stride, spec.size, strict=True), reverse=True)
    return is_dense([n for _, n in outermost_first], [step for step, _ in outermost_first])
