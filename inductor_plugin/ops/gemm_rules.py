"""Whether the operands of a product fit each other and its kernel, from sizes, strides, dtypes and devices alone.

A kernel gets pointers and sizes: what does not fit it reads or writes out of bounds. ``native/gemm_site.h`` has the same
rules, and hands what they refuse to the operator, which words the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_abi import SLOTS
from inductor_plugin.ops.kernel_types import KernelTypes
from inductor_plugin.problem.strides import is_dense


class Misfit(NamedTuple):
    """Why a kernel must not be launched.

    Attributes:
        reason: What does not fit, its value, and what is wanted.
        wrong: Whether the call is an error, as in torch's own operator, or one with dtypes that its kernel was not compiled
            for; else the kernel cannot read how the tensors lie in memory, and the library computes the product.
    """

    reason: str
    wrong: bool = True


_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_OUTPUTS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float16: (torch.float16, torch.float32),
    torch.bfloat16: (torch.bfloat16, torch.float32),
    torch.float32: (torch.float32,),
    torch.int8: (torch.int32,),
    **dict.fromkeys(_FP8, (torch.bfloat16, torch.float16, torch.float32)),
}
"""Dtypes of the output by that of A."""


def why_not(
    name: str,
    operands: Sequence[TensorView],
    arguments: Sequence[Any],
    out: TensorView,
    types: KernelTypes,
) -> Misfit | None:
    """Return why a call of an operator must not reach its kernel, None if it may.

    Args:
        name: The operator, ``cutlass_mm`` ...
        operands: In its order; of an epilogue A, B, what is read, what is written besides ``out``.
        arguments: Those after the kernel's name.
        out: The output.
        types: Those of the kernel.
    """
    return _RULES[name](operands, arguments, out, types) or other_device(operands, out)


def other_device(operands: Sequence[TensorView], out: TensorView) -> Misfit | None:
    """Return which operand is not on the output's device."""
    for place, view in enumerate(operands):
        if view.device != out.device:
            return Misfit(f"operand {place} is on {view.device}, the output on {out.device}")
    return None


def why_no_product(a: TensorView, b: TensorView, out_numel: int) -> Misfit | None:
    """Return why A [m, k] and B [k, n], or batches of them, have no product of so many elements."""
    size_a, size_b = a.size, b.size
    if len(size_a) != len(size_b) or len(size_a) not in (2, 3):
        return Misfit(f"A {_text(a)} and B {_text(b)} must be two matrices or two batches of them")
    if size_a[-1] != size_b[-2]:
        return Misfit(f"A {_text(a)} has {size_a[-1]} columns, B {_text(b)} has {size_b[-2]} rows")
    if len(size_a) > 2 and size_a[0] != size_b[0]:
        return Misfit(f"A {_text(a)} is a batch of {size_a[0]}, B {_text(b)} of {size_b[0]}")
    size = (*size_a[:-1], size_b[-1])
    if math.prod(size) != out_numel:
        return Misfit(f"an output of {out_numel} elements, it must be {size}")
    return None


def _product(
    operands: Sequence[TensorView], arguments: Sequence[Any], out: TensorView, types: KernelTypes
) -> Misfit | None:
    a, b = operands[:2]
    size = (*a.size[:-1], b.size[-1])
    if misfit := why_no_product(a, b, math.prod(out.size)):
        return misfit
    if out.size != size:
        return Misfit(f"the output is {_text(out)}, it must be {size}")
    return _dtypes(a, b, out, types) or _orders(a, b, arguments[0], out)


def _added(
    operands: Sequence[TensorView], arguments: Sequence[Any], out: TensorView, types: KernelTypes
) -> Misfit | None:
    c, a, b = operands
    bias = arguments[4]
    if misfit := _product((a, b), arguments, out, types):
        return misfit
    size, short = out.size, len(out.size) - len(c.size)
    if short < 0 or any(
        own not in (1, whole) for own, whole in zip(c.size, size[short:], strict=True)
    ):
        return Misfit(f"the bias is {_text(c)}, it must broadcast to the output {_text(out)}")
    if bias == "none":
        return None
    wanted = (types.c,) if types.c else (a.dtype, out.dtype)
    if c.dtype not in wanted:
        return Misfit(f"the bias is {c.dtype}, it must be {_any(wanted)}")
    return None if _is_bias(c, bias, size) else Misfit(_bias_text(c, bias, size), wrong=False)


