"""The torch operators that run compiled CUTLASS kernels: ``torch.ops.inductor_plugin.cutlass_*``.

    cutlass_mm.out(a, b, ...)                      mm, bmm, _int_mm
    cutlass_addmm.out(c, a, b, ...)                addmm, baddbmm
    cutlass_scaled_mm.out(a, b, sa, sb, ...)       _scaled_mm
    cutlass_scaled_addmm.out(a, b, sa, sb, c, ...) _scaled_mm with a bias

They are written into generated code. A kernel is named ``SYMBOL@DIGEST``; its library is looked for
in the cache directories of this process's compiles, then in the default one. Where it is gone (a
trimmed cache, a compiled graph from another machine), the library product is computed instead, and
one warning says so. ``SYMBOL@/a/path`` names a library itself, and then nothing stands in for it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.cache import open_store
from inductor_plugin.config import default_cache_dir
from inductor_plugin.errors import CacheError, KernelError
from inductor_plugin.gemm_abi import GemmCall, GemmFunction, load, new_call, run, workspace_bytes

LIBRARY_FILE = "kernel.so"
_LAUNCH = "str kernel, str order, int swizzle, int raster, int split_k"
_SCHEMAS = {
    "cutlass_mm.out": f"(Tensor a, Tensor b, {_LAUNCH}, *, Tensor(a!) out) -> Tensor(a!)",
    "cutlass_addmm.out": (
        f"(Tensor c, Tensor a, Tensor b, {_LAUNCH}, str bias, float alpha, float beta, *, "
        "Tensor(a!) out) -> Tensor(a!)"
    ),
    "cutlass_scaled_mm.out": (
        f"(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, {_LAUNCH}, *, "
        "Tensor(a!) out) -> Tensor(a!)"
    ),
    "cutlass_scaled_addmm.out": (
        f"(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor c, {_LAUNCH}, *, "
        "Tensor(a!) out) -> Tensor(a!)"
    ),
}

_ATEN: Any = torch
"""Some of its functions are public in all but name."""
_OPERATORS: Any = torch.library.Library("inductor_plugin", "FRAGMENT")
_folders: list[Path] = []


def look_in(folder: Path) -> None:
    """Look for libraries in this cache directory too, the last one named first."""
    if folder in _folders:
        _folders.remove(folder)
    _folders.insert(0, folder)


def cutlass_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    kernel: str,
    order: str,
    swizzle: int,
    raster: int,
    split_k: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write A @ B to ``out``.

    Args:
        a: [m, k] or [batch, m, k].
        b: [k, n] or [batch, k, n].
        kernel: ``SYMBOL@DIGEST``.
        order: Whether K (``t``) or the other dimension (``n``) of A is contiguous, and of B whether
            N (``t``) or K (``n``) is, in CUTLASS's letters.
        swizzle: Largest number of tiles that neighbouring blocks share a side of.
        raster: Direction in which blocks walk over D (`gemm_abi.RASTERS`).
        split_k: Parts K is cut into.
        out: [m, n] or [batch, m, n], rows contiguous.
    """
    function = found(kernel)
    if function is None or not a.shape[-1]:
        return _product(a, b, out)
    call = _call(a, b, out, order, swizzle=swizzle, raster=raster, split_k=split_k)
    return _started(function, call, out)


def cutlass_addmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    kernel: str,
    order: str,
    swizzle: int,
    raster: int,
    split_k: int,
    bias: str,
    alpha: float,
    beta: float,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write alpha * A @ B + beta * C to ``out``; other arguments as in `cutlass_mm`.

    ``c`` is [n], [m, n] or [batch, m, n], and ``bias`` says what is read of it: ``row`` C[n] for
    every row, ``column`` C[m] for every column, ``full`` all.
    """
    function = found(kernel)
    if function is None or not a.shape[-1]:
        add = torch.baddbmm if a.dim() > 2 else torch.addmm
        return add(c, a, b, alpha=alpha, beta=beta, out=out)
    call = _call(a, b, out, order, swizzle=swizzle, raster=raster, split_k=split_k)
    call.alpha, call.beta = alpha, beta
    call.c = c.data_ptr()
    call.batch_c = c.stride(0) if c.dim() > 2 else 0
    if bias == "full":
        call.lead_c = c.stride(-2)
    return _started(function, call, out)


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *launch: Any,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write scale_a * scale_b * (A @ B) to ``out``; ``launch`` as in `cutlass_mm`.

    ``scale_a`` is float32, one or [m, 1], ``scale_b`` one or [1, n].
    """
    return _scaled(a, b, scale_a, scale_b, None, *launch, out=out)


