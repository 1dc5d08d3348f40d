"""A matrix product as the CUTLASS template sees it: types, orders, alignments, bias and scales.

Problem ─► facts_of ─► GemmFacts      or the reason why CUTLASS cannot run it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.templates.cutlass_config import (
    OUTPUTS,
    Bias,
    Element,
    Major,
    Scale,
    full_alignment,
)

OPS = ("mm", "addmm", "bmm", "baddbmm", "int_mm", "scaled_mm")

MAX_BATCH = 65535
"""The grid counts batches in 16 bits (``cutlass_call.h``)."""

_ELEMENTS: dict[str, Element] = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "int32": "s32",
}


@dataclass(frozen=True)
class GemmFacts:
    """What decides between kernels: D[batch, m, n] = alpha * scale(A @ B) + beta * C.

    Attributes:
        m: Rows of A and D; for a dynamic dimension the size it is measured at, as for all four.
        n: Columns of B and D.
        k: The dimension that is summed.
        batch: Products of one call.
        a: Element type of A; ``tf32`` for float32.
        b: Element type of B.
        c: Element type of the bias; D's if there is none.
        d: Element type of D.
        layout_a: Order of A[m, k].
        layout_b: Order of B[k, n].
        align_a: Elements that pointer, strides and contiguous extent of A are multiples of, a power
            of two up to 16 bytes.
        align_b: The same of B.
        align_c: The same of a full bias; of another bias of its pointer and batch stride.
        align_d: The same of D.
        bias: Shape of the bias.
        scale: Shape of the scales.
        alpha: Factor of the product.
        beta: Factor of the bias.
        fast_accumulation: Whether fp8 sums may stay in the tensor cores.
        grouped: Rows of A belong to ``batch`` groups, each with a B of its own.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Element
    b: Element
    c: Element
    d: Element
    layout_a: Major
    layout_b: Major
    align_a: int
    align_b: int
    align_c: int
    align_d: int
    bias: Bias = "none"
    scale: Scale = "none"
    alpha: float = 1.0
    beta: float = 1.0
    fast_accumulation: bool = True
    grouped: bool = False


class _UnfitError(Exception):
    """Carries the reason out of the helpers; `facts_of` turns it into a value."""


def facts_of(problem: Problem, *, allow_tf32: bool = False) -> GemmFacts | str:
    """Return the facts of a call, or why CUTLASS cannot run it on any device.

    Args:
        problem: The call, its operands in Inductor's order: the bias of ``addmm`` and ``baddbmm``
            first, that of ``scaled_mm`` last behind the scales.
        allow_tf32: Whether float32 inputs may be rounded to TF32
            (``torch.backends.cuda.matmul.allow_tf32``).
    """
    try:
        return _facts(problem, allow_tf32=allow_tf32)
    except _UnfitError as unfit:
        return str(unfit)


def too_many(batch: int) -> str | None:
    """Return why a batch has no kernel, None if it has; a dynamic one is judged as it is measured."""
    if batch <= MAX_BATCH:
        return None
    return f"a kernel takes {MAX_BATCH} products at once, these are {batch}"


def steps(size: Sequence[int], stride: Sequence[int], major: Major) -> tuple[int, int]:
    """Return (leading, batch) stride of a matrix or a batch of them, in elements.

    Args:
        size: Extents, [rows, columns] or [batch, rows, columns].
        stride: Strides of the same.
        major: Its order.
    """
    lead = stride[-2] if major == "row" else stride[-1]
    return lead, stride[0] if len(size) == 3 and size[0] > 1 else 0