def _is_bias(c: TensorView, bias: str, size: Sequence[int]) -> bool:
    """Return whether a C that broadcasts to the output is, in memory, what a kernel with this bias reads."""
    rows, columns = (True, True) if bias == "full" else (bias == "column", bias == "row")
    if not _is_along(c, 1, size, read=columns) or not _is_along(c, 2, size, read=rows):
        return False
    # The elements of what is read are adjacent: those of a column along M, all others along N.
    last = 2 if bias == "column" else 1
    return size[-last] == 1 or c.stride[-last] == 1


def _is_along(c: TensorView, from_last: int, size: Sequence[int], *, read: bool) -> bool:
    """Return whether C is as long as the output along a dimension that is read, and the same everywhere along another."""
    if len(c.size) < from_last:
        return not read
    if read:
        return c.size[-from_last] == size[-from_last]
    return c.size[-from_last] == 1 or c.stride[-from_last] == 0


def _bias_text(c: TensorView, bias: str, size: Sequence[int]) -> str:
    shapes = {"row": f"[{size[-1]}]", "column": f"[{size[-2]}, 1]", "full": str(list(size))}
    return (
        f"the bias is {_text(c)} with strides {tuple(c.stride)}, this kernel reads {shapes[bias]} ({bias}), "
        "adjacent elements"
    )


def _scaled(
    operands: Sequence[TensorView], arguments: Sequence[Any], out: TensorView, types: KernelTypes
) -> Misfit | None:
    if misfit := _product(operands[:2], arguments, out, types):
        return misfit
    scales, lengths = operands[2:4], tuple(math.prod(view.size) for view in operands[2:4])
    allowed = {"tensor": [(1, 1)], "rowwise": [tuple(out.size[-2:])]}
    wanted = allowed.get(types.scale or "", [(1, 1), tuple(out.size[-2:])])
    if lengths not in wanted:
        accepted = " or ".join(map(str, wanted))
        return Misfit(f"the scales have {lengths} elements, this kernel reads {accepted}")
    for view in scales:
        if view.dtype != torch.float32:
            return Misfit(f"a scale is {view.dtype}, it must be torch.float32")
        if not is_dense(view.size, view.stride):
            return Misfit(
                f"a scale has the strides {tuple(view.stride)}, it must be dense", wrong=False
            )
    return None


def _scaled_added(
    operands: Sequence[TensorView], arguments: Sequence[Any], out: TensorView, types: KernelTypes
) -> Misfit | None:
    c = operands[4]
    if misfit := _scaled(operands[:4], arguments, out, types):
        return misfit
    if tuple(c.size) != (out.size[-1],):
        return Misfit(f"the bias is {_text(c)}, it must be ({out.size[-1]},)")
    wanted = (types.c,) if types.c else (operands[0].dtype, out.dtype)
    if c.dtype not in wanted:
        return Misfit(f"the bias is {c.dtype}, it must be {_any(wanted)}")
    if not is_dense(c.size, c.stride):
        return Misfit(f"the bias has the stride {tuple(c.stride)}, it must be dense", wrong=False)
    return None


def _grouped(
    operands: Sequence[TensorView], arguments: Sequence[Any], out: TensorView, types: KernelTypes
) -> Misfit | None:
    a, b, offsets = operands
    if len(a.size) != 2 or len(b.size) != 3 or a.size[1] != b.size[1]:
        return Misfit(f"A {_text(a)} and B {_text(b)} must be [m, k] and [groups, k, n]")
    if tuple(out.size) != (a.size[0], b.size[2]):
        return Misfit(f"the output is {_text(out)}, it must be {(a.size[0], b.size[2])}")
    if tuple(offsets.size) != (b.size[0],) or offsets.dtype != torch.int32:
        return Misfit(
            f"the offsets are {offsets.dtype} {_text(offsets)}, they must be torch.int32 ({b.size[0]},)"
        )
    if not is_dense(offsets.size, offsets.stride):
        return Misfit(f"the offsets have the stride {tuple(offsets.stride)}, not 1", wrong=False)
    return _dtypes(a, b, out, types) or _orders(a, b, arguments[0], out)


