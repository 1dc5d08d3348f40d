"""The torch operators that run compiled CUTLASS kernels: ``torch.ops.inductor_plugin.cutlass_*``.

    cutlass_mm.out(a, b, ...)                      mm, bmm, _int_mm
    cutlass_addmm.out(c, a, b, ...)                addmm, baddbmm
    cutlass_scaled_mm.out(a, b, sa, sb, ...)       _scaled_mm
    cutlass_scaled_addmm.out(a, b, sa, sb, c, ...) _scaled_mm with a bias
    cutlass_grouped_mm.out(a, b, offsets, ...)     _grouped_mm

Generated code calls them. See `launch` for how a kernel is named and found, and for when the library
product is computed instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_plugin.ops import launch
from inductor_plugin.ops.gemm_abi import ABI, GemmCall
from inductor_plugin.ops.gemm_call import (
    CALLS,
    added,
    grouped,
    product,
    scaled,
    scaled_added,
)
from inductor_plugin.ops.operators import define_kernels

_LAUNCH = "str kernel, str order, int swizzle, int raster, int split_k"
_RESULT = "*, Tensor(b!)? workspace=None, Tensor(a!) out)"
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

PRODUCTS = launch.KernelFamily(
    ABI,
    CALLS,
    # Not the cached number: while a graph is lowered the device may be replaced.
    device_arguments=lambda device: {"sm_count": launch.multiprocessors_now(device)},
    has_work=lambda call: 0 not in (call.m, call.n, call.k, call.batch),
    workspace_alignment=64,  # where CUTLASS puts tensor maps, which TMA reads
    fallback="the library product is computed instead",
)
"""Kernels of matrix products."""

launch.FAMILIES.update(dict.fromkeys(CALLS, PRODUCTS))

workspace_needed = functools.partial(launch.workspace_needed, PRODUCTS)
"""The workspace of a kernel, which generated code plans with its other memory."""


def cutlass_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    kernel: str,
    *arguments: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Write A @ B to ``out``.

    Args:
        a: [m, k] or [batch, m, k].
        b: [k, n] or [batch, k, n].
        kernel: ``SYMBOL@DIGEST``.
        arguments: Launch arguments; see `gemm_call.product`.
        workspace: Scratch memory of the kernel, uint8; None to allocate it.
        out: [m, n] or [batch, m, n], rows contiguous.
    """
    make = functools.partial(call_of, product, (a, b), arguments, out)
    multiply = _ATEN._int_mm if a.dtype == torch.int8 else torch.matmul
    library = functools.partial(multiply, a, b, out=out)
    run_product(kernel, make, library, workspace, out)


def cutlass_addmm(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    kernel: str,
    *arguments: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Write alpha * A @ B + beta * C to ``out``; as `cutlass_mm`, with `gemm_call.added`."""
    make = functools.partial(call_of, added, (c, a, b), arguments, out)
    add: Any = torch.baddbmm if a.dim() > 2 else torch.addmm
    alpha, beta = arguments[-2:]
    library = functools.partial(add, c, a, b, alpha=alpha, beta=beta, out=out)
    run_product(kernel, make, library, workspace, out)


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    kernel: str,
    *arguments: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Write scale_a * scale_b * (A @ B) to ``out``; as `cutlass_mm`, with `gemm_call.scaled`."""
    make = functools.partial(call_of, scaled, (a, b, scale_a, scale_b), arguments, out)
    library = functools.partial(
        _ATEN._scaled_mm, a, b, scale_a, scale_b, out_dtype=out.dtype, out=out
    )
    run_product(kernel, make, library, workspace, out)


def cutlass_scaled_addmm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    c: torch.Tensor,
    kernel: str,
    *arguments: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Write scale_a * scale_b * (A @ B) + C[n] to ``out``; the rest as in `cutlass_scaled_mm`."""
    make = functools.partial(call_of, scaled_added, (a, b, scale_a, scale_b, c), arguments, out)
    library = functools.partial(
        _ATEN._scaled_mm, a, b, scale_a, scale_b, bias=c, out_dtype=out.dtype, out=out
    )
    run_product(kernel, make, library, workspace, out)


def cutlass_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    kernel: str,
    *arguments: Any,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Write A[rows of a group] @ B[group] for all groups to ``out``; as `cutlass_mm`.

    Rows after the last group are left as they are, as ``torch._grouped_mm`` leaves them.

    Args:
        a: [m, k].
        b: [groups, k, n].
        offsets: int32 [groups] on the device, where the rows of each group end; may repeat.
        kernel: ``SYMBOL@DIGEST``.
        arguments: Launch arguments; see `gemm_call.grouped`.
        out: [m, n].
    """
    if not a.shape[-1]:
        out.zero_()
        return
    make = functools.partial(call_of, grouped, (a, b, offsets), arguments, out)

    def library() -> torch.Tensor:
        return out.copy_(_ATEN._grouped_mm(a, b, offsets))

    run_product(kernel, make, library, workspace, out)


def call_of(
    make: Callable[..., GemmCall],
    operands: Sequence[torch.Tensor],
    arguments: Sequence[Any],
    out: torch.Tensor,
) -> GemmCall:
    """Return the call that a function of `gemm_call` builds from tensors."""
    processors = launch.multiprocessors(out.device)
    views = map(launch.view_of, operands)
    return make(*views, *arguments, out=launch.view_of(out), sm_count=processors)


def run_product(
    kernel: str,
    make_call: Callable[[], GemmCall],
    library: Callable[[], object],
    workspace: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Launch a kernel or compute the library product; see `launch.run_or_fallback`."""
    if out.numel():
        launch.run_or_fallback(PRODUCTS, kernel, make_call, library, workspace, out)


_OPERATORS: Any = define_kernels(
    _SCHEMAS,
    {
        "cutlass_mm.out": cutlass_mm,
        "cutlass_addmm.out": cutlass_addmm,
        "cutlass_scaled_mm.out": cutlass_scaled_mm,
        "cutlass_scaled_addmm.out": cutlass_scaled_addmm,
        "cutlass_grouped_mm.out": cutlass_grouped_mm,
    },
)
