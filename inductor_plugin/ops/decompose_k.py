"""``inductor_plugin::decompose_k.out``: Inductor's decompose-K as a single call, to measure it.

Inductor's own choice is a subgraph (torch/_inductor/kernel/mm.py, ``decomposeK``, torch 2.11-2.15),
which it compiles before it can be measured. The same two steps as library calls need no compilation.
If the choice wins, Inductor's subgraph runs: it sums and casts in one kernel, while here the cast is a
second small kernel, so the measured time is too long by one launch.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_plugin.ops.operators import define_kernels

OP = "inductor_plugin::decompose_k.out"


def decompose_k(a: torch.Tensor, b: torch.Tensor, parts: int, *, out: torch.Tensor) -> None:
    """Write A @ B to ``out``, as a batch of ``parts`` products whose float32 results are summed.

    Args:
        a: [m, k].
        b: [k, n].
        parts: Divides k.
        out: [m, n].
    """
    m, k = a.shape
    left = a.reshape(m, parts, k // parts).permute(1, 0, 2)
    right = b.reshape(parts, k // parts, b.shape[1])
    out.copy_(_products(left, right).sum(0))


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the products of a batch in float32; ATen on a CPU writes only its inputs' dtype."""
    if left.dtype == torch.float32:
        return torch.bmm(left, right)
    if left.device.type == "cpu":
        return torch.bmm(left.float(), right.float())
    batched: Any = torch.bmm
    return batched(left, right, out_dtype=torch.float32)


_OPERATORS: Any = define_kernels(
    {"decompose_k.out": "(Tensor a, Tensor b, int parts, *, Tensor(a!) out)"},
    {"decompose_k.out": decompose_k},
    key="CompositeExplicitAutograd",
)
