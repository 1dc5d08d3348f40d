"""Why CUTLASS cannot run an attention, or None: what its kernels and TMA require of the operands."""

from __future__ import annotations

import math

from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import NARROW, Attention, attention_of
from inductor_plugin.problem.strides import is_dense
from inductor_plugin.templates.cutlass_attention.config import ELEMENTS

DIMS = (32, 64, 128, 256)
"""Largest heads of the forward kernels; smaller ones are padded."""

NARROW_DIMS = (64, 128, 256)
"""The same for operands of 8 bits."""

BACKWARD_DIMS = (32, 64, 128)
"""The same of the backward, whose sums of dK and dV fill the registers at 128."""

MIN_QUERIES = 17
"""Fewer are decoding: a tile has 128 queries, and there would be one block for each head."""

_ALIGN_BYTES = 16
"""Unit of TMA's copies."""

_MAX_GRID = 65535
_MAX_STRIDE = 2**31 - 1
"""The example's strides are of 32 bits."""

_WIDE = tuple(dtype for dtype in ELEMENTS if dtype != NARROW)


def why_not(problem: Problem, attention: Attention) -> str | None:
    """Return why no CUTLASS kernel can run an attention, or None if one can."""
    return (
        _unsupported(attention)
        or _ill_sized(attention)
        or _ill_typed(problem, attention)
        or _ill_placed(problem, attention)
    )


def facts_of(problem: Problem) -> Attention | str:
    """Return the attention of a problem, or why CUTLASS cannot run it on the problem's GPU."""
    target = problem.target
    if target is None:
        return "CUTLASS attention is for NVIDIA GPUs"
    if target.arch != "sm_90a":
        return f"CUTLASS attention is written for sm_90a; {target.name} is {target.arch}"
    try:
        attention = attention_of(problem)
    except ValueError as error:
        return str(error)
    return why_not(problem, attention) or attention


def kernel_dim(attention: Attention) -> int:
    """Return the head a kernel is compiled for: the smallest that holds those of the attention."""
    return next(dim for dim in _dims(attention) if dim >= attention.head_dim)


def _dims(attention: Attention) -> tuple[int, ...]:
    if attention.backward:
        return BACKWARD_DIMS
    return NARROW_DIMS if attention.dtype == NARROW else DIMS


def _step(dtype: str) -> int:
    """Return the elements of TMA's unit."""
    return _ALIGN_BYTES // BYTES[dtype]


def _unsupported(attention: Attention) -> str | None:
    """Return which feature of the attention the example does not support."""
    dtype, scale = attention.dtype, attention.scale
    return _first(
        (attention.varlen, "the Hopper example has no sequences of different lengths (cu_seqlens)"),
        (attention.biased, "the Hopper example adds no bias"),
        (attention.softcap != 0, "the Hopper example has no soft-cap"),
        (
            dtype not in ELEMENTS,
            f"the Hopper example is for {', '.join(_WIDE)} and {NARROW}, not for {dtype}",
        ),
        (attention.backward and dtype == NARROW, f"{NARROW} has no gradient"),
        (not 0 < scale < math.inf, f"the scale must be positive and finite, it is {scale}"),
    )


def _ill_sized(attention: Attention) -> str | None:
    dims, step = _dims(attention), _step(attention.dtype)
    dim, heads, shared = attention.head_dim, attention.heads, attention.kv_heads
    what = "backward" if attention.backward else "forward"
    return _first(
        (
            attention.value_dim != dim,
            f"heads of q ({dim}) and v ({attention.value_dim}) must be of one size",
        ),
        (
            not 0 < dim <= dims[-1] or dim % step != 0,
            f"{what} heads are multiples of {step} up to {dims[-1]}, not {dim}",
        ),
        (
            shared < 1 or heads % shared != 0,
            f"{heads} heads of q cannot share {shared} of k and v",
        ),
        (attention.keys < 1, "there are no keys"),
        (
            attention.queries < MIN_QUERIES,
            f"{attention.queries} queries of a tile of 128: decoding is for split kernels",
        ),
        (
            max(attention.batch, heads) > _MAX_GRID,
            f"the grid counts batches and heads up to {_MAX_GRID}",
        ),
    )


def _first(*checks: tuple[bool, str]) -> str | None:
    """Return the reason of the first check that fails, None if none does."""
    return next((reason for failed, reason in checks if failed), None)


def _ill_typed(problem: Problem, attention: Attention) -> str | None:
    operands = dict(zip(attention.operands, problem.inputs, strict=True))
    for name, operand in operands.items():
        if name not in ("lse", "delta") and operand.dtype != attention.dtype:
            return f"{name} is {operand.dtype}, q is {attention.dtype}"
    output, written = problem.output.dtype, attention.written
    if output != written:
        return f"the result is {output}; q is {attention.dtype}, it writes {written}"
    for name in ("lse", "delta"):
        if name in operands and operands[name].dtype != "float32":
            return f"{name} is {operands[name].dtype}, it must be float32"
    return None


def _ill_placed(problem: Problem, attention: Attention) -> str | None:
    """Return which operand has strides or an offset TMA cannot use. The backward does not read ``out``."""
    operands = dict(zip(attention.operands, problem.inputs, strict=True))
    read = {name: op for name, op in operands.items() if name not in ("lse", "delta", "out")}
    for name, operand in {**read, "the result": problem.output}.items():
        if reason := _unmovable(operand, _step(attention.dtype)):
            return f"{name}: {reason}"
    for name in ("lse", "delta"):
        if name in operands and (reason := _not_rows(operands[name])):
            return f"{name}: {reason}"
    return None


def _unmovable(operand: Operand, step: int) -> str | None:
    """Return why TMA cannot move rows of an operand ``step`` elements at a time, None if it can."""
    if operand.layout != "strided":
        return f"it is {operand.layout}"
    if operand.stride[-1] != 1:
        return f"the last dimension must be contiguous, strides {operand.stride}"
    if operand.offset_divisor % step:
        return f"it must begin at a multiple of {step} elements"
    for dim in range(len(operand.size) - 1):
        # A size of 1 while compiling stays 1 if no size is symbolic.
        if operand.size[dim] == 1 and not operand.divisors:
            continue
        stride = operand.stride[dim]
        if operand.stride_divisor(dim) % step:
            return f"its strides {operand.stride} must be multiples of {step}"
        if not operand.size[-1] <= stride <= _MAX_STRIDE:
            return f"its strides {operand.stride} must not overlap, nor pass {_MAX_STRIDE}"
    return None


def _not_rows(operand: Operand) -> str | None:
    """Return why an operand is not a dense [batch, heads, queries] with an aligned start."""
    if not is_dense(operand.size, operand.stride):
        return f"it must be dense, strides {operand.stride}"
    return None if operand.offset_divisor % 4 == 0 else "it must begin at a multiple of 4 elements"
