"""The C function of a compiled CUTLASS kernel, and how to call it.

`GemmCall` has the fields of ``templates/cutlass/source/interface.h``; see `abi` for what the function does.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

from inductor_plugin.ops.abi import Abi

SLOTS = 8
"""Entries of `GemmCall.operands`."""


class GemmOperand(ctypes.Structure):
    """An operand of an epilogue, or an output besides D, with strides in elements along D's dimensions.

    A stride is 0 where the operand is broadcast: ``along_m`` of a row, ``along_n`` of a column.
    """

    _fields_ = (
        ("pointer", ctypes.c_void_p),
        ("along_m", ctypes.c_int64),
        ("along_n", ctypes.c_int64),
        ("batch", ctypes.c_int64),
    )


class GemmCall(ctypes.Structure):
    """One call: D[batch, m, n] = alpha * scale(A[batch, m, k] @ B[batch, k, n]) + beta * C.

    Sizes and strides are in elements; pointers are device addresses, or None where unused.
    ``lead_*`` is the stride of the dimension that is not contiguous, ``batch_*`` that of the batch:
    0 for an input that all batches share.

    A grouped kernel takes the rows of all groups as one A[m, k] and D[m, n], B as [batch, k, n], and
    in ``offsets`` the device address of ``batch`` int32 numbers: where the rows of each group end.

    For a kernel with an epilogue, ``operands`` has the epilogue's operands in the order of its reads,
    then its outputs besides D.

    ``kept`` is the address of a pointer in which the kernel keeps what it has prepared, for the next call with
    the same fields; None to keep nothing.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
        ("scale_a", ctypes.c_void_p),
        ("scale_b", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("lead_a", ctypes.c_int64),
        ("lead_b", ctypes.c_int64),
        ("lead_c", ctypes.c_int64),
        ("lead_d", ctypes.c_int64),
        ("batch_a", ctypes.c_int64),
        ("batch_b", ctypes.c_int64),
        ("batch_c", ctypes.c_int64),
        ("batch_d", ctypes.c_int64),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("sm_count", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("split_k", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("cutlass_status", ctypes.c_int32),
        ("cuda_error", ctypes.c_int32),
        ("offsets", ctypes.c_void_p),
        ("operands", GemmOperand * SLOTS),
        ("kept", ctypes.c_void_p),
    )


class GemmStatus(IntEnum):
    """Status of a kernel's function; the same numbers as in ``interface.h``."""

    OK = 0
    POINTER = 1
    STRIDE = 2
    EXTENT = 3
    SCALAR = 4
    REFUSED = 5
    WORKSPACE = 6
    START = 7
    BAD_MODE = 8


def new_call(**values: Any) -> GemmCall:
    """Return a call with these fields; alpha, batch, swizzle and split_k are 1, all else is 0."""
    fields: dict[str, Any] = {"alpha": 1.0, "batch": 1, "swizzle": 1, "split_k": 1, **values}
    return GemmCall(**fields)


def _sizes(call: GemmCall) -> str:
    return f"m={call.m} n={call.n} k={call.k} batch={call.batch}"


ABI = Abi(
    GemmCall,
    refusals={
        GemmStatus.POINTER: "a pointer is missing or not aligned",
        GemmStatus.STRIDE: "a stride is not a multiple of the kernel's alignment, or rows overlap",
        GemmStatus.EXTENT: "an extent is not positive, too large, or no multiple of the alignment",
        GemmStatus.SCALAR: "alpha, beta, split_k or sm_count has a value this kernel cannot have",
        GemmStatus.REFUSED: "CUTLASS cannot run this problem",
    },
    workspace="the workspace is missing or too small",
    errors=lambda call: f"CUTLASS status {call.cutlass_status}, CUDA error {call.cuda_error}",
    sizes=_sizes,
)

load, can_implement = ABI.load, ABI.can_implement
workspace_bytes, run = ABI.workspace_bytes, ABI.run
