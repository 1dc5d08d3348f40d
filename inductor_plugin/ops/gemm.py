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

from inductor_plugin.errors import CallRefusedError, OperandError
from inductor_plugin.ops import launch
from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_abi import ABI, GemmCall
from inductor_plugin.ops.gemm_call import CALLS
from inductor_plugin.ops.gemm_rules import Misfit, why_not
from inductor_plugin.ops.kernel_types import types_of
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
    if a.dtype == torch.int8:
        library = functools.partial(_ATEN._int_mm, a, b, out=out)
    else:
        library = functools.partial(_write_library, "bmm" if a.dim() > 2 else "mm", a, b, out=out)
    run_product("cutlass_mm", kernel, (a, b), arguments, library, workspace, out)


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
    alpha, beta = arguments[-2:]
    name = "baddbmm" if a.dim() > 2 else "addmm"
    library = functools.partial(_write_library, name, c, a, b, alpha=alpha, beta=beta, out=out)
    run_product("cutlass_addmm", kernel, (c, a, b), arguments, library, workspace, out)


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
    operands = (a, b, scale_a, scale_b)
    library = functools.partial(_ATEN._scaled_mm, *operands, out_dtype=out.dtype, out=out)
    run_product("cutlass_scaled_mm", kernel, operands, arguments, library, workspace, out)


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
    library = functools.partial(
        _ATEN._scaled_mm, a, b, scale_a, scale_b, bias=c, out_dtype=out.dtype, out=out
    )
    operands = (a, b, scale_a, scale_b, c)
    run_product("cutlass_scaled_addmm", kernel, operands, arguments, library, workspace, out)


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

    def library() -> torch.Tensor:
        return out.copy_(_ATEN._grouped_mm(a, b, offsets))

    operands = (a, b, offsets)
    run_product("cutlass_grouped_mm", kernel, operands, arguments, library, workspace, out)


def _write_library(name: str, *operands: torch.Tensor, out: torch.Tensor, **factors: float) -> None:
    """Write torch's product of this name to ``out``, which may be float32 for 16-bit operands."""
    function = getattr(_ATEN, name)
    if out.dtype == operands[-1].dtype:
        function(*operands, out=out, **factors)
    else:  # with ``out`` alone torch refuses another dtype
        out.copy_(function(*operands, out_dtype=out.dtype, **factors))


def run_product(
    name: str,
    kernel: str,
    operands: Sequence[torch.Tensor],
    arguments: Sequence[Any],
    library: Callable[[], object],
    workspace: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Launch a kernel or compute the library product; see `launch.run_or_fallback`.

    Args:
        name: The operator, ``cutlass_mm`` ...
        kernel: ``SYMBOL@DIGEST``.
        operands: As its function of `gemm_call` takes them.
        arguments: Those after the operands.
        library: Writes the library product of the operands to ``out``.
        workspace: Scratch memory of the kernel, uint8; None to allocate it.
        out: The output.

    Raises:
        OperandError: The operands do not fit each other.
    """
    views, written = [launch.view_of(operand) for operand in operands], launch.view_of(out)
    misfit = why_not(name, views, arguments, written, types_of(kernel))
    if misfit is not None and misfit.wrong:
        raise OperandError(f"{name}: {misfit.reason}")
    if out.numel():
        make = functools.partial(_call, name, misfit, views, arguments, written)
        launch.run_or_fallback(PRODUCTS, kernel, make, library, workspace, out)


def _call(
    name: str,
    misfit: Misfit | None,
    operands: Sequence[TensorView],
    arguments: Sequence[Any],
    out: TensorView,
) -> GemmCall:
    if misfit is not None:
        raise CallRefusedError(f"{name}: {misfit.reason}")
    processors = launch.multiprocessors(out.device)
    return CALLS[name](*operands, *arguments, out=out, sm_count=processors)


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
