"""Epilogues made to spill or to lower occupancy, and the kernels they are fused into.

The register model was not fitted to any of them (`benchmarks.fusion.pairs` has the calibration pairs).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.fusion.pairs import F32, MM, TMA, Facts, Fused, column, full, row


def _wide(p: Any, a: Any, b: Any, c: Any) -> tuple[torch.Tensor, ...]:
    return (torch.erf(p + a) * torch.tanh(p * b) + torch.tanh(p * c) * p,)


def _outputs(p: Any, gate: Any) -> tuple[torch.Tensor, ...]:
    return functional.gelu(p), torch.tanh(p + gate), torch.sigmoid(gate * p)


def _columns(p: Any, a: Any, b: Any, c: Any, r: Any) -> tuple[torch.Tensor, ...]:
    return (torch.tanh((p - a) * b + c) * r,)


EPILOGUES: dict[str, Fused] = {
    "wide": (_wide, (full(),) * 3),
    "3 late outputs": (_outputs, (full(),)),
    "float32 columns": (_columns, (column(F32), column(F32), column(F32), row(F32))),
}
"""The epilogues, by name."""

_LARGE, _TALL, _SQUARE = (128, 256, 64), (256, 128, 64), (128, 128, 64)
_SMALL = (Facts(MM, _SQUARE, 3, 4), Facts(MM, (64, 128, 64), 3, 4), Facts(MM, (64, 64, 64), 3, 4))
BFLOAT16: dict[str, tuple[Facts, ...]] = {
    "A100": (Facts(MM, _LARGE, 3, 8), Facts(MM, _TALL, 3, 8), Facts(MM, _SQUARE, 3, 8), *_SMALL),
    "H200": (Facts(TMA, _LARGE, 3, 8), Facts(MM, _TALL, 3, 8), Facts(MM, _SQUARE, 3, 8), *_SMALL),
}
"""Kernels that compete for one product, by GPU: half of them have large tiles and are fastest alone."""
FLOAT32 = tuple(
    Facts(MM, tile, 3, warps, operands=F32)
    for tile, warps in (
        ((256, 128, 32), 8),
        ((128, 128, 32), 8),
        ((128, 128, 32), 4),
        ((64, 128, 32), 4),
    )
)
"""The same for a product of float32."""
PRODUCTS: tuple[tuple[str, tuple[Facts, ...], tuple[str, ...]], ...] = (
    ("H200", BFLOAT16["H200"], ("wide", "3 late outputs")),
    ("A100", BFLOAT16["A100"], ("wide", "float32 columns")),
    ("A100", FLOAT32, ("wide",)),
    ("H200", FLOAT32, ("wide",)),
)
"""GPU, kernels and names of epilogues: 32 pairs."""
