"""The C function of a compiled CUTLASS attention kernel, and how to call it.

`FmhaCall` has the fields of ``templates/cutlass_attention/source/interface.h``; see `ops.abi` for what the
function does.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

from inductor_plugin.ops.abi import Abi

WORKSPACE_ALIGNMENT = 128
"""Bytes: alignment of the tensors in a workspace, so that TMA can read and add to them."""

_Strides = ctypes.c_int64 * 3


class FmhaCall(ctypes.Structure):
    """One call: out = softmax(scale * q @ k.T, masked by the window) @ v, or its gradients.

    Sizes and strides are in elements; strides are of (batch, head, row), the last dimension is
    contiguous. Pointers are device addresses, or None where nothing is read or written. ``lse`` and
    ``delta`` are dense float32 [batch, heads, seq_q]. Windows are as in `attention.Mask`.
    ``kept`` is as in `ops.gemm_abi.GemmCall`.
    """

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("d_out", ctypes.c_void_p),
        ("delta", ctypes.c_void_p),
        ("dq", ctypes.c_void_p),
        ("dk", ctypes.c_void_p),
        ("dv", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("heads_kv", ctypes.c_int64),
        ("seq_q", ctypes.c_int64),
        ("seq_k", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("stride_q", _Strides),
        ("stride_k", _Strides),
        ("stride_v", _Strides),
        ("stride_out", _Strides),
        ("stride_d_out", _Strides),
        ("stride_dq", _Strides),
        ("stride_dk", _Strides),
        ("stride_dv", _Strides),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("bottom_right", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("cuda_error", ctypes.c_int32),
        ("kept", ctypes.c_void_p),
    )


class FmhaStatus(IntEnum):
    """Status of a kernel's function; the same numbers as in ``interface.h``."""

    OK = 0
    POINTER = 1
    STRIDE = 2
    EXTENT = 3
    SCALAR = 4
    HEADS = 5
    DIM = 6
    WORKSPACE = 7
    START = 8
    BAD_MODE = 9


def _sizes(call: FmhaCall) -> str:
    return (
        f"batch={call.batch} heads={call.heads} heads_kv={call.heads_kv} "
        f"seq_q={call.seq_q} seq_k={call.seq_k} dim={call.dim} scale={call.scale:g}"
    )


ABI = Abi(
    FmhaCall,
    refusals={
        FmhaStatus.POINTER: "a pointer is missing or not aligned to 16 bytes",
        FmhaStatus.STRIDE: "a stride is no multiple of 16 bytes, too large, or rows overlap",
        FmhaStatus.EXTENT: "an extent is not positive or too large",
        FmhaStatus.SCALAR: "scale is not positive and finite, or sm_count is not positive",
        FmhaStatus.HEADS: "the heads of q are no multiple of those of k and v",
        FmhaStatus.DIM: "the heads are larger than this kernel's, or no multiple of 16 bytes",
    },
    workspace="the workspace is missing, too small or not aligned to 128 bytes",
    errors=lambda call: f"CUDA error {call.cuda_error}",
    sizes=_sizes,
)

load, can_implement = ABI.load, ABI.can_implement
workspace_bytes, run = ABI.workspace_bytes, ABI.run
