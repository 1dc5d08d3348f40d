"""Whether the operands of an attention fit each other and its kernel, from sizes, strides, dtypes and devices alone.

A kernel gets pointers and sizes: what does not fit it reads or writes out of bounds. ``ops/native/attention_site.h`` has the
same rules, and hands what they refuse to the operator, which words the error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_rules import Misfit
from inductor_plugin.ops.kernel_types import KernelTypes
from inductor_plugin.problem.strides import is_dense


def why_not(
    heads: Mapping[str, TensorView],
    rows: Mapping[str, TensorView],
    types: KernelTypes,
) -> Misfit | None:
    """Return why a call must not reach its kernel, None if it may.

    Args:
        heads: ``q``, ``k``, ``v`` and what is as large as one of them: ``d_out``, ``out`` and ``dq`` as q, ``dk`` and ``dv``
            as k. Of ``out`` an fp8 kernel writes bfloat16.
        rows: ``lse`` and ``delta``: float32 [batch, heads, seq_q], dense.
        types: Those of the kernel.
    """
    return (
        _sizes(heads, rows)
        or _dtypes_and_devices(heads, rows, types)
        or next((misfit for misfit in map(_inner, heads, heads.values()) if misfit), None)
        or next((misfit for misfit in map(_row, rows, rows.values()) if misfit), None)
    )


_LIKE_Q = ("q", "d_out", "out", "dq")


def _sizes(heads: Mapping[str, TensorView], rows: Mapping[str, TensorView]) -> Misfit | None:
    size_q, size_k = heads["q"].size, heads["k"].size
    if len(size_q) != 4 or len(size_k) != 4:
        return Misfit(f"q is {tuple(size_q)}, k {tuple(size_k)}: both must have four dimensions")
    wanted_k = (size_q[0], *size_k[1:3], size_q[3])
    for name, view in heads.items():
        wanted = size_q if name in _LIKE_Q else wanted_k
        if view.size != wanted:
            return Misfit(f"{name} is {tuple(view.size)}, it must be {tuple(wanted)}")
    count = math.prod(size_q[:3])
    for name, view in rows.items():
        if math.prod(view.size) != count:
            return Misfit(f"{name} is {tuple(view.size)}, it must be {tuple(size_q[:3])}")
    return None


def _dtypes_and_devices(
    heads: Mapping[str, TensorView], rows: Mapping[str, TensorView], types: KernelTypes
) -> Misfit | None:
    q = heads["q"]
    for name, view in heads.items():
        wanted = q.dtype
        if name == "out" and wanted == torch.float8_e4m3fn:
            wanted = torch.bfloat16
        if view.dtype != wanted:
            return Misfit(f"{name} is {view.dtype}, it must be {wanted}")
    for name, view in (*heads.items(), *rows.items()):
        if view.device != q.device:
            return Misfit(f"{name} is on {view.device}, q on {q.device}")
    if types.a is not None and q.dtype != types.a:
        return Misfit(f"q is {q.dtype}, this kernel reads {types.a}")
    return None


def _inner(name: str, view: TensorView) -> Misfit | None:
    if view.stride[3] != 1 and view.size[3] > 1:
        reason = f"the last dimension must be contiguous, {name} has the strides {view.stride}"
        return Misfit(reason, wrong=False)
    return None


def _row(name: str, view: TensorView) -> Misfit | None:
    if view.dtype != torch.float32 or not is_dense(view.size, view.stride):
        reason = f"{name} must be dense float32, it is {view.dtype} {view.stride}"
        return Misfit(reason, wrong=False)
    return None
