"""The C function of a compiled CUTLASS kernel, and how to call it.

`GemmCall` has the fields of ``templates/source/cutlass_call.h``. `can_implement` and
`workspace_bytes` ask no device: they answer on a machine that has none.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from inductor_plugin.errors import CallRefusedError, KernelError

RASTERS: dict[str, int] = {"heuristic": 0, "along_m": 1, "along_n": 2}
"""`GemmCall.raster` by its name."""


class GemmCall(ctypes.Structure):
    """One call: D[batch, m, n] = alpha * scale(A[batch, m, k] @ B[batch, k, n]) + beta * C.

    Sizes and strides are in elements; pointers are device addresses, or None where nothing is read.
    ``lead_*`` is the stride of the dimension that is not contiguous, ``batch_*`` that of the batch:
    0 for an input all batches share.

    A grouped kernel takes the rows of all groups as one A[m, k] and D[m, n], B as [batch, k, n], and
    in ``offsets`` the device address of ``batch`` int32 numbers: where the rows of each group end.
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
    )


class GemmStatus(IntEnum):
    """What a kernel's function returns; the same numbers as in ``cutlass_call.h``."""

    OK = 0
    POINTER = 1
    STRIDE = 2
    EXTENT = 3
    SCALAR = 4
    REFUSED = 5
    WORKSPACE = 6
    START = 7
    BAD_MODE = 8


_REASONS: dict[GemmStatus, str] = {
    GemmStatus.POINTER: "a pointer is missing or not aligned",
    GemmStatus.STRIDE: "a stride is not a multiple of the kernel's alignment, or rows overlap",
    GemmStatus.EXTENT: "an extent is not positive, too large, or no multiple of the alignment",
    GemmStatus.SCALAR: "alpha, beta, split_k or sm_count has a value this kernel cannot have",
    GemmStatus.REFUSED: "CUTLASS cannot run this problem",
    GemmStatus.WORKSPACE: "the workspace is missing or too small",
    GemmStatus.START: "the kernel did not start",
    GemmStatus.BAD_MODE: "the library is of another version",
}

_REFUSALS = (
    GemmStatus.POINTER,
    GemmStatus.STRIDE,
    GemmStatus.EXTENT,
    GemmStatus.SCALAR,
    GemmStatus.REFUSED,
)
"""What a kernel says of its operands before anything is launched: another kernel may take them."""

_CAN_IMPLEMENT, _WORKSPACE_BYTES, _RUN = 0, 1, 2


@dataclass(frozen=True)
class GemmFunction:
    """A loaded kernel.

    Attributes:
        library: Path of its library.
        symbol: Name of its C function.
        entry: The function.
    """

    library: str
    symbol: str
    entry: Any


def new_call(**values: Any) -> GemmCall:
    """Return a call with the given fields; alpha, batch, swizzle and split_k are 1, all else is 0."""
    fields: dict[str, Any] = {"alpha": 1.0, "batch": 1, "swizzle": 1, "split_k": 1, **values}
    return GemmCall(**fields)


def load(path: str | Path, symbol: str, cudart: str = "") -> GemmFunction:
    """Return a kernel of a shared library.

    The library needs ``libcudart.so.<major>``. ``import torch`` has loaded that of a CUDA build, and
    the loader takes a library by its name once it is there; elsewhere name the file.

    Args:
        path: The shared library.
        symbol: Name of the C function.
        cudart: Runtime library to load first (`Toolkit.cudart`); empty where torch is loaded.

    Raises:
        KernelError: The library cannot be loaded or has no such function.
    """
    try:
        if cudart:
            _cudart(cudart)
        entry = getattr(ctypes.CDLL(str(path)), symbol)
    except (OSError, AttributeError) as error:
        hint = "; import torch first, or pass cudart=" if "libcudart" in str(error) else ""
        raise KernelError(f"cannot load {symbol} from {path}: {error}{hint}") from error
    entry.argtypes = (
        ctypes.c_int32,
        ctypes.POINTER(GemmCall),
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.c_void_p,
    )
    entry.restype = ctypes.c_int32
    return GemmFunction(str(path), symbol, entry)


def can_implement(kernel: GemmFunction, call: GemmCall) -> str | None:
    """Return why a kernel refuses a call, or None if it takes it. Pointers may be missing."""
    return _refusal(kernel, call, kernel.entry(_CAN_IMPLEMENT, ctypes.byref(call), None, None))


def workspace_bytes(kernel: GemmFunction, call: GemmCall) -> int:
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


def run(kernel: GemmFunction, call: GemmCall, stream: int) -> None:
    """Start a kernel on a CUDA stream of the current device; it may not have ended on return.

    Args:
        kernel: The kernel.
        call: Its operands and workspace.
        stream: Handle of the stream, e.g. ``torch.cuda.current_stream().cuda_stream``.

    Raises:
        CallRefusedError: The kernel does not take the operands.
        KernelError: Its workspace is too small, or it did not start.
    """
    status = kernel.entry(_RUN, ctypes.byref(call), None, ctypes.c_void_p(stream))
    if reason := _refusal(kernel, call, status):
        if status == GemmStatus.WORKSPACE:
            needed = workspace_bytes(kernel, call)
            reason = f"{reason}: {call.workspace_bytes} bytes of {needed}"
        raise _error(status, reason)


@functools.cache
def _cudart(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _error(status: int, reason: str) -> KernelError:
    return CallRefusedError(reason) if status in _REFUSALS else KernelError(reason)


def _refusal(kernel: GemmFunction, call: GemmCall, status: int) -> str | None:
    if status == GemmStatus.OK:
        return None
    known = status in GemmStatus._value2member_map_
    reason = _REASONS[GemmStatus(status)] if known else f"it returned {status}"
    if status == GemmStatus.START:
        reason += f" (CUTLASS status {call.cutlass_status}, CUDA error {call.cuda_error})"
    shape = f"m={call.m} n={call.n} k={call.k} batch={call.batch}"
    return f"{kernel.symbol}: {reason} ({shape})"
