"""Checks a product's numbers: the compared rows, the reference, and the error."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from benchmarks.gemm.products import BLOCK, Kind
from benchmarks.gemm.shapes import Shape

FEW = 512
"""Rows up to which all are compared."""
LAST = 256
"""Rows at the end that are all compared: the largest tile size along M."""
COLUMNS = 64
"""Columns whose error is computed together: the smallest common tile size along N."""


def rows_of(shape: Shape, m: int) -> list[int]:
    """Return the rows to compare: all of a small or grouped product; else 256 over M, and the last 256.

    The step between rows is odd, so that every position within a tile occurs.
    """
    if shape.layer.groups or m <= FEW:
        return list(range(m))
    step = m // LAST | 1
    return sorted({*range(0, m, step), *range(m - LAST, m)})


def expected(
    shape: Shape, types: Kind, tensors: Sequence[torch.Tensor], rows: Sequence[int]
) -> torch.Tensor:
    """Return rows of a product, computed in float32."""
    a, w, *more = tensors
    index = torch.tensor(rows, device=a.device)
    if shape.layer.groups:
        bounds = [0, *more[0].tolist()]
        pairs = enumerate(itertools.pairwise(bounds))
        whole = [a[i:j].float() @ w[group].float().t() for group, (i, j) in pairs]
        return torch.cat(whole)[index]
    # 8-bit floats are indexed as bytes, because torch has no gather for them.
    narrow = a.view(torch.uint8) if a.element_size() == 1 else a
    left, right = narrow[index].view(a.dtype).float(), w.float()
    if types.scale == "none":
        wide = left @ right.t()
        return wide + more[0].float() if more else wide
    x, y, *bias = more
    if types.scale == "blockwise":
        left = left * x[index].repeat_interleave(BLOCK, 1)
        right = right * y.t().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        wide = left @ right.t()
    else:
        wide = (left @ right.t()) * (x if x.numel() == 1 else x[index]) * y
    return wide + bias[0].float() if bias else wide


def error_of(actual: torch.Tensor, reference: torch.Tensor, rows: Sequence[int]) -> float:
    """Return the largest error of a row or of 64 columns: root mean square, relative.

    A wrong row, or a wrong tile, is not averaged with many right ones. The error is infinite if any
    value is not finite.

    Args:
        actual: The whole product.
        reference: Its rows ``rows`` in float32.
        rows: Indices of the rows, including the first and the last.
    """
    if actual.shape != (rows[-1] + 1, *reference.shape[1:]) or not bool(
        torch.isfinite(actual).all()
    ):
        return math.inf
    difference = actual[torch.tensor(rows, device=actual.device)].float() - reference
    by_row = _relative(difference, reference)
    columns = zip(difference.split(COLUMNS, 1), reference.split(COLUMNS, 1), strict=True)
    worst = max([by_row, *(_relative(d.reshape(1, -1), w.reshape(1, -1)) for d, w in columns)])
    return worst if math.isfinite(worst) else math.inf


def _relative(difference: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest error of a row; a row of zeros is divided by the smallest float."""
    least = torch.finfo(torch.float32).tiny
    size = reference.square().mean(1).sqrt().clamp_min(least)
    return float((difference.square().mean(1).sqrt() / size).max())