def cutlass_scaled_addmm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    c: torch.Tensor,
    *launch: Any,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write scale_a * scale_b * (A @ B) + C[n] to ``out``; the rest as in `cutlass_scaled_mm`."""
    return _scaled(a, b, scale_a, scale_b, c, *launch, out=out)


def _scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    c: torch.Tensor | None,
    kernel: str,
    order: str,
    swizzle: int,
    raster: int,
    split_k: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    function = found(kernel)
    if function is None or not a.shape[-1]:
        return _ATEN._scaled_mm(a, b, scale_a, scale_b, bias=c, out_dtype=out.dtype, out=out)
    call = _call(a, b, out, order, swizzle=swizzle, raster=raster, split_k=split_k)
    call.scale_a, call.scale_b = scale_a.data_ptr(), scale_b.data_ptr()
    if c is not None:
        call.c, call.beta = c.data_ptr(), 1.0
    return _started(function, call, out)


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
    symbol, _, place = kernel.partition("@")
    if place.startswith("/"):
        return _loaded(symbol, place)
    for folder in [*_folders, default_cache_dir()]:
        path = _library_in(folder, place)
        if path is not None:
            return _loaded(symbol, str(path))
    _warn(symbol)
    raise KernelError(f"the library of {kernel} is in no cache directory")


def _library_in(folder: Path, digest: str) -> Path | None:
    if not folder.is_dir():  # opening would make it
        return None
    try:
        entry = open_store(folder).kernel(digest)
    except CacheError:
        return None
    return entry.path(LIBRARY_FILE) if entry is not None else None


@functools.cache
def _warn(symbol: str) -> None:
    warnings.warn(
        f"the library of {symbol} is not in the cache any more, the library product is computed "
        "instead; compile the model again to choose anew",
        RuntimeWarning,
        stacklevel=4,
    )


def _product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if a.dtype == torch.int8:
        return _ATEN._int_mm(a, b, out=out)
    return torch.matmul(a, b, out=out)


def _call(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, order: str, **launch: int
) -> GemmCall:
    """Return a call with all that follows from the operands, by their real strides."""
    batched = out.dim() > 2
    return new_call(
        a=a.data_ptr(),
        b=b.data_ptr(),
        d=out.data_ptr(),
        m=out.shape[-2],
        n=out.shape[-1],
        k=a.shape[-1],
        batch=out.shape[0] if batched else 1,
        lead_a=a.stride(-2 if order[0] == "t" else -1),
        lead_b=b.stride(-2 if order[1] == "t" else -1),
        lead_d=out.stride(-2),
        batch_a=a.stride(0) if batched else 0,
        batch_b=b.stride(0) if batched else 0,
        batch_d=out.stride(0) if batched else 0,
        sm_count=multiprocessors(out.device),
        **launch,
    )


def _started(function: GemmFunction, call: GemmCall, out: torch.Tensor) -> torch.Tensor:
    """Start a kernel on the current stream of the output's device."""
    if 0 in (call.m, call.n, call.batch):
        return out
    needed = workspace_bytes(function, call)
    if needed:
        # From the caching allocator: inside a CUDA graph it comes from the graph's own pool.
        workspace = torch.empty(needed, dtype=torch.uint8, device=out.device)
        call.workspace, call.workspace_bytes = workspace.data_ptr(), needed
    _launch(function, call, out.device)
    return out


def _launch(function: GemmFunction, call: GemmCall, device: torch.device) -> None:
    with torch.cuda.device(device):
        run(function, call, torch.cuda.current_stream().cuda_stream)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    cuda: Any = torch.cuda
    return int(cuda.get_device_properties(device).multi_processor_count)


def _define() -> None:
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "cutlass_mm.out": cutlass_mm,
        "cutlass_addmm.out": cutlass_addmm,
        "cutlass_scaled_mm.out": cutlass_scaled_mm,
        "cutlass_scaled_addmm.out": cutlass_scaled_addmm,
    }
    for name, function in functions.items():
        _OPERATORS.define(name + _SCHEMAS[name])
        _OPERATORS.impl(name, function, "CUDA")


_define()
