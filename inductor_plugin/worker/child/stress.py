"""Operands that show what random numbers hide: NaN where nothing may be read, NaN where it has to show, large values.

Changes are made in place, on copies of the operands. No operand overflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.operands import covered, storage_elements

EXPONENTS = (20, 12, 5, 2, 0)
"""Powers of two by which operands are multiplied, the first with which the library kernel stays finite: operands times
2^20 are beyond float16, their products are in bfloat16's range; products of 4-fold operands are not beyond float16's
65504 up to k = 65536."""
_MOST_MASKED = 1 << 28
"""Elements of a storage beyond which its gaps are left as they are: the mask takes a byte each."""
_HEADROOM = {
    "float16": 5,
    "float8_e4m3fn": 5,
    "float8_e4m3fnuz": 4,
    "float8_e5m2": 10,
    "float8_e5m2fnuz": 10,
}
"""Exponents that normal random numbers can be multiplied by and stay below the largest number of narrow types."""
_WHOLE = {"int8": 15, "uint8": 31, "int16": 4001, "int32": 4001, "int64": 4001}
"""Factors of small integers, -8..7 and 0..7 by `operands.build`: that use the whole range of 8 bits, or exceed it and that of
float32's digits."""


@dataclass(frozen=True)
class Stress:
    """A change of operands.

    Attributes:
        exponent: Power of two that floats are multiplied by; above 0 integers are multiplied by `_WHOLE`, too.
        planted: Elements that become NaN, as (seed, index in the storage).
    """

    exponent: int = 0
    planted: tuple[tuple[int, int], ...] = ()

    def apply(self, tensors: Mapping[TensorSpec, torch.Tensor]) -> None:
        """Change the operands in place; those from files and packed ones stay as they are."""
        changed = [(spec, flat(spec, tensor)) for spec, tensor in tensors.items() if plain(spec)]
        for spec, values in changed:
            _scale(spec, values, self.exponent)
        for seed, index in self.planted:
            for spec, values in changed:
                if spec.seed == seed and index < values.numel():
                    values[index : index + 1].view(torch.uint8).fill_(0xFF)


def plain(spec: TensorSpec) -> bool:
    """Return True for an operand of random values in memory that every candidate sees."""
    return spec.file is None and spec.packing is None


def flat(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of an operand, in one dimension."""
    return torch.as_strided(tensor, (storage_elements(spec),), (1,), 0)


def sites(inputs: Iterable[TensorSpec], added: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return where NaN is planted: the last element of each operand, of those that are added the first.

    The last elements spoil the last row and the last column of a product; a NaN in an operand that is not to be
    read (``beta=0``) has to be outside of these to show.

    Args:
        inputs: Operands of the library kernel.
        added: Seeds of operands that are added.
    """
    chosen: dict[int, int] = {}
    first = set(added)
    for spec in inputs:
        if not plain(spec) or not _has_nan(spec) or 0 in spec.size:
            continue
        last = sum((size - 1) * stride for size, stride in zip(spec.size, spec.stride, strict=True))
        chosen.setdefault(spec.seed, spec.offset + (0 if spec.seed in first else last))
    return tuple(chosen.items())


def fill_gaps(inputs: Sequence[TensorSpec], tensors: Mapping[TensorSpec, torch.Tensor]) -> bool:
    """Fill what no operand of the library kernel covers with NaN; return whether there is any.

    Args:
        inputs: Operands of the library kernel.
        tensors: All operands that have been built.
    """
    filled = False
    for spec, tensor in tensors.items():
        elements = storage_elements(spec)
        views = [view for view in inputs if view.seed == spec.seed and plain(view)]
        if not views or not plain(spec) or not _has_nan(spec) or elements > _MOST_MASKED:
            continue
        if any(_dense(view) and len(view.size) and _count(view) == elements for view in views):
            continue
        gaps = ~covered(elements, views, tensor.device)
        if bool(gaps.any()):
            bytes_of = flat(spec, tensor).view(torch.uint8).view(elements, -1)
            bytes_of[gaps] = 0xFF
            filled = True
    return filled


def _scale(spec: TensorSpec, values: torch.Tensor, exponent: int) -> None:
    if not exponent:
        return
    if spec.dtype in _WHOLE:
        values.mul_(_WHOLE[spec.dtype])
    elif _has_nan(spec) or spec.dtype.endswith("fnuz"):
        factor = 2.0 ** min(exponent, _HEADROOM.get(spec.dtype, exponent))
        if values.element_size() == 1:
            values.copy_((values.float() * factor).to(values.dtype))
        else:
            values.mul_(factor)


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
    expected = 1
    for stride, size in sorted(zip(spec.stride, spec.size, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
