"""Whether an attention's numbers are right: which heads are compared, and how the error counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.attention.shapes import Shape
from inductor_plugin.attention import unfused


def error_of(
    shape: Shape,
    given: Sequence[torch.Tensor],
    out: torch.Tensor,
    gradients: Sequence[torch.Tensor] = (),
) -> float:
    """Return the largest error of a row of out, dq, dk or dv: root mean square, over that of all rows.

    Compared are the first and the last key head of the first and the last sequence with all their
    query heads, computed in float32. A value that is not finite, wherever, is infinitely wrong.

    Args:
        shape: What is computed.
        given: q, k, v and the gradient of out.
        out: The result.
        gradients: dq, dk, dv; empty where only the result is compared.
    """
    made = (out, *gradients)
    if not all(bool(torch.isfinite(one).all()) for one in made):
        return math.inf
    worst = 0.0
    for batch in sorted({0, shape.batch - 1}):
        for head in sorted({0, shape.kv_heads - 1}):
            q, k, v, do = (_part(shape, one, batch, head) for one in given)
            keywords: dict[str, Any] = {"mask": shape.mask, "dtype": torch.float32}
            expected = [unfused.forward(q, k, v, **keywords)[0]]
            if gradients:
                found = unfused.backward(do, q, k, v, **keywords)
                expected += [found.dq, found.dk, found.dv]
            parts = (_part(shape, one, batch, head) for one in made)
            pairs = zip(parts, expected, strict=True)
            worst = max(worst, *(_relative(got.float(), wanted) for got, wanted in pairs))
    return worst if math.isfinite(worst) else math.inf


def _part(shape: Shape, tensor: torch.Tensor, batch: int, head: int) -> torch.Tensor:
    """Return one sequence and the heads that belong to one key head, as (1, H, S, D)."""
    share = tensor.shape[1] // shape.kv_heads
    heads = slice(head * share, (head + 1) * share)
    if not shape.lengths:
        return tensor.detach()[batch : batch + 1, heads]
    start = sum(shape.lengths[:batch])
    rows = tensor.detach()[start : start + shape.lengths[batch], heads]
    return rows.transpose(0, 1).unsqueeze(0)


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest error of a row, as a share of the root mean square of the whole."""
    if got.shape != wanted.shape:
        return math.inf
    rows = (got - wanted).square().mean(-1).sqrt()
    least = torch.finfo(torch.float32).tiny
    return float(rows.max() / wanted.square().mean().sqrt().clamp_min(least))
