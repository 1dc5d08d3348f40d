"""Builds the call of a CUTLASS attention kernel from the sizes and strides of an operator's operands.

Each function takes the operands and arguments of one operator of `attention.cutlass`, after the
kernel's name. Neither tensors nor torch are needed, so that generated code can plan the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inductor_plugin.attention.cutlass_abi import FmhaCall
from inductor_plugin.ops.abi import TensorView


def output_of(
    q: TensorView,
    k: TensorView,
    v: TensorView,
    *mask: Any,
    out: TensorView,
    sm_count: int,
    device: int = 0,
) -> FmhaCall:
    """Return the call of the forward that writes the output without lse.

    Args:
        q: [batch, heads, seq_q, dim].
        k: [batch, heads_kv, seq_k, dim].
        v: As k.
        mask: ``scale``, the factor of q @ k.T; ``left``, ``right`` and ``bottom_right`` of a `Mask`.
        out: As q.
        sm_count: Multiprocessors of the device.
        device: Its index.
    """
    call = _masked(q, k, v, *mask, sm_count=sm_count, device=device)
    call.out, call.stride_out = _pointer_and_strides(out)
    return call


def forward_of(
    q: TensorView,
    k: TensorView,
    v: TensorView,
    lse: TensorView | None,
    *mask: Any,
    out: TensorView,
    sm_count: int,
    device: int = 0,
) -> FmhaCall:
    """Return the call of the forward, which also writes float32 ``lse`` [batch, heads, seq_q]."""
    call = output_of(q, k, v, *mask, out=out, sm_count=sm_count, device=device)
    call.lse = lse.pointer if lse is not None else 0
    return call


def backward_of(
    d_out: TensorView,
    q: TensorView,
    k: TensorView,
    v: TensorView,
    o: TensorView,
    lse: TensorView,
    delta: TensorView,
    dq: TensorView,
    dv: TensorView,
    *mask: Any,
    out: TensorView,
    sm_count: int,
    device: int = 0,
) -> FmhaCall:
    """Return the call of the backward, which writes dk to ``out``; the rest as in `output_of`.

    Args:
        d_out: Gradient of the output, as q.
        o: The output; not read, since ``delta`` is computed from it.
        lse: The lse of the forward.
        delta: float32 [batch, heads, seq_q], dense: sums of output * d_out.
        dq: As q.
        dv: As v.
        mask: As in `output_of`.
        out: dk, as k.
        sm_count: Multiprocessors of the device.
        device: Its index.
    """
    del o
    call = _masked(q, k, v, *mask, sm_count=sm_count, device=device)
    call.d_out, call.stride_d_out = _pointer_and_strides(d_out)
    call.dq, call.stride_dq = _pointer_and_strides(dq)
    call.dk, call.stride_dk = _pointer_and_strides(out)
    call.dv, call.stride_dv = _pointer_and_strides(dv)
    call.lse, call.delta = lse.pointer, delta.pointer
    return call


CALLS: dict[str, Callable[..., FmhaCall]] = {
    "cutlass_fmha": forward_of,
    "cutlass_fmha_output": output_of,
    "cutlass_fmha_backward": backward_of,
}
"""The call of each operator, by its name."""


def _masked(
    q: TensorView,
    k: TensorView,
    v: TensorView,
    scale: float,
    left: int,
    right: int,
    bottom_right: bool,  # noqa: FBT001 - an operator's arguments have no names in generated code
    *,
    sm_count: int,
    device: int,
) -> FmhaCall:
    batch, heads, seq_q, dim = q.size
    call = FmhaCall(
        batch=batch,
        heads=heads,
        heads_kv=k.size[1],
        seq_q=seq_q,
        seq_k=k.size[2],
        dim=dim,
        scale=scale,
        window_left=left,
        window_right=right,
        bottom_right=int(bottom_right),
        sm_count=sm_count,
        device=device,
    )
    call.q, call.stride_q = _pointer_and_strides(q)
    call.k, call.stride_k = _pointer_and_strides(k)
    call.v, call.stride_v = _pointer_and_strides(v)
    return call


def _pointer_and_strides(view: TensorView) -> tuple[int, tuple[int, int, int]]:
    batch, head, row, _ = view.stride
    return view.pointer, (batch, head, row)