def _fused(
    operands: Sequence[TensorView], arguments: Sequence[Any], out: TensorView, types: KernelTypes
) -> Misfit | None:
    a, b, *slots = operands
    order, written = arguments[0], arguments[4]
    if misfit := why_no_product(a, b, math.prod(out.size)):
        return misfit
    if len(slots) > SLOTS:
        return Misfit(f"the epilogue has {len(slots)} tensors, at most {SLOTS}", wrong=False)
    first = len(slots) - written
    for place, view in enumerate(slots):
        if misfit := _slot(place, view, out, is_written=place >= first):
            return misfit
    return _factor_dtypes(a, b, types) or _orders(a, b, order, out)


def _slot(place: int, view: TensorView, out: TensorView, *, is_written: bool) -> Misfit | None:
    if is_written:
        if view.size != out.size:
            return Misfit(f"output {place} of the epilogue is {_text(view)}, not {_text(out)}")
        if view.stride[-1] != 1 and view.size[-1] > 1:
            return Misfit(
                f"rows of output {place} have the strides {tuple(view.stride)}", wrong=False
            )
        return None
    if len(view.size) != len(out.size) or any(
        own not in (1, whole) for own, whole in zip(view.size, out.size, strict=True)
    ):
        return Misfit(
            f"operand {place} of the epilogue is {_text(view)}, each extent must be 1 or that of {_text(out)}"
        )
    return None


def _factor_dtypes(a: TensorView, b: TensorView, types: KernelTypes) -> Misfit | None:
    if a.dtype != b.dtype and not (a.dtype in _FP8 and b.dtype in _FP8):
        return Misfit(f"A is {a.dtype}, B is {b.dtype}")
    if types.a is not None and (a.dtype, b.dtype) != (types.a, types.b):
        wanted = f"this kernel reads {types.a} and {types.b}"
        return Misfit(f"A is {a.dtype}, B is {b.dtype}, {wanted}")
    return None


def _dtypes(a: TensorView, b: TensorView, out: TensorView, types: KernelTypes) -> Misfit | None:
    if misfit := _factor_dtypes(a, b, types):
        return misfit
    if types.d is not None:
        return None if out.dtype == types.d else _output_dtype(out, (types.d,))
    wanted = _OUTPUTS.get(a.dtype)
    if wanted is None:
        return Misfit(f"no kernel multiplies {a.dtype}")
    return None if out.dtype in wanted else _output_dtype(out, wanted)


def _output_dtype(out: TensorView, wanted: Sequence[Any]) -> Misfit:
    return Misfit(f"the output is {out.dtype}, it must be {_any(wanted)}")


def _orders(a: TensorView, b: TensorView, order: str, out: TensorView) -> Misfit | None:
    for name, view, letter in (("A", a, order[0]), ("B", b, order[1]), ("the output", out, "t")):
        inner = -1 if letter == "t" else -2
        if view.stride[inner] != 1 and view.size[inner] > 1 and 0 not in view.size:
            wanted = f"dimension {inner} must be contiguous"
            return Misfit(f"{name} has the strides {tuple(view.stride)}, {wanted}", wrong=False)
    return None


def _text(view: TensorView) -> str:
    return str(tuple(view.size))


def _any(dtypes: Sequence[Any]) -> str:
    return " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))


_RULES: dict[
    str,
    Callable[[Sequence[TensorView], Sequence[Any], TensorView, KernelTypes], Misfit | None],
] = {
    "cutlass_mm": _product,
    "cutlass_addmm": _added,
    "cutlass_scaled_mm": _scaled,
    "cutlass_scaled_addmm": _scaled_added,
    "cutlass_grouped_mm": _grouped,
    "cutlass_mm_epilogue": _fused,
}
