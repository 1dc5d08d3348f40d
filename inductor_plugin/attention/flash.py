"""`fmha` on a GPU without torch.compile: ATen's FlashAttention, where it supports the call.

Other calls are refused with a reason, and `inductor_plugin.attention.blockwise` computes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention import gates
from inductor_plugin.attention.arguments import AttentionOperands
from inductor_plugin.attention.blockwise import BlockwiseGradients, ScoreParams
from inductor_plugin.attention.gates import DispatchContext
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.attention import Attention

_ATEN: Any = torch.ops.aten
_ROW_BYTES = 16
"""FlashAttention reads rows in pieces of 16 bytes."""
FARTHEST = (1 << 31) - 1
"""ATen hands the sides of a window on as 32-bit numbers, and a larger one loses its upper bits."""


def widened(x: AttentionOperands) -> AttentionOperands:
    """Return 8-bit operands on a GPU converted to bfloat16, which is exact; others unchanged."""
    if x.q.dtype.itemsize > 1 or x.q.device.type != "cuda":
        return x
    q, k, v = (tensor.to(torch.bfloat16) for tensor in (x.q, x.k, x.v))
    return replace(x, q=q, k=k, v=v)


def why_not_flash(
    x: AttentionOperands, params: ScoreParams, capability: tuple[int, int], *, backward: bool
) -> str | None:
    """Return why FlashAttention cannot compute a call, or None if it can: as `gates.flash` says of a compiled one.

    Args:
        x: The operands; only shapes and types are read.
        params: Parameters of the scores.
        capability: Compute capability of the device.
        backward: Whether its gradients are to be computed.
    """
    attention = _attention(x, params, backward=backward)
    context = DispatchContext(
        capability=capability,
        square=not x.varlen and attention.queries == attention.keys,
        longest=_longest(x),
    )
    return gates.flash(attention, context)


def flash_forward(x: AttentionOperands, params: ScoreParams) -> tuple[Tensor, Tensor]:
    """Return out and lse, in the shapes of the call."""
    operands = [_readable(_tokens_first(tensor, x)) for tensor in (x.q, x.k, x.v)]
    out, lse = _ATEN._flash_attention_forward(
        *operands,
        *_lengths(x),
        0.0,
        _is_causal(params),
        False,  # noqa: FBT003  return_debug_mask
        **_keywords(params),
    )[:2]
    return _tokens_first(out, x), lse


def flash_backward(
    do: Tensor, x: AttentionOperands, out: Tensor, lse: Tensor, params: ScoreParams
) -> BlockwiseGradients:
    """Return the gradients of q, k and v, in the shapes of the call."""
    operands = [_readable(_tokens_first(tensor, x)) for tensor in (do, x.q, x.k, x.v, out)]
    # The generator state is not read without dropout.
    state = torch.empty(2, dtype=torch.uint64, device=do.device)
    grads = _ATEN._flash_attention_backward(
        *operands,
        lse.contiguous(),
        *_lengths(x),
        0.0,
        _is_causal(params),
        state,
        state[:0],
        **_keywords(params),
    )
    dq, dk, dv = (_tokens_first(grad, x) for grad in grads)
    return BlockwiseGradients(dq, dk, dv, None)


def _is_causal(params: ScoreParams) -> bool:
    return params.mask.left < 0 and params.mask.right == 0


def _keywords(params: ScoreParams) -> dict[str, Any]:
    # Causal calls use another kernel, which is faster than the equivalent window.
    if _is_causal(params) or not params.mask.limited:
        return {"scale": params.scale}
    return {
        "scale": params.scale,
        "window_size_left": min(params.mask.left, FARTHEST),
        "window_size_right": min(params.mask.right, FARTHEST),
    }


def _lengths(x: AttentionOperands) -> tuple[Tensor | None, Tensor | None, int, int]:
    """Return cu_seqlens, dense as the kernels require, and the longest sequences, by default the number of tokens."""
    return (
        None if x.cu_seqlens_q is None else x.cu_seqlens_q.contiguous(),
        None if x.cu_seqlens_k is None else x.cu_seqlens_k.contiguous(),
        *_longest(x),
    )


def _longest(x: AttentionOperands) -> tuple[int, int]:
    tokens = 0 if x.varlen else 2
    longest_q, longest_k = x.max_seqlen_q, x.max_seqlen_k
    return (
        x.q.size(tokens) if longest_q is None else longest_q,
        x.k.size(tokens) if longest_k is None else longest_k,
    )


def _attention(x: AttentionOperands, params: ScoreParams, *, backward: bool) -> Attention:
    """Return the facts of a call; its operands are those that FlashAttention is asked about."""
    tokens, names = (0, ("q", "k", "v", "cu_q", "cu_k")) if x.varlen else (2, ("q", "k", "v"))
    sequences = x.q.size(0) if x.cu_seqlens_q is None else x.cu_seqlens_q.size(0) - 1
    return Attention(
        backward=backward,
        batch=sequences,
        heads=x.q.size(1),
        kv_heads=x.k.size(1),
        queries=x.q.size(tokens),
        keys=x.k.size(tokens),
        head_dim=x.q.size(-1),
        value_dim=x.v.size(-1),
        scale=params.scale,
        mask=params.mask,
        softcap=params.softcap,
        operands=names if x.bias is None else (*names, "bias"),
        dtype=dtype_name(x.q.dtype),
    )


def _tokens_first(tensor: Tensor, x: AttentionOperands) -> Tensor:
    """Return [B, H, S, D] as [B, S, H, D], or back; varlen operands unchanged."""
    return tensor if x.varlen else tensor.transpose(1, 2)


def _readable(tensor: Tensor) -> Tensor:
    """Return a tensor whose rows are dense and begin at multiples of 16 bytes."""
    step = _ROW_BYTES // tensor.element_size()
    strides, offset = tensor.stride(), tensor.storage_offset()
    if strides[-1] == 1 and not any(extent % step for extent in (*strides[:-1], offset)):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
