"""The torch operators that run compiled CUTLASS kernels: ``torch.ops.inductor_plugin.cutlass_*``.

    cutlass_mm.out(a, b, ...)                      mm, bmm, _int_mm
    cutlass_addmm.out(c, a, b, ...)                addmm, baddbmm
    cutlass_scaled_mm.out(a, b, sa, sb, ...)       _scaled_mm
    cutlass_scaled_addmm.out(a, b, sa, sb, c, ...) _scaled_mm with a bias
    cutlass_grouped_mm.out(a, b, offsets, ...)     _grouped_mm

They are written into generated code. A kernel is named ``SYMBOL@DIGEST``; its library is looked for
in the cache directories of this process's compiles, then in the default one. Where it is gone (a
trimmed cache, a compiled graph from another machine), or where the kernel does not take the operands
(sizes that another compile saw, a shifted input), the library product is computed instead, and one
warning a kernel says so. ``SYMBOL@/a/path`` names a library itself, and then nothing stands in for it.

Nothing here waits for the device, and what is allocated comes from torch's allocator on the stream
the kernel runs on: calls can be captured into a CUDA graph.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.cache import open_store
from inductor_plugin.config import default_cache_dir
from inductor_plugin.errors import CacheError, CallRefusedError, KernelError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.gemm_abi import GemmCall, GemmFunction, load, run, workspace_bytes
from inductor_plugin.ops.gemm_call import (
    CALLS,
    Matrix,
    added,
    grouped,
    product,
    scaled,
    scaled_added,
)
from inductor_plugin.problem import Operand

LIBRARY_FILE = "kernel.so"
WORKSPACE_ALIGNMENT = 64
"""Bytes; where CUTLASS puts tensor maps, which TMA reads."""

_LAUNCH = "str kernel, str order, int swizzle, int raster, int split_k"
_RESULT = "*, Tensor(b!)? workspace=None, Tensor(a!) out) -> Tensor(a!)"
_SCHEMAS = {
    "cutlass_mm.out": f"(Tensor a, Tensor b, {_LAUNCH}, {_RESULT}",
    "cutlass_addmm.out": (
        f"(Tensor c, Tensor a, Tensor b, {_LAUNCH}, str bias, float alpha, float beta, {_RESULT}"
    ),
    "cutlass_scaled_mm.out": (
        f"(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, {_LAUNCH}, {_RESULT}"
    ),
    "cutlass_scaled_addmm.out": (
        f"(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor c, {_LAUNCH}, {_RESULT}"
    ),
    "cutlass_grouped_mm.out": f"(Tensor a, Tensor b, Tensor offsets, {_LAUNCH}, {_RESULT}",
}

_ATEN: Any = torch  # some of its functions are public in all but name
_OPERATORS: Any = torch.library.Library("inductor_plugin", "FRAGMENT")
_folders: list[Path] = []
_warned: set[str] = set()


def look_in(folder: Path) -> None:
    """Look for libraries in this cache directory too, the last one named first."""
    if folder in _folders:
        _folders.remove(folder)
    _folders.insert(0, folder)


def workspace_needed(
    kernel: OpKernel, operands: Sequence[Operand], output: Operand, device: torch.device
) -> int:
    """Return how many bytes a call needs besides its operands, 0 for none or where that is not known.

    Generated code allocates them beside its other memory and hands them over as ``workspace=``; an
    operator that is given none allocates its own.

    Args:
        kernel: The operator, the kernel's name and what follows it.
        operands: As the operator takes them.
        output: What it writes.
        device: Where it will run.
    """
    try:
        function = _located(str(kernel.args[0]))
        if function is None:
            return 0
        name = kernel.op.partition("::")[2].partition(".")[0]
        call = CALLS[name](
            *(Matrix(one.size, one.stride) for one in operands),
            *kernel.args[1:],
            out=Matrix(output.size, output.stride),
            # Not the kept number: while a graph is lowered the device may be another one.
            sm_count=_multiprocessors(device),
        )
        return workspace_bytes(function, call) if _has_work(call) else 0
    except KernelError:  # a call of it will say so
        return 0


def cutlass_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    kernel: str,
    *launch: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write A @ B to ``out``.

    Args:
        a: [m, k] or [batch, m, k].
        b: [k, n] or [batch, k, n].
        kernel: ``SYMBOL@DIGEST``.
        launch: How it is started; `gemm_call.product` names the arguments.
        workspace: Memory of the kernel's, uint8; None to allocate what it needs.
        out: [m, n] or [batch, m, n], rows contiguous.
    """
    make = functools.partial(call_of, product, (a, b), launch, out)
    multiply = _ATEN._int_mm if a.dtype == torch.int8 else torch.matmul
    library = functools.partial(multiply, a, b, out=out)
    return answered(kernel, make, library, workspace, out)


