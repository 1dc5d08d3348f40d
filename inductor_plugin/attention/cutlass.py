"""The torch operators that run compiled CUTLASS attention kernels.

    cutlass_fmha.out(q, k, v, lse, ...)                                attention with its lse
    cutlass_fmha_output.out(q, k, v, ...)                              attention alone
    cutlass_fmha_backward.out(d_out, q, k, v, o, lse, delta, dq, dv, ...)   its gradients; out is dk

Generated code calls them. After the operands they take the kernel's name, then ``scale``, ``left``,
``right`` and ``bottom_right`` (`attention.Mask`). See `ops.launch` for how a kernel is named and found,
and for when `unfused` computes the same outputs in float32 instead.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention import unfused
from inductor_plugin.attention.cutlass_abi import ABI, WORKSPACE_ALIGNMENT, FmhaCall
from inductor_plugin.attention.cutlass_call import CALLS, backward_of, forward_of
from inductor_plugin.attention.cutlass_rules import why_not
from inductor_plugin.errors import CallRefusedError, OperandError
from inductor_plugin.ops import launch
from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.kernel_types import types_of
from inductor_plugin.ops.operators import define_kernels
from inductor_plugin.problem.attention import Mask

_MASK = "str kernel, float scale, int left, int right, bool bottom_right"
_SCHEMAS = {
    "cutlass_fmha.out": (
        f"(Tensor q, Tensor k, Tensor v, Tensor(b!)? lse, {_MASK}, "
        "*, Tensor(c!)? workspace=None, Tensor(a!) out)"
    ),
    "cutlass_fmha_output.out": (
        f"(Tensor q, Tensor k, Tensor v, {_MASK}, *, Tensor(b!)? workspace=None, Tensor(a!) out)"
    ),
    "cutlass_fmha_backward.out": (
        "(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor delta, "
        f"Tensor(b!) dq, Tensor(c!) dv, {_MASK}, "
        "*, Tensor(d!)? workspace=None, Tensor(a!) out)"
    ),
}


def _has_work(call: FmhaCall) -> bool:
    return 0 not in (call.batch, call.heads, call.heads_kv, call.seq_q, call.seq_k, call.dim)


ATTENTION = launch.KernelFamily(
    ABI,
    CALLS,
    # How much workspace a call needs does not depend on the multiprocessors.
    device_arguments=lambda device: {"sm_count": 1, "device": device.index or 0},
    has_work=_has_work,
    workspace_alignment=WORKSPACE_ALIGNMENT,
    fallback="attention is computed in plain torch instead",
)
"""Kernels of attention. The workspace of the backward holds dq in float32, lse and delta with aligned
rows, and, if heads share K and V, dk and dv of each head."""

launch.FAMILIES.update(dict.fromkeys(CALLS, ATTENTION))

workspace_needed = functools.partial(launch.workspace_needed, ATTENTION)
"""The workspace of a kernel, which generated code plans with its other memory."""


def cutlass_fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor | None,
    kernel: str,
    scale: float,
    *window: Any,
    workspace: Tensor | None = None,
    out: Tensor,
) -> None:
    """Write softmax(scale * q @ k.T, masked) @ v to ``out``.

    Args:
        q: [batch, heads, seq_q, dim], the last dimension contiguous.
        k: [batch, heads_kv, seq_k, dim].
        v: As k.
        lse: float32 [batch, heads, seq_q], dense, for natural logarithms of the sums; None to
            write none.
        kernel: ``SYMBOL@DIGEST``.
        scale: Factor of q @ k.T.
        window: ``left``, ``right`` and ``bottom_right`` of a `Mask`.
        workspace: Scratch memory of the kernel, uint8; None to allocate it.
        out: As q.

    Raises:
        OperandError: The operands do not fit each other.
    """
    mask = Mask(*window)
    heads = {name: launch.view_of(x) for name, x in (("q", q), ("k", k), ("v", v), ("out", out))}
    rows = {} if lse is None else {"lse": launch.view_of(lse)}
    refused = _why_not("cutlass_fmha", kernel, heads, rows)

    def make() -> FmhaCall:
        if refused is not None:
            raise CallRefusedError(refused)
        operands = (heads["q"], heads["k"], heads["v"], rows.get("lse"))
        return forward_of(*operands, scale, *window, out=heads["out"], **_on(out.device))

    def library() -> Tensor:
        result, sums = unfused.forward(q, k, v, mask=mask, scale=scale, dtype=torch.float32)
        if lse is not None:
            lse.copy_(sums)
        return out.copy_(result)

    launch.run_or_fallback(ATTENTION, kernel, make, library, workspace, out)


def cutlass_fmha_output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: str,
    *mask: Any,
    workspace: Tensor | None = None,
    out: Tensor,
) -> None:
    """Write the output without lse; as `cutlass_fmha`."""
    cutlass_fmha(q, k, v, None, kernel, *mask, workspace=workspace, out=out)


def cutlass_fmha_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    delta: Tensor,
    dq: Tensor,
    dv: Tensor,
    kernel: str,
    scale: float,
    *window: Any,
    workspace: Tensor | None = None,
    out: Tensor,
) -> None:
    """Write the gradients of an attention to ``dq``, ``dv`` and, of k, to ``out``.

    The kernel sums dq in no fixed order, so it is not used where torch requires deterministic
    algorithms. Other arguments are as in `cutlass_fmha`.

    Args:
        d_out: Gradient of the output, as q.
        o: The output.
        lse: The lse of the forward.
        delta: float32 [batch, heads, seq_q], dense: sums of output * d_out over dim.
        dq: As q.
        dv: As v.
        out: As k.

    Raises:
        OperandError: The operands do not fit each other.
    """
    mask = Mask(*window)
    large = {"d_out": d_out, "q": q, "k": k, "v": v, "dq": dq, "dv": dv, "dk": out}
    heads = {name: launch.view_of(tensor) for name, tensor in large.items()}
    rows = {"lse": launch.view_of(lse), "delta": launch.view_of(delta)}
    refused = _why_not("cutlass_fmha_backward", kernel, heads, rows)

    def make() -> FmhaCall:
        if torch.are_deterministic_algorithms_enabled():
            raise CallRefusedError(
                f"{kernel.partition('@')[0]}: its dq depends on the order of sums"
            )
        if refused is not None:
            raise CallRefusedError(refused)
        d_q, d_k, d_v = (heads[name] for name in ("dq", "dk", "dv"))
        operands = (heads["d_out"], heads["q"], heads["k"], heads["v"], launch.view_of(o))
        given = (*operands, rows["lse"], rows["delta"], d_q, d_v)
        return backward_of(*given, scale, *window, out=d_k, **_on(out.device))

    def library() -> Tensor:
        result = unfused.backward(d_out, q, k, v, mask=mask, scale=scale, dtype=torch.float32)
        dq.copy_(result.dq)
        dv.copy_(result.dv)
        return out.copy_(result.dk)

    launch.run_or_fallback(ATTENTION, kernel, make, library, workspace, out)


def _why_not(
    name: str, kernel: str, heads: dict[str, TensorView], rows: dict[str, TensorView]
) -> str | None:
    """Return why the kernel does not take operands that fit each other; None if it does.

    Raises:
        OperandError: They do not.
    """
    misfit = why_not(heads, rows, types_of(kernel))
    if misfit is None:
        return None
    if misfit.wrong:
        raise OperandError(f"{name}: {misfit.reason}")
    return f"{name}: {misfit.reason}"


def _on(device: torch.device) -> dict[str, int]:
    return {"sm_count": launch.multiprocessors(device), "device": device.index or 0}


_OPERATORS: Any = define_kernels(
    _SCHEMAS,
    {
        "cutlass_fmha.out": cutlass_fmha,
        "cutlass_fmha_output.out": cutlass_fmha_output,
        "cutlass_fmha_backward.out": cutlass_fmha_backward,
    },
)
