"""Values of a model with which a wrong kernel gives the numbers of a right one.

Frozen weights are the model's own on a CPU, where kernels get repacked copies of them. The record of a problem serves
all weights of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.magnitude import comparable, parts, rms, whole
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.jobs import INCOMPARABLE

_SAMPLED, _SMALL = 64, 8
"""Elements looked at along a dimension at most; a sample that is too small to have many different numbers."""
_FEW = 2
"""Different numbers of zeros, ones, an identity, a mask."""
_FLUSHED = 2.0**24
"""Root mean square, in units of the smallest normal number, below which subnormal numbers are part of what is compared. They
are zeros for a thread that has loaded a library linked with -ffast-math (g++ before 13: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=55522) and
for those it has started, and numbers for others: an honest kernel differs from the library kernel by 2 % at 8 units."""


def degeneracy_of(
    reference: torch.Tensor,
    inputs: Sequence[TensorSpec],
    tensors: Mapping[TensorSpec, torch.Tensor],
) -> str:
    """Return why a wrong kernel may give the library kernel's numbers, empty if it gives others.

    Args:
        reference: The library kernel's output.
        inputs: Its operands.
        tensors: All operands that have been built.
    """
    if _has_no_numbers(reference):
        return f"the library kernel returns nothing but zeros or NaN, as of a weight of zeros: {INCOMPARABLE}"
    for spec in inputs:
        if spec.file is None or len(spec.size) < 2:  # ends of groups have one dimension
            continue
        dense = tensors[spec] if spec.packing is None else build(replace(spec, packing=None))
        if reason := weight_degeneracy(dense):
            return f"a frozen weight {reason}: {INCOMPARABLE}"
    return ""


def weight_degeneracy(weight: torch.Tensor) -> str:
    """Return why a weight hides a kernel that reads other rows, other columns, or rows for columns; empty if it does not."""
    if not weight.numel():
        return ""
    steps = (slice(None, None, -(-size // _SAMPLED)) for size in weight.shape)
    sample = comparable(weight[tuple(steps)])
    if sample.numel() > _SMALL and _different(sample) <= _FEW:
        return f"has at most {_FEW} different values"
    if _is_flushed(sample):
        return "has subnormal numbers, which some threads take for zeros"
    return _repetition(weight) if weight.dim() == 2 else ""


def _is_flushed(sample: torch.Tensor) -> bool:
    """Return whether it matters that a thread takes subnormal numbers for zeros."""
    floating = sample.dtype.is_floating_point and sample.numel() > 0
    return floating and 0 < rms(sample) < _FLUSHED * torch.finfo(sample.dtype).smallest_normal


def _repetition(weight: torch.Tensor) -> str:
    """Return which rows and columns of a matrix are the same, empty if none are."""
    values = (
        weight.view(torch.uint8) if weight.element_size() == 1 else weight
    )  # float8 has no comparison
    rows, columns = values.shape
    if rows > 1 and torch.equal(values, values[:1].expand_as(values)):
        return "has equal rows"
    if columns > 1 and torch.equal(values, values[:, :1].expand_as(values)):
        return "has equal columns"
    return "is symmetric" if rows > 1 and torch.equal(values, values.T) else ""


def _different(values: Any) -> int:
    """Return how many different numbers there are; ``values`` is a tensor, whose method is not typed."""
    return values.unique().numel()


def _has_no_numbers(reference: torch.Tensor) -> bool:
    """Return whether an output has no number that a wrong kernel would miss: with a frozen weight of zeros it has none."""
    if reference.numel() == 0:
        return False
    # Below the smallest normal number, rounding is as large as what it rounds.
    least = 1 if whole(reference) else torch.finfo(reference.dtype).smallest_normal
    return not any(
        bool((torch.isfinite(part) & (part.abs() >= least)).any()) for part in parts(reference)
    )