def _facts(problem: Problem, *, allow_tf32: bool) -> GemmFacts:
    if problem.op not in OPS:
        raise _UnfitError(f"it serves {', '.join(OPS)}, not {problem.op}")
    for one in (*problem.inputs, problem.output):
        if one.device != "cuda" or one.layout != "strided":
            raise _UnfitError(f"it wants strided CUDA tensors, one is {one.layout} on {one.device}")
    first = 1 if problem.op in ("addmm", "baddbmm") else 0
    a, b = problem.inputs[first : first + 2]
    output = problem.output
    if 0 in (*a.size, *b.size):
        raise _UnfitError(f"a dimension is empty: {a.shape} and {b.shape}")
    element_a = _input_element(a, allow_tf32=allow_tf32)
    element_b = _input_element(b, allow_tf32=allow_tf32)
    element_d = _element(output)
    if element_d not in OUTPUTS[element_a]:
        raise _UnfitError(f"{a.dtype} inputs do not give {output.dtype}")
    layout_a, layout_b = _major(a, "A"), _major(b, "B")
    _check_rows(a, layout_a, "A")
    _check_rows(b, layout_b, "B")
    if not _fits(output, "row"):
        raise _UnfitError(
            f"the output must be row-major, its strides are {output.stride}; hand over the "
            "transposed problem"
        )
    _check_rows(output, "row", "the output")
    batch = output.size[0] if len(output.size) == 3 else 1
    if reason := too_many(batch):
        raise _UnfitError(reason)
    alpha, beta = (_number(problem, name) for name in ("alpha", "beta"))
    added = _bias_operand(problem, beta)
    bias: Bias = "none" if added is None else _bias(added, output)
    if added is not None and bias == "full":
        _check_rows(added, "row", "the bias")
    return GemmFacts(
        m=a.size[-2],
        n=b.size[-1],
        k=a.size[-1],
        batch=batch,
        a=element_a,
        b=element_b,
        c=element_d if added is None else _element(added),
        d=element_d,
        layout_a=layout_a,
        layout_b=layout_b,
        align_a=_alignment(problem, a, layout_a),
        align_b=_alignment(problem, b, layout_b),
        align_c=_bias_alignment(problem, added, bias) or full_alignment(element_d),
        align_d=_alignment(problem, output, "row"),
        bias=bias,
        scale=_scale(problem, a.size[-2], b.size[-1], alpha),
        alpha=alpha,
        beta=beta,
        fast_accumulation=dict(problem.arguments).get("use_fast_accum", "False") == "True",
    )


def _element(operand: Operand) -> Element:
    if operand.dtype not in _ELEMENTS:
        raise _UnfitError(f"no kernel for {operand.dtype}; known are {', '.join(_ELEMENTS)}")
    return _ELEMENTS[operand.dtype]


def _input_element(operand: Operand, *, allow_tf32: bool) -> Element:
    element = _element(operand)
    if element == "f32":
        if not allow_tf32:
            raise _UnfitError(
                "float32 products run on tensor cores as TF32, which is off; "
                'torch.set_float32_matmul_precision("high") allows it'
            )
        return "tf32"
    if element not in OUTPUTS:
        raise _UnfitError(f"no tensor core multiplies {operand.dtype}")
    return element


def _fits(operand: Operand, major: Major) -> bool:
    last = -1 if major == "row" else -2
    return operand.size[last] == 1 or operand.stride[last] == 1


def _major(operand: Operand, name: str) -> Major:
    """Return the order; where both fit (a row, a column) the one with the longer contiguous run."""
    fitting: list[Major] = [one for one in ("row", "column") if _fits(operand, one)]
    if not fitting:
        raise _UnfitError(f"{name} needs a unit stride, its strides are {operand.stride}")
    return max(fitting, key=lambda one: operand.size[-1 if one == "row" else -2])


def _check_rows(operand: Operand, major: Major, name: str) -> None:
    """Refuse rows that share memory: a kernel is told one stride, as long as a row or longer."""
    inner, outer = (-1, -2) if major == "row" else (-2, -1)
    if operand.size[outer] == 1:
        return
    if operand.stride[outer] == 0:
        raise _UnfitError(f"{name} is expanded, its strides are {operand.stride}")
    if operand.stride[outer] < operand.size[inner]:
        raise _UnfitError(f"the rows of {name} overlap, its strides are {operand.stride}")


