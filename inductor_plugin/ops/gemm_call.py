"""Builds the call of a CUTLASS kernel from the sizes and strides of an operator's operands.

Each function takes the operands and arguments of one operator of `gemm`, after the kernel's name.
Neither tensors nor torch are needed, so that generated code can plan the workspace of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_abi import GemmCall, GemmOperand, new_call


def product(
    a: TensorView,
    b: TensorView,
    order: str,
    swizzle: int,
    raster: int,
    split_k: int,
    *,
    out: TensorView,
    sm_count: int,
) -> GemmCall:
    """Return the call of A @ B.

    Args:
        a: [m, k] or [batch, m, k].
        b: [k, n] or [batch, k, n].
        order: Whether K (``t``) or the other dimension (``n``) of A is contiguous, and of B whether
            N (``t``) or K (``n``) is, in CUTLASS's letters.
        swizzle: Largest number of tiles that neighbouring blocks share a side of.
        raster: Direction in which blocks walk over D (0 heuristic, 1 along M, 2 along N).
        split_k: Parts K is cut into.
        out: [m, n] or [batch, m, n], rows contiguous.
        sm_count: Multiprocessors of the device.
    """
    batched = len(out.size) > 2
    return new_call(
        a=a.pointer,
        b=b.pointer,
        d=out.pointer,
        m=out.size[-2],
        n=out.size[-1],
        k=a.size[-1],
        batch=out.size[0] if batched else 1,
        lead_a=_lead(a, order[0]),
        lead_b=_lead(b, order[1]),
        lead_d=out.stride[-2],
        batch_a=a.stride[0] if batched else 0,
        batch_b=b.stride[0] if batched else 0,
        batch_d=out.stride[0] if batched else 0,
        sm_count=sm_count,
        swizzle=swizzle,
        raster=raster,
        split_k=split_k,
    )


def added(
    c: TensorView,
    a: TensorView,
    b: TensorView,
    *arguments: Any,
    out: TensorView,
    sm_count: int,
) -> GemmCall:
    """Return the call of alpha * A @ B + beta * C; the rest as in `product`.

    ``c`` is [n], [m, n] or [batch, m, n]. ``arguments`` are those of `product`, then ``bias``, ``alpha``
    and ``beta``; ``bias`` is how C is read: ``row`` C[n] for every row, ``column`` C[m] for every
    column, ``full`` all, ``none`` not at all (``beta`` is 0).
    """
    *launch, bias, alpha, beta = arguments
    call = product(a, b, *launch, out=out, sm_count=sm_count)
    call.alpha = alpha
    if bias == "none":
        return call
    call.beta = beta
    call.c = c.pointer
    call.batch_c = c.stride[0] if len(c.size) > 2 and c.size[0] > 1 else 0
    if bias == "full":
        call.lead_c = c.stride[-2]
    return call


def scaled(
    a: TensorView,
    b: TensorView,
    scale_a: TensorView,
    scale_b: TensorView,
    *launch: Any,
    out: TensorView,
    sm_count: int,
) -> GemmCall:
    """Return the call of scale_a * scale_b * (A @ B); float32 scales, one each or [m, 1] and [1, n]."""
    call = product(a, b, *launch, out=out, sm_count=sm_count)
    call.scale_a, call.scale_b = scale_a.pointer, scale_b.pointer
    return call


def scaled_added(
    a: TensorView,
    b: TensorView,
    scale_a: TensorView,
    scale_b: TensorView,
    c: TensorView,
    *launch: Any,
    out: TensorView,
    sm_count: int,
) -> GemmCall:
    """Return the call of scale_a * scale_b * (A @ B) + C[n]."""
    call = scaled(a, b, scale_a, scale_b, *launch, out=out, sm_count=sm_count)
    call.c, call.beta = c.pointer, 1.0
    return call


def grouped(
    a: TensorView,
    b: TensorView,
    offsets: TensorView,
    *launch: Any,
    out: TensorView,
    sm_count: int,
) -> GemmCall:
    """Return the call of A[rows of a group] @ B[group] for all groups; the rest as in `product`.

    Args:
        a: [m, k], the concatenated rows of all groups.
        b: [groups, k, n].
        offsets: int32 [groups], where the rows of each group end.
        launch: As in `product`; A's letter of ``order`` is ``t``, ``split_k`` is 1.
        out: [m, n].
    """
    call = product(a, b, *launch, out=out, sm_count=sm_count)
    call.batch, call.batch_b = b.size[0], b.stride[0]
    call.offsets = offsets.pointer
    return call


def fused(
    slots: Sequence[TensorView],
    a: TensorView,
    b: TensorView,
    *launch: Any,
    out: TensorView,
    sm_count: int,
) -> GemmCall:
    """Return the call of A @ B with an epilogue; the rest as in `product`.

    Args:
        slots: The epilogue's operands, then its outputs besides ``out``: each with as many
            dimensions as ``out``, as long as it or 1.
        launch: As in `product`; ``split_k`` is 1.
    """
    call = product(a, b, *launch, out=out, sm_count=sm_count)
    for place, slot in enumerate(slots):
        strides = [
            0 if extent == 1 else step for extent, step in zip(slot.size, slot.stride, strict=True)
        ]
        call.operands[place] = GemmOperand(
            pointer=slot.pointer,
            along_m=strides[-2],
            along_n=strides[-1],
            batch=strides[0] if len(strides) > 2 else 0,
        )
    return call


def _fused(*arguments: Any, out: TensorView, sm_count: int) -> GemmCall:
    """Return the call of `fused` from A, B, the slots and the launch as one list of arguments."""
    count = next(i for i, value in enumerate(arguments) if not isinstance(value, TensorView))
    a, b, *slots = arguments[:count]
    return fused(slots, a, b, *arguments[count : count + 4], out=out, sm_count=sm_count)


CALLS: dict[str, Callable[..., GemmCall]] = {
    "cutlass_mm": product,
    "cutlass_addmm": added,
    "cutlass_scaled_mm": scaled,
    "cutlass_scaled_addmm": scaled_added,
    "cutlass_grouped_mm": grouped,
    "cutlass_mm_epilogue": _fused,
}
"""The call of each operator, by its name."""


def _lead(operand: TensorView, letter: str) -> int:
    """Return the stride of the dimension of a matrix that is not contiguous."""
    return operand.stride[-2 if letter == "t" else -1]
