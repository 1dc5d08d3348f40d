"""`fmha` on a GPU without torch.compile: ATen's FlashAttention, where it supports the call.

Other calls are refused with a reason, and `inductor_plugin.attention.blockwise` computes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention.arguments import AttentionOperands
from inductor_plugin.attention.blockwise import BlockwiseGradients, ScoreParams

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
    x: AttentionOperands, params: ScoreParams, capability: tuple[int, int]
) -> str | None:
    """Return why FlashAttention cannot compute a call, or None if it can.

    Its limits: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, torch 2.11 to 2.15.

    Args:
        x: The operands; only shapes and types are read.
        params: Parameters of the scores.
        capability: Compute capability of the device.
    """
    d, value_d, dtype = x.q.size(-1), x.v.size(-1), x.q.dtype
    square = not x.varlen and x.q.size(2) == x.k.size(2)
    limits = {
        f"it needs compute capability 8.0, this device has {capability[0]}.{capability[1]}": (
            capability < (8, 0)
        ),
        f"it takes float16 and bfloat16, not {dtype}": dtype not in (torch.float16, torch.bfloat16),
        "it has no bias": x.bias is not None,
        "it has no soft-cap": params.softcap != 0,
        f"it hides keys before it scales them, so the scale must be positive, not {params.scale}": (
            params.scale <= 0
        ),
        f"head dims {d} and {value_d} differ": d != value_d,
        f"head dim {d} is no multiple of 8 up to 256": d > 256 or d % 8 != 0,
        "its diagonal is bottom-right, and the call's top-left": (
            params.mask.limited and not params.mask.bottom_right and not square
        ),
        f"its window ({params.mask.left}, {params.mask.right}) is another one for more queries than keys": (
            params.mask.altered_by_flash(*_lengths(x)[2:])
        ),
    }
    return next((reason for reason, broken in limits.items() if broken), None)


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
    tokens = 0 if x.varlen else 2
    longest_q, longest_k = x.max_seqlen_q, x.max_seqlen_k
    return (
        None if x.cu_seqlens_q is None else x.cu_seqlens_q.contiguous(),
        None if x.cu_seqlens_k is None else x.cu_seqlens_k.contiguous(),
        x.q.size(tokens) if longest_q is None else longest_q,
        x.k.size(tokens) if longest_k is None else longest_k,
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
