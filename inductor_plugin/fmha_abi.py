"""The C function of a compiled CUTLASS attention kernel, and how to call it.

`FmhaCall` has the fields of ``templates/source/cutlass_fmha_call.h``. `can_implement` and
`workspace_bytes` ask no device: they answer on a machine that has none.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from inductor_plugin.errors import CallRefusedError, KernelError

WORKSPACE_ALIGNMENT = 128
"""Bytes; where the tensors in a workspace begin, so that TMA can read and add to them."""

_Strides = ctypes.c_int64 * 3


class FmhaCall(ctypes.Structure):
    """One call: out = softmax(scale * q @ k.T, where the window keeps) @ v, or its gradients.

    Sizes and strides are in elements; strides are of (batch, head, row), the last dimension is
    contiguous. Pointers are device addresses, or None where nothing is read or written. ``lse`` and
    ``delta`` are dense float32 [batch, heads, seq_q]. Windows are as in `attention.Mask`.
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
    )


class FmhaStatus(IntEnum):
    """What a kernel's function returns; the same numbers as in ``cutlass_fmha_call.h``."""

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


_REASONS: dict[FmhaStatus, str] = {
    FmhaStatus.POINTER: "a pointer is missing or not aligned to 16 bytes",
    FmhaStatus.STRIDE: "a stride is no multiple of 16 bytes, too large, or rows overlap",
    FmhaStatus.EXTENT: "an extent is not positive or too large",
    FmhaStatus.SCALAR: "scale is not positive and finite, or sm_count is not positive",
    FmhaStatus.HEADS: "the heads of q are no multiple of those of k and v",
    FmhaStatus.DIM: "the heads are larger than this kernel's, or no multiple of 8",
    FmhaStatus.WORKSPACE: "the workspace is missing, too small or not aligned to 128 bytes",
    FmhaStatus.START: "the kernel did not start",
    FmhaStatus.BAD_MODE: "the library is of another version",
}

_REFUSALS = (
    FmhaStatus.POINTER,
    FmhaStatus.STRIDE,
    FmhaStatus.EXTENT,
    FmhaStatus.SCALAR,
    FmhaStatus.HEADS,
    FmhaStatus.DIM,
)
"""What a kernel says of its operands before anything is launched: another kernel may take them."""

_CAN_IMPLEMENT, _WORKSPACE_BYTES, _RUN = 0, 1, 2


@dataclass(frozen=True)
class FmhaFunction:
    """A loaded kernel.

    Attributes:
        library: Path of its library.
        symbol: Name of its C function.
        entry: The function.
    """

    library: str
    symbol: str
    entry: Any


def load(path: str | Path, symbol: str, cudart: str = "") -> FmhaFunction:
    """Return a kernel of a shared library.

    Args:
        path: The shared library. It needs ``libcudart.so.<major>``, which ``import torch`` has loaded
            in a CUDA build.
        symbol: Name of the C function.
        cudart: Runtime library to load first; empty where torch is loaded.

    Raises:
        KernelError: The library cannot be loaded or has no such function.
    """
    try:
        if cudart:
            ctypes.CDLL(cudart, mode=ctypes.RTLD_GLOBAL)
        entry = getattr(ctypes.CDLL(str(path)), symbol)
    except (OSError, AttributeError) as error:
        raise KernelError(f"cannot load {symbol} from {path}: {error}") from error
    entry.argtypes = (
        ctypes.c_int32,
        ctypes.POINTER(FmhaCall),
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.c_void_p,
    )
    entry.restype = ctypes.c_int32
    return FmhaFunction(str(path), symbol, entry)


def can_implement(kernel: FmhaFunction, call: FmhaCall) -> str | None:
    """Return why a kernel refuses a call, or None if it takes it. Pointers may be missing."""
    return _refusal(kernel, call, kernel.entry(_CAN_IMPLEMENT, ctypes.byref(call), None, None))


def workspace_bytes(kernel: FmhaFunction, call: FmhaCall) -> int:
    """Return how much device memory a call needs besides its operands.

    Raises:
        CallRefusedError: The kernel does not take the operands.
        KernelError: The library is of another version.
    """
    size = ctypes.c_uint64(0)
    status = kernel.entry(_WORKSPACE_BYTES, ctypes.byref(call), ctypes.byref(size), None)
    if reason := _refusal(kernel, call, status):
        raise _error(status, reason)
    return size.value


def run(kernel: FmhaFunction, call: FmhaCall, stream: int) -> None:
    """Start a kernel on a CUDA stream of the call's device; it may not have ended on return.

    Args:
        kernel: The kernel.
        call: Its operands and workspace.
        stream: Handle of the stream; tensor maps, memsets and every launch are given it.

    Raises:
        CallRefusedError: The kernel does not take the operands.
        KernelError: Its workspace does not fit, or it did not start.
    """
    status = kernel.entry(_RUN, ctypes.byref(call), None, ctypes.c_void_p(stream))
    if reason := _refusal(kernel, call, status):
        if status == FmhaStatus.WORKSPACE:
            needed = workspace_bytes(kernel, call)
            reason = f"{reason}: {call.workspace_bytes} bytes of {needed}"
        raise _error(status, reason)


def _error(status: int, reason: str) -> KernelError:
    return CallRefusedError(reason) if status in _REFUSALS else KernelError(reason)


def _refusal(kernel: FmhaFunction, call: FmhaCall, status: int) -> str | None:
    if status == FmhaStatus.OK:
        return None
    known = status in FmhaStatus._value2member_map_
    reason = _REASONS[FmhaStatus(status)] if known else f"it returned {status}"
    if status == FmhaStatus.START:
        reason += f" (CUDA error {call.cuda_error})"
    shape = (
        f"batch={call.batch} heads={call.heads} heads_kv={call.heads_kv} "
        f"seq_q={call.seq_q} seq_k={call.seq_k} dim={call.dim} scale={call.scale:g}"
    )
    return f"{kernel.symbol}: {reason} ({shape})"
