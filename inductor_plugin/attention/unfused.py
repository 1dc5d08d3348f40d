"""Attention and its gradients in a chosen precision: the reference of kernels, and their fallback.

This is `inductor_plugin.attention.blockwise` with operands of any type, sequences by ``cu_q`` and ``cu_k``, and
results in the type of the computation. Shapes and names as in `inductor_plugin.problem.attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inductor_plugin.attention import blockwise
from inductor_plugin.attention.blockwise import BlockwiseGradients, Lengths, ScoreParams
from inductor_plugin.problem.attention import Mask


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return out and lse, contiguous.

    Args:
        q: [B, H, Sq, D], or with ``cu_q`` and ``cu_k`` [Tq, H, D]; any strides, any type.
        k: [B, Hkv, Sk, D] or [Tk, Hkv, D].
        v: [B, Hkv, Sk, Dv] or [Tk, Hkv, Dv].
        mask: Which keys a query sees.
        scale: Factor of q @ k.T; None is 1 / sqrt(D).
        softcap: cap(x) = softcap * tanh(x / softcap); 0 is none.
        bias: Broadcast to [B, H, Sq, Sk]; varlen to [B, H, longest q, longest k], of which a
            sequence uses its beginning.
        cu_q: int32 [B + 1]: where each sequence begins in q, and the number of tokens last.
        cu_k: The same for k and v.
        dtype: Type of the computation and of the results: float32 or float64.
    """
    params = ScoreParams(mask, q.size(-1) ** -0.5 if scale is None else scale, softcap)
    lengths = _lengths(cu_q, cu_k)
    return blockwise.forward(q, k, v, params, bias=bias, lengths=lengths, dtype=dtype)


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> BlockwiseGradients:
    """Return dq, dk and dv of a call without bias, contiguous; arguments as in `forward`."""
    params = ScoreParams(mask, q.size(-1) ** -0.5 if scale is None else scale)
    out, lse = blockwise.forward(q, k, v, params, dtype=dtype)
    return blockwise.backward(do, q, k, v, out, lse, params, dtype=dtype)


def _lengths(cu_q: Tensor | None, cu_k: Tensor | None) -> Lengths | None:
    if cu_q is None or cu_k is None:
        return None
    return Lengths(blockwise.ends_of(cu_q), blockwise.ends_of(cu_k))