def _alignment(problem: Problem, operand: Operand, major: Major) -> int:
    """Return how many elements, up to 16 bytes, all of an operand's rows start at multiples of."""
    inner, outer = (-1, -2) if major == "row" else (-2, -1)
    rank = len(operand.size)
    if _is_dynamic(problem, operand, inner % rank):
        return 1
    numbers = [operand.offset_divisor, operand.size[inner]]
    if operand.size[outer] > 1:
        numbers.append(operand.stride_divisor(outer))
    if rank == 3 and operand.size[0] > 1:
        numbers.append(operand.stride_divisor(0))
    element = _ELEMENTS[operand.dtype]
    return math.gcd(full_alignment(element), *numbers)


def _is_dynamic(problem: Problem, operand: Operand, dim: int) -> bool:
    """Return whether an extent is known only at run time; of the output, by the inputs' extents."""
    if operand is problem.output:
        first = 1 if problem.op in ("addmm", "baddbmm") else 0
        return _is_dynamic(problem, problem.inputs[first + 1], dim)
    return any(problem.inputs[one.operand] is operand and one.dim == dim for one in problem.dynamic)


def _number(problem: Problem, name: str) -> float:
    text = dict(problem.arguments).get(name, "1")
    try:
        return float(text)
    except ValueError:
        raise _UnfitError(f"{name} must be a number, it is {text}") from None


def _bias_operand(problem: Problem, beta: float) -> Operand | None:
    """Return what is added. A bias times zero is not read, whatever it holds, as in torch."""
    if problem.op in ("addmm", "baddbmm"):
        return problem.inputs[0] if beta else None
    if problem.op == "scaled_mm" and len(problem.inputs) == 5:
        return problem.inputs[4]
    return None


def _bias(bias: Operand, output: Operand) -> Bias:
    """Return the shape of a bias by its strides, which are zero where it is expanded."""
    m, n = output.size[-2:]
    rank = len(bias.size)
    along_n = 0 if bias.size[-1] == 1 else bias.stride[-1]
    along_m = 0 if rank < 2 or bias.size[-2] == 1 else bias.stride[-2]
    if along_n == 1 or n == 1 == bias.size[-1]:
        if along_m == 0 or m == 1:
            return "row" if n > 1 or m == 1 else _column(along_m, bias)
        return "column" if n == 1 and along_m == 1 else "full"
    if along_n == 0:
        return _column(along_m, bias)
    raise _UnfitError(f"the bias must be contiguous along n, its strides are {bias.stride}")


def _column(along_m: int, bias: Operand) -> Bias:
    if along_m == 1:
        return "column"
    if along_m == 0:
        raise _UnfitError("a bias of one number for all of D has no kernel")
    raise _UnfitError(f"a column of bias must be contiguous, its strides are {bias.stride}")


def _bias_alignment(problem: Problem, bias: Operand | None, shape: Bias) -> int:
    if bias is None:
        return 0
    if shape == "full":
        return _alignment(problem, bias, "row")
    numbers = [bias.offset_divisor]
    if len(bias.size) == 3 and bias.size[0] > 1:
        numbers.append(bias.stride_divisor(0))
    return math.gcd(full_alignment(_element(bias)), *numbers)


def _scale(problem: Problem, m: int, n: int, alpha: float) -> Scale:
    if problem.op != "scaled_mm":
        return "none"
    one, two = problem.inputs[2:4]
    if one.dtype != "float32" or two.dtype != "float32":
        raise _UnfitError(f"scales must be float32, they are {one.dtype} and {two.dtype}")
    counts = math.prod(one.size), math.prod(two.size)
    if counts == (1, 1):
        return "tensor"
    if counts != (m, n):
        raise _UnfitError(
            f"scales have {counts[0]} and {counts[1]} numbers; kernels take one each or {m} and {n}"
        )
    if any(_gaps(operand) for operand in (one, two)):
        raise _UnfitError(
            f"scales must be contiguous, their strides are {one.stride}, {two.stride}"
        )
    if alpha != 1:
        raise _UnfitError(f"row-wise scales leave no room for alpha, it is {alpha}")
    return "rowwise"


def _gaps(operand: Operand) -> bool:
    long = [(n, s) for n, s in zip(operand.size, operand.stride, strict=True) if n > 1]
    return len(long) > 1 or any(stride != 1 for _, stride in long)
