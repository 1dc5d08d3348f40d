"""A standard set of products: the linear layers of common language models.

A CUTLASS kernel takes all sizes of its types, layouts and alignments, so that a few hundred products
cover the kernels that most models of this kind use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from inductor_plugin.aot import targets
from inductor_plugin.aot.models import Inputs
from inductor_plugin.errors import TargetError
from inductor_plugin.problem.target import Target

ROWS = (16, 64, 256, 1024, 4096)
"""Tokens of one call: decoding in batches to prefill."""

LAYERS: tuple[tuple[int, int], ...] = (
    (4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096),  # Llama-3-8B
    (8192, 8192), (8192, 1024), (8192, 28672), (28672, 8192),  # Llama-3-70B
    (3584, 3584), (3584, 512), (3584, 18944), (18944, 3584),  # Qwen2.5-7B
)  # fmt: skip
"""(inputs, outputs) of linear layers; config.json of each model on https://huggingface.co."""

_EIGHT_BIT = torch.float8_e4m3fn


class Products(nn.Module):
    """Every layer's product, in bfloat16 (also with a bias), float16 and optionally 8-bit floats."""

    def __init__(self, layers: Sequence[tuple[int, int]], *, eight_bit: bool) -> None:
        super().__init__()
        self.eight_bit = eight_bit
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(outputs, inputs, dtype=torch.bfloat16), requires_grad=False)
            for inputs, outputs in layers
        )

    def forward(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Return the products of ``rows[i]`` [m, inputs] with layer i, per type."""
        products: list[Tensor] = []
        for x, weight in zip(rows, self.weights, strict=True):
            products.append(nn.functional.linear(x, weight))
            products.append(nn.functional.linear(x, weight, weight[:, 0].clone()))
            products.append(nn.functional.linear(x.half(), weight.half()))
            if self.eight_bit:
                products.append(_scaled(x, weight))
        return products


def for_arch(arch: str) -> Target:
    """Return the first target of an architecture; its kernels run on all of them.

    Raises:
        TargetError: No target has this architecture.
    """
    known: set[str] = set()
    for gpu in targets.every():
        if gpu.arch == arch:
            return gpu
        known.add(gpu.arch)
    raise TargetError(f"unknown architecture {arch!r}; known are: {', '.join(sorted(known))}")


def products(arch: str) -> tuple[Products, list[Inputs]]:
    """Return the set for a device's architecture (``sm_90a`` ...), one set of inputs for each number of rows.

    Raises:
        TargetError: No target has this architecture.
    """
    rate = for_arch(arch).rate(str(_EIGHT_BIT).removeprefix("torch."))
    model = Products(LAYERS, eight_bit=rate is not None)
    sets: list[Inputs] = [
        ([torch.empty(rows, inputs, dtype=torch.bfloat16) for inputs, _ in LAYERS],)
        for rows in ROWS
    ]
    return model, sets


def _scaled(x: Tensor, weight: Tensor) -> Tensor:
    """Return a row-wise scaled product of 8-bit floats."""
    scale_a = torch.ones(x.shape[0], 1, device=x.device)
    scale_b = torch.ones(1, weight.shape[0], device=x.device)
    untyped: Any = torch  # public in all but name
    return untyped._scaled_mm(
        x.to(_EIGHT_BIT),
        weight.to(_EIGHT_BIT).t(),
        scale_a=scale_a,
        scale_b=scale_b,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
