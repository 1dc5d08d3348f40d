"""The operator that runs a CUTLASS kernel with an epilogue: ``torch.ops.inductor_plugin.cutlass_mm_epilogue``.

    cutlass_mm_epilogue.out(a, b, operands, kernel, order, swizzle, raster, split_k, epilogue, aux, ...)

Kernels are named and found as in `launch`. Where the library is missing or refuses the operands, the
library product is computed and then the epilogue with torch (`epilogue_eval`), after one warning.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from inductor_plugin.errors import OperandError
from inductor_plugin.ops.epilogue_eval import evaluate
from inductor_plugin.ops.gemm import run_product
from inductor_plugin.ops.gemm_rules import why_no_product
from inductor_plugin.ops.launch import view_of
from inductor_plugin.ops.operators import define_kernels
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.epilogue_text import decode

_SCHEMAS = {
    "cutlass_mm_epilogue.out": "(Tensor a, Tensor b, Tensor[] operands, str kernel, str order, "
    "int swizzle, int raster, int split_k, str epilogue, Tensor(c!)[] aux, "
    "*, Tensor(b!)? workspace=None, Tensor(a!) out)"
}
_ATEN: Any = torch


def cutlass_mm_epilogue(
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    kernel: str,
    order: str,
    swizzle: int,
    raster: int,
    split_k: int,
    epilogue: str,
    aux: Sequence[torch.Tensor],
    workspace: torch.Tensor | None = None,
    *,
    out: torch.Tensor,
) -> None:
    """Write the results of an epilogue of A @ B to ``out`` and ``aux``.

    Args:
        a: [m, k] or [batch, m, k].
        b: [k, n] or [batch, k, n].
        operands: The epilogue's operands, in the order of its reads: views with as many dimensions as
            D, each as long as D's or 1, whose strides are those along D (0 or anything where it is 1).
        kernel: ``SYMBOL@DIGEST``; the launch arguments after it are those of `gemm_call.fused`.
        epilogue: The epilogue as `epilogue_text.encode` writes it.
        aux: Outputs of the epilogue except the last, in order; then D itself, if other nodes read
            it. All as large as D or views of that, rows contiguous.
        workspace: Scratch memory of the kernel, uint8; None to allocate it.
        out: The last of its writes, [m, n] or [batch, m, n] or a view of that, rows contiguous.
    """
    view_a, view_b = view_of(a), view_of(b)
    for tensor in (*aux, out):
        if misfit := why_no_product(view_a, view_b, tensor.numel()):
            raise OperandError(f"cutlass_mm_epilogue: {misfit.reason}")
    dtypes, wanted = tuple([tensor.dtype for tensor in (*operands, *aux, out)]), _dtypes(epilogue)
    if dtypes != wanted:
        raise OperandError(f"cutlass_mm_epilogue: tensors of {dtypes}, its epilogue has {wanted}")
    # Inductor's outputs may be views of D, (batch, m, n) of (batch * m, n).
    size = (*a.shape[:-1], b.shape[-1])
    written, others = out.view(size), [tensor.view(size) for tensor in aux]
    tensors, launch = (a, b, *operands, *others), (order, swizzle, raster, split_k, len(others))
    library = functools.partial(_library, a, b, operands, epilogue, others, written)
    run_product("cutlass_mm_epilogue", kernel, tensors, launch, library, workspace, written)


def _library(
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    text: str,
    aux: Sequence[torch.Tensor],
    out: torch.Tensor,
) -> torch.Tensor:
    """Write the same results with the library product."""
    epilogue = _decoded(text)
    product = _product(a, b, getattr(torch, epilogue.dtype))
    written = evaluate(epilogue, product, operands)
    others = (*written[:-1], product) if epilogue.readers else written[:-1]
    for place, value in zip(aux, others, strict=True):
        place.copy_(value)
    return out.copy_(written[-1])


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if a.dtype == torch.int8:
        return _ATEN._int_mm(a, b)
    if dtype == a.dtype:
        return torch.matmul(a, b)
    return torch.matmul(a.to(dtype), b.to(dtype))  # unrounded sums of 16-bit floats


@functools.lru_cache(maxsize=1024)
def _decoded(text: str) -> Epilogue:
    return decode(text)


@functools.lru_cache(maxsize=1024)
def _dtypes(text: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes of an epilogue's operands, of its outputs but the last, of D if it is written, of the last."""
    epilogue = _decoded(text)
    *others, last = [access.dtype for access in epilogue.writes]
    product = [epilogue.dtype] if epilogue.readers else []
    names = [*(access.dtype for access in epilogue.reads), *others, *product, last]
    return tuple(getattr(torch, name) for name in names)


def _fake(
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    *_others: Any,
    out: torch.Tensor,
    **_more: Any,
) -> None:
    """Check the sizes of a fake call."""
    size = (*a.shape[:-1], b.shape[-1])
    if out.numel() != math.prod(size):
        raise RuntimeError(f"the output must be {size}, it is {tuple(out.shape)}")
    for operand in operands:
        _ATEN.broadcast_shapes(operand.shape, size)


_OPERATORS: Any = define_kernels(_SCHEMAS, {"cutlass_mm_epilogue.out": cutlass_mm_epilogue}, _fake)
