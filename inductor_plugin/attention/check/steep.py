"""A run of an attention with large scores and small values, which shows how a kernel computes its softmax.

    scores have a standard deviation of     found
    1 (operands as generated)               a wrong scale, mask, head, tile
    64                                      exp without the row's maximum (infinite beyond 88.7), clamped scores
    values times 2^-20 (float16: 2^-6)      outputs or probabilities rounded to zero or to a fixed unit

TF32 and scores kept in bfloat16 have errors of up to 1 before the softmax, so numbers are compared with the library
kernel's coarsely. For gradients the kernel reads lse, and there is no maximum that it could forget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from inductor_plugin.problem.attention import Attention

_DEVIATION = 64.0
"""Standard deviation of the scores: the greatest of 16 is beyond 88.7, where float32's exp ends, in nearly all rows."""
_LARGEST = 2.0**12
"""Most that a number of q becomes: 4096 * 8 * 256 columns is far from infinite in float32, and the score in float16 is
finite for heads of 64."""
_FEW_LOST = 0.01
"""Share of outputs that may be infinite or NaN although the library kernel's are not."""
_APART = 0.5
"""Root mean square of the differences from the library kernel, relative to its outputs: clamped scores have 0.7 and more,
scores in bfloat16 0.2."""


def exponents(facts: Attention, q: Tensor, k: Tensor) -> tuple[int, int] | None:
    """Return the powers of two that q and v are multiplied by; None if there is no such run.

    Args:
        facts: The attention.
        q: Its queries.
        k: Its keys.
    """
    if facts.backward or q.dtype.itemsize == 1 or not q.numel() or not k.numel():
        return None
    largest = float(q.abs().max())
    deviation = _size(q) * _size(k) * abs(facts.scale) * math.sqrt(q.size(-1))
    if not 0.0 < deviation < math.inf:
        return None
    of_q = round(math.log2(_DEVIATION / deviation))
    if largest * 2.0**of_q > _LARGEST:
        return None
    return of_q, -6 if q.dtype == torch.float16 else -20


def wrong(outputs: Mapping[str, Tensor], library: Mapping[str, Tensor]) -> str:
    """Return how outputs differ from the library kernel's, empty if they do not."""
    reasons = (_differs(name, outputs[name], library[name]) for name in outputs if name in library)
    return next(filter(None, reasons), "")


def _differs(name: str, output: Tensor, library: Tensor) -> str:
    got, want = output.float(), library.float()
    finite = want.isfinite()
    lost = int((finite & ~got.isfinite()).sum())
    total = int(finite.sum())
    if lost > _FEW_LOST * total:
        return f"{name}: {lost} of {total} numbers are NaN or infinite where scores are large"
    both = finite & got.isfinite()
    difference = _size((got - want)[both])
    size = _size(want[both])
    if difference <= _APART * size:
        return ""
    return (
        f"{name}: off the library kernel's by {difference / size if size else math.inf:.3g} of its root mean square "
        "where scores are large and values small"
    )


def _size(tensor: Tensor) -> float:
    """Return the root mean square, 0 for no numbers."""
    return float(tensor.float().square().mean().sqrt()) if tensor.numel() else 0.0
