"""The shape list as problems of the plugin: every product with types, scales and orders of memory."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gemm.shapes import Shape
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import Target

ORDERS = ("tn", "tt", "nn", "nt")
"""Whether K (``t``) or M (``n``) of A is contiguous, and N (``t``) or K (``n``) of B; a linear layer
is ``tn``."""


BLOCK = 128
"""Length in K, and width of B, of the block of a block-wise scale."""


@dataclass(frozen=True)
class Kind:
    """Types of a product.

    Attributes:
        name: Short name in tables.
        a: Type of A.
        b: Type of B.
        out: Type of the result.
        scale: ``none``, ``tensor``, ``rowwise``, or ``blockwise``: one for 128 elements of a row of A,
            and one for 128 by 128 of B.
    """

    name: str
    a: str
    b: str
    out: str
    scale: str = "none"

    @property
    def op(self) -> str:
        """Inductor's name of the operator without a bias."""
        if self.scale != "none":
            return "scaled_mm"
        return "int_mm" if self.a == "int8" else "mm"


_E4M3, _E5M2 = "float8_e4m3fn", "float8_e5m2"
KINDS: tuple[Kind, ...] = (
    Kind("bf16", "bfloat16", "bfloat16", "bfloat16"),
    Kind("fp16", "float16", "float16", "float16"),
    Kind("tf32", "float32", "float32", "float32"),
    Kind("e4m3_row", _E4M3, _E4M3, "bfloat16", "rowwise"),
    Kind("e4m3_tensor", _E4M3, _E4M3, "bfloat16", "tensor"),
    Kind("e4m3_block", _E4M3, _E4M3, "bfloat16", "blockwise"),
    # torch._scaled_mm multiplies e5m2 by e4m3 alone, as cuBLAS does.
    Kind("e5m2_row", _E5M2, _E4M3, "bfloat16", "rowwise"),
    Kind("e5m2_tensor", _E5M2, _E4M3, "bfloat16", "tensor"),
    Kind("int8", "int8", "int8", "int32"),
)


def kind(name: str) -> Kind:
    """Return a kind by its name."""
    return next(types for types in KINDS if types.name == name)


def problem(shape: Shape, types: Kind, order: str, target: Target | None) -> Problem | str:
    """Return a product as the plugin sees it, or why torch has no such call.

    Args:
        shape: The sizes.
        types: The types.
        order: One of `ORDERS`.
        target: The GPU.
    """
    if shape.layer.groups:
        return _grouped(shape, types, order, target)
    reason = missing_call(shape, types)
    if reason is not None:
        return reason
    a = _matrix(shape.m, shape.k, types.a, by_rows=order[0] == "t")
    b = _matrix(shape.k, shape.n, types.b, by_rows=order[1] == "t")
    out = _matrix(shape.m, shape.n, types.out, by_rows=True)
    bias = Operand((shape.n,), (1,), types.out, "cuda")
    op, inputs, arguments = types.op, (a, b), ()
    if types.scale != "none":
        inputs = (a, b, *_scales(shape, types), *((bias,) if shape.layer.bias else ()))
        arguments = (("use_fast_accum", str(types.scale != "blockwise")),)
    elif shape.layer.bias:
        op, inputs = "addmm", (bias, a, b)
    return Problem(op, inputs, out, arguments, target=target, tf32=types.name == "tf32")


def _scales(shape: Shape, types: Kind) -> tuple[Operand, Operand]:
    """Return the scales of A and B; block-wise scales are column-major, as torch._scaled_mm requires."""
    blocks = shape.k // BLOCK
    rows, columns, strides = {
        "tensor": ((1, 1), (1, 1), ((1, 1), (1, 1))),
        "rowwise": ((shape.m, 1), (1, shape.n), ((1, 1), (shape.n, 1))),
        "blockwise": (
            (shape.m, blocks),
            (blocks, shape.n // BLOCK),
            ((1, shape.m), (1, blocks)),
        ),
    }[types.scale]
    return (
        Operand(rows, strides[0], "float32", "cuda"),
        Operand(columns, strides[1], "float32", "cuda"),
    )


def missing_call(shape: Shape, types: Kind) -> str | None:
    """Return why torch has no call for these sizes and types, or None if it has one."""
    if types.a == "int8" and shape.layer.bias:
        return "torch has no int8 product with a bias; the layer's bias follows in float"
    if types.a == "int8" and shape.m <= 16:
        return "torch._int_mm wants more than 16 rows (aten/src/ATen/native/cuda/Blas.cpp)"
    if shape.layer.groups and types.name not in ("bf16", "fp16"):
        return "torch._grouped_mm takes 16-bit floats"
    return None


def _matrix(rows: int, columns: int, dtype: str, *, by_rows: bool) -> Operand:
    stride = (columns, 1) if by_rows else (1, rows)
    return Operand((rows, columns), stride, dtype, "cuda")


def _grouped(shape: Shape, types: Kind, order: str, target: Target | None) -> Problem | str:
    reason = missing_call(shape, types)
    if reason is not None:
        return reason
    groups, m, n, k = shape.layer.groups, shape.m, shape.n, shape.k
    a = _matrix(m, k, types.a, by_rows=order[0] == "t")
    stride = (n * k, n, 1) if order[1] == "t" else (n * k, 1, k)
    b = Operand((groups, k, n), stride, types.b, "cuda")
    offsets = Operand((groups,), (1,), "int32", "cuda")
    out = _matrix(m, n, types.out, by_rows=True)
    return Problem("grouped_mm", (a, b, offsets), out, target=target)