def cutlass_addmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    kernel: str,
    *launch: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write alpha * A @ B + beta * C to ``out``; as `cutlass_mm`, with `gemm_call.added`."""
    make = functools.partial(call_of, added, (c, a, b), launch, out)
    add: Any = torch.baddbmm if a.dim() > 2 else torch.addmm
    alpha, beta = launch[-2:]
    library = functools.partial(add, c, a, b, alpha=alpha, beta=beta, out=out)
    return answered(kernel, make, library, workspace, out)


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    kernel: str,
    *launch: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write scale_a * scale_b * (A @ B) to ``out``; as `cutlass_mm`, with `gemm_call.scaled`."""
    make = functools.partial(call_of, scaled, (a, b, scale_a, scale_b), launch, out)
    library = functools.partial(
        _ATEN._scaled_mm, a, b, scale_a, scale_b, out_dtype=out.dtype, out=out
    )
    return answered(kernel, make, library, workspace, out)


def cutlass_scaled_addmm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    c: torch.Tensor,
    kernel: str,
    *launch: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write scale_a * scale_b * (A @ B) + C[n] to ``out``; the rest as in `cutlass_scaled_mm`."""
    make = functools.partial(call_of, scaled_added, (a, b, scale_a, scale_b, c), launch, out)
    library = functools.partial(
        _ATEN._scaled_mm, a, b, scale_a, scale_b, bias=c, out_dtype=out.dtype, out=out
    )
    return answered(kernel, make, library, workspace, out)


def cutlass_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    kernel: str,
    *launch: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write A[rows of a group] @ B[group] for all groups to ``out``; as `cutlass_mm`.

    Rows behind the last group are left as they are, as ``torch._grouped_mm`` leaves them.

    Args:
        a: [m, k].
        b: [groups, k, n].
        offsets: int32 [groups] on the device, where the rows of each group end; may repeat.
        kernel: ``SYMBOL@DIGEST``.
        launch: How it is started; `gemm_call.grouped` names the arguments.
        workspace: As in `cutlass_mm`.
        out: [m, n].
    """
    if not a.shape[-1]:
        return out.zero_()
    make = functools.partial(call_of, grouped, (a, b, offsets), launch, out)

    def library() -> torch.Tensor:
        return out.copy_(_ATEN._grouped_mm(a, b, offsets))

    return answered(kernel, make, library, workspace, out)


def found(kernel: str) -> GemmFunction | None:
    """Return a kernel by its name, or None, after one warning, where its library is gone.

    Raises:
        KernelError: A library named by its path cannot be loaded.
    """
    try:
        return _found(kernel)
    except KernelError:
        if "@/" in kernel:
            raise
        return None


@functools.cache
def _loaded(symbol: str, path: str) -> GemmFunction:
    return load(path, symbol)


@functools.lru_cache(maxsize=4096)
def _found(kernel: str) -> GemmFunction:
    """Return a kernel; what is not found is looked for again next time (exceptions are not kept)."""
    function = _located(kernel)
    if function is None:
        symbol = kernel.partition("@")[0]
        _warn(symbol, f"the library of {symbol} is not in the cache any more")
        raise KernelError(f"the library of {kernel} is in no cache directory")
    return function


def _located(kernel: str) -> GemmFunction | None:
    """Return a kernel, or None where no cache directory has its library."""
    symbol, _, place = kernel.partition("@")
    path = place if place.startswith("/") else library_path(place)
    return None if path is None else _loaded(symbol, str(path))


def library_path(digest: str) -> Path | None:
    """Return where the library of a kernel is, or None where no cache directory has it."""
    found_in = (_library_in(folder, digest) for folder in [*_folders, default_cache_dir()])
    return next((path for path in found_in if path is not None), None)


