"""`fmha` on a GPU without torch.compile: ATen's FlashAttention where it can express the call.

What it cannot is refused with a reason, and then `inductor_plugin.attention.blockwise` computes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention.blockwise import Gradients, ScoreParams
from inductor_plugin.attention.checks import Operands

_ATEN: Any = torch.ops.aten
_ROW_BYTES = 16
"""FlashAttention reads rows in pieces of 16 bytes."""


def widened(given: Operands) -> Operands:
    """Return operands of 8 bits on a GPU in bfloat16, which holds each of their numbers; others as they are."""
    if given.q.dtype.itemsize > 1 or given.q.device.type != "cuda":
        return given
    q, k, v = (one.to(torch.bfloat16) for one in (given.q, given.k, given.v))
    return replace(given, q=q, k=k, v=v)


def flash_refusal(given: Operands, params: ScoreParams, capability: tuple[int, int]) -> str | None:
    """Return why FlashAttention cannot compute a call, or None if it can.

    Its limits: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, torch 2.11 to 2.15.

    Args:
        given: The operands; only shapes and types are looked at.
        params: What scores are made of.
        capability: Of the device.
    """
    d, value_d, dtype = given.q.size(-1), given.v.size(-1), given.q.dtype
    square = not given.varlen and given.q.size(2) == given.k.size(2)
    limits = {
        f"it needs compute capability 8.0, this device has {capability[0]}.{capability[1]}": (
            capability < (8, 0)
        ),
        f"it takes float16 and bfloat16, not {dtype}": dtype not in (torch.float16, torch.bfloat16),
        "it has no bias": given.bias is not None,
        "it has no soft-cap": params.softcap != 0,
        f"head dims {d} and {value_d} differ": d != value_d,
        f"head dim {d} is no multiple of 8 up to 256": d > 256 or d % 8 != 0,
        "its diagonal is bottom-right, and the call's top-left": (
            params.mask.limited and not params.mask.bottom_right and not square
        ),
    }
    return next((reason for reason, broken in limits.items() if broken), None)


def flash_forward(given: Operands, params: ScoreParams) -> tuple[Tensor, Tensor]:
    """Return out and lse, of the shapes of the call."""
    operands = [_readable(_tokens_first(one, given)) for one in (given.q, given.k, given.v)]
    out, lse = _ATEN._flash_attention_forward(
        *operands,
        *_lengths(given),
        0.0,
        _is_causal(params),
        False,  # noqa: FBT003  return_debug_mask
        **_keywords(params),
    )[:2]
    return _tokens_first(out, given), lse


def flash_backward(
    do: Tensor, given: Operands, out: Tensor, lse: Tensor, params: ScoreParams
) -> Gradients:
    """Return the gradients of q, k and v, of the shapes of the call."""
    operands = [
        _readable(_tokens_first(one, given)) for one in (do, given.q, given.k, given.v, out)
    ]
    # Without dropout the state of the generator is not read.
    state = torch.empty(2, dtype=torch.uint64, device=do.device)
    grads = _ATEN._flash_attention_backward(
        *operands,
        lse.contiguous(),
        *_lengths(given),
        0.0,
        _is_causal(params),
        state,
        state[:0],
        **_keywords(params),
    )
    dq, dk, dv = (_tokens_first(one, given) for one in grads)
    return Gradients(dq, dk, dv, None)


def _is_causal(params: ScoreParams) -> bool:
    return params.mask.left < 0 and params.mask.right == 0


def _keywords(params: ScoreParams) -> dict[str, Any]:
    # Causal calls take another kernel, which is faster than a window that says the same.
    if _is_causal(params) or not params.mask.limited:
        return {"scale": params.scale}
    return {
        "scale": params.scale,
        "window_size_left": params.mask.left,
        "window_size_right": params.mask.right,
    }


def _lengths(given: Operands) -> tuple[Tensor | None, Tensor | None, int, int]:
    """Return cu_seqlens and the longest sequences; all tokens stand for a length that was not said."""
    tokens = 0 if given.varlen else 2
    longest_q, longest_k = given.max_seqlen_q, given.max_seqlen_k
    return (
        given.cu_seqlens_q,
        given.cu_seqlens_k,
        given.q.size(tokens) if longest_q is None else longest_q,
        given.k.size(tokens) if longest_k is None else longest_k,
    )


def _tokens_first(tensor: Tensor, given: Operands) -> Tensor:
    """Return [B, H, S, D] as [B, S, H, D], or back; varlen operands as they are."""
    return tensor if given.varlen else tensor.transpose(1, 2)


def _readable(tensor: Tensor) -> Tensor:
    """Return a tensor whose rows are dense and begin at multiples of 16 bytes."""
    step = _ROW_BYTES // tensor.element_size()
    strides, offset = tensor.stride(), tensor.storage_offset()
    if strides[-1] == 1 and not any(one % step for one in (*strides[:-1], offset)):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
