"""The graphs of the GPU cases, and what they mean in float32."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import itertools
from typing import Any

import torch

BF16 = torch.bfloat16
ATEN: Any = torch
"""Some of its functions are public in all but name."""


def mm(a: Any, b: Any) -> Any:
    """Return the plain product."""
    return (torch.mm(a, b),)


def addmm(c: Any, a: Any, b: Any) -> Any:
    """Return the product with a bias."""
    return (torch.addmm(c, a, b),)


def addmm_scaled(c: Any, a: Any, b: Any) -> Any:
    """Return half the product and twice the bias."""
    return (torch.addmm(c, a, b, alpha=0.5, beta=2),)


def bmm(a: Any, b: Any) -> Any:
    """Return a batch of products."""
    return (torch.bmm(a, b),)


def baddbmm(c: Any, a: Any, b: Any) -> Any:
    """Return a batch of products with a bias."""
    return (torch.baddbmm(c, a, b),)


def int_mm(a: Any, b: Any) -> Any:
    """Return the product of whole numbers."""
    return (ATEN._int_mm(a, b),)


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of whole numbers, exactly."""
    return a.double() @ b.double()


def scaled(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Return the scaled product, each sum in float32."""
    return (ATEN._scaled_mm(a, b, x, y, out_dtype=BF16),)


def scaled_fast(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Return the scaled product, sums left to the tensor cores."""
    return (ATEN._scaled_mm(a, b, x, y, out_dtype=BF16, use_fast_accum=True),)


def scaled_bias(a: Any, b: Any, x: Any, y: Any, c: Any) -> Any:
    """Return the scaled product with a bias."""
    return (ATEN._scaled_mm(a, b, x, y, bias=c, out_dtype=BF16, use_fast_accum=True),)


def unscaled(
    a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *bias: torch.Tensor
) -> torch.Tensor:
    """Return what a scaled product means, in float32: one scale a row and column, or one a block."""

    def whole(matrix: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for dim in (0, 1):
            if scale.dim() == 2 and scale.shape[dim] not in (1, matrix.shape[dim]):
                scale = scale.repeat_interleave(128, dim).narrow(dim, 0, matrix.shape[dim])
        return matrix.float() * scale

    product = whole(a, x) @ whole(b, y)
    return product + bias[0].float() if bias else product


def grouped(a: Any, b: Any, ends: Any) -> Any:
    """Return the rows of each group times the matrix of that group."""
    return (ATEN._grouped_mm(a, b, ends),)


def ungrouped(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return what a grouped product means, in float32."""
    bounds = [0, *ends.tolist()]
    parts = [
        a[begin:end].float() @ b[group].float()
        for group, (begin, end) in enumerate(itertools.pairwise(bounds))
    ]
    return torch.cat(parts)


def int4(a: Any, b: Any, scales: Any) -> Any:
    """Return the product with a packed weight of 4 bits, groups of 64."""
    return (torch.ops.aten._weight_int4pack_mm(a, b, 64, scales),)


def int4_unpacked(a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what a product with a packed weight means, in float32."""
    from tests.support.triton.products.int4 import unpacked

    scale, zero = (scales[:, :, i].t().float().repeat_interleave(64, 1) for i in (0, 1))
    values = unpacked(b.cpu()).to(a.device)
    dense = ((values - 8) * scale + zero).to(BF16)  # the operator rounds its weights, too
    return a.float() @ dense.float().t()