def _library_in(folder: Path, digest: str) -> Path | None:
    if not folder.is_dir():  # opening would make it
        return None
    try:
        entry = open_store(folder).kernel(digest)
    except CacheError:
        return None
    return entry.path(LIBRARY_FILE) if entry is not None else None


def _warn(kernel: str, reason: str) -> None:
    """Say once why a kernel is not used."""
    if kernel in _warned:
        return
    _warned.add(kernel)
    warnings.warn(
        f"{reason}, the library product is computed instead; compile the model again to choose anew",
        RuntimeWarning,
        stacklevel=6,
    )


def call_of(
    make: Callable[..., GemmCall],
    operands: Sequence[torch.Tensor],
    launch: Sequence[Any],
    out: torch.Tensor,
) -> GemmCall:
    """Return the call that a function of `gemm_call` makes of tensors."""
    processors = multiprocessors(out.device)
    return make(*map(matrix, operands), *launch, out=matrix(out), sm_count=processors)


def matrix(operand: torch.Tensor) -> Matrix:
    """Return a tensor as `gemm_call` takes it."""
    return Matrix(operand.shape, operand.stride(), operand.data_ptr())


def answered(
    kernel: str,
    make: Callable[[], GemmCall],
    library: Callable[[], torch.Tensor],
    memory: torch.Tensor | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Start a kernel, or compute the library product where it is gone or does not take the operands.

    Args:
        kernel: ``SYMBOL@DIGEST``.
        make: Gives its call.
        library: Writes the same to ``out``.
        memory: Its workspace, if the caller has one.
        out: What is written.

    Raises:
        KernelError: It did not start, its workspace does not fit, or its library is named by a path.
    """
    function = found(kernel)
    call = make()
    if function is None or call.k == 0:
        return library()
    try:
        return _started(function, call, memory, out)
    except CallRefusedError as refusal:
        if "@/" in kernel:
            raise
        _warn(kernel, str(refusal))
    return library()


def _started(
    function: GemmFunction, call: GemmCall, memory: torch.Tensor | None, out: torch.Tensor
) -> torch.Tensor:
    """Start a kernel on the current stream of the output's device."""
    if not _has_work(call):
        return out
    if memory is None:
        needed = workspace_bytes(function, call)
        # From the caching allocator: inside a CUDA graph it comes from the graph's own pool.
        memory = torch.empty(needed, dtype=torch.uint8, device=out.device)
    elif reason := _unfit(memory, out.device):
        raise KernelError(f"{function.symbol}: {reason}")
    # The kernel's function compares the size with its need before it writes anything.
    call.workspace, call.workspace_bytes = memory.data_ptr(), memory.numel()
    _launch(function, call, out.device)
    return out


def _has_work(call: GemmCall) -> bool:
    return 0 not in (call.m, call.n, call.batch)


def _unfit(memory: torch.Tensor, device: torch.device) -> str | None:
    """Return why a tensor cannot be a workspace, None if it can."""
    if memory.dtype != torch.uint8 or not memory.is_contiguous():
        return f"the workspace must be contiguous uint8, it is {memory.dtype} {memory.stride()}"
    if memory.device != device:
        return f"the workspace is on {memory.device}, the output on {device}"
    if memory.data_ptr() % WORKSPACE_ALIGNMENT:
        return f"the workspace must begin at a multiple of {WORKSPACE_ALIGNMENT} bytes"
    return None


def _launch(function: GemmFunction, call: GemmCall, device: torch.device) -> None:
    with torch.cuda.device(device):
        run(function, call, torch.cuda.current_stream().cuda_stream)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; kept, for every call asks."""
    return _multiprocessors(device)


def _multiprocessors(device: torch.device) -> int:
    cuda: Any = torch.cuda
    return int(cuda.get_device_properties(device).multi_processor_count)


def _define() -> None:
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "cutlass_mm.out": cutlass_mm,
        "cutlass_addmm.out": cutlass_addmm,
        "cutlass_scaled_mm.out": cutlass_scaled_mm,
        "cutlass_scaled_addmm.out": cutlass_scaled_addmm,
        "cutlass_grouped_mm.out": cutlass_grouped_mm,
    }
    for name, function in functions.items():
        _OPERATORS.define(name + _SCHEMAS[name])
        _OPERATORS.impl(name, function, "CUDA")


_define()
