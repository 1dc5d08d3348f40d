"""A matrix product for the CUTLASS template: types, orders, alignments, bias and scales.

Problem ─► facts_of ─► GemmFacts      or the reason why CUTLASS cannot run it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.contract import MOST_BYTES, Contract, roles, run_time
from inductor_plugin.problem.layout import granularity, judge_problem, order_of
from inductor_plugin.problem.product import factors
from inductor_plugin.templates.cutlass.config import (
    OUTPUTS,
    Bias,
    Major,
    Scale,
    full_alignment,
)
from inductor_plugin.templates.cutlass.element import ELEMENTS, Element

OPS = ("mm", "addmm", "bmm", "baddbmm", "int_mm", "scaled_mm")

MAX_BATCH = 65535
"""The grid counts batches in 16 bits (``source/call.h``)."""

MAJORS: tuple[Major, ...] = ("row", "column")
CONTRACT: Mapping[str, Contract] = {
    # Any alignment has a kernel; multistage kernels load 16 bytes at once, and TMA needs them.
    "a": Contract("A", preferred=MOST_BYTES),
    "b": Contract("B", preferred=MOST_BYTES),
    "c": Contract("the bias", ("row",), preferred=MOST_BYTES, broadcast=True),
    "d": Contract("the output", ("row",), copies=False),
    "scale_a": Contract("the scale of A", ("dense",)),
    "scale_b": Contract("the scale of B", ("dense",)),
    "offsets": Contract("offsets", ("dense",)),
}
"""What kernels require of each operand. Their calls have one stride of a matrix and one of a batch, so
rows must not overlap, and a batch may share one matrix."""


@dataclass(frozen=True)
class GemmFacts:
    """The facts that decide between kernels: D[batch, m, n] = alpha * scale(A @ B) + beta * C.

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
        grouped: Rows of A belong to ``batch`` groups, each with its own B.
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


class _RefusedOperandError(Exception):
    """Carries the reason out of the helpers; `facts_of` turns it into a value."""


def facts_of(problem: Problem, *, allow_tf32: bool = False) -> GemmFacts | str:
    """Return the facts of a call, or why CUTLASS cannot run it on any device.

    Args:
        problem: The call, its operands in Inductor's order: the bias of ``addmm`` and ``baddbmm``
            first, that of ``scaled_mm`` last, after the scales.
        allow_tf32: Whether float32 inputs may be rounded to TF32
            (``torch.backends.cuda.matmul.allow_tf32``).
    """
    try:
        return _facts(problem, allow_tf32=allow_tf32)
    except _RefusedOperandError as refusal:
        return str(refusal)


def too_many(batch: int) -> str | None:
    """Return why a batch has no kernel, None if it has; a dynamic batch is judged by its measured size."""
    if batch <= MAX_BATCH:
        return None
    return f"a kernel takes {MAX_BATCH} products at once, these are {batch}"


def _facts(problem: Problem, *, allow_tf32: bool) -> GemmFacts:
    pair = factors(problem.op)
    if problem.op not in OPS or pair is None:
        raise _RefusedOperandError(f"it serves {', '.join(OPS)}, not {problem.op}")
    for operand in (*problem.inputs, problem.output):
        layout, device = operand.layout, operand.device
        if device != "cuda" or layout != "strided":
            raise _RefusedOperandError(
                f"it wants strided CUDA tensors, one is {layout} on {device}"
            )
    a, b = (problem.inputs[index] for index in pair)
    output = problem.output
    if 0 in (*a.size, *b.size):
        raise _RefusedOperandError(f"a dimension is empty: {a.shape} and {b.shape}")
    element_a = _input_element(a, allow_tf32=allow_tf32)
    element_b = _input_element(b, allow_tf32=allow_tf32)
    element_d = _element(output)
    if element_d not in OUTPUTS[element_a]:
        raise _RefusedOperandError(f"{a.dtype} inputs do not give {output.dtype}")
    if reason := judge_problem(CONTRACT, problem).refusal:
        raise _RefusedOperandError(reason)
    layout_a: Major = "row" if order_of(a, MAJORS) == "row" else "column"
    layout_b: Major = "row" if order_of(b, MAJORS) == "row" else "column"
    batch = output.size[0] if len(output.size) == 3 else 1
    if reason := too_many(batch):
        raise _RefusedOperandError(reason)
    alpha, beta = (_number(problem, name) for name in ("alpha", "beta"))
    index = _bias_index(problem)
    added = None if index is None else problem.inputs[index]
    bias: Bias = "none" if added is None else _bias(added, output)
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
        align_a=_alignment(problem, pair[0], layout_a),
        align_b=_alignment(problem, pair[1], layout_b),
        align_c=_bias_alignment(problem, index, bias) or full_alignment(element_d),
        align_d=_alignment(problem, len(problem.inputs), "row"),
        bias=bias,
        scale=_scale(problem, a.size[-2], b.size[-1], alpha),
        alpha=alpha,
        beta=beta,
        fast_accumulation=dict(problem.arguments).get("use_fast_accum", "False") == "True",
    )


def _element(operand: Operand) -> Element:
    if operand.dtype not in ELEMENTS:
        raise _RefusedOperandError(
            f"no kernel for {operand.dtype}; known are {', '.join(ELEMENTS)}"
        )
    return ELEMENTS[operand.dtype]


def _input_element(operand: Operand, *, allow_tf32: bool) -> Element:
    element = _element(operand)
    if element == "f32":
        if not allow_tf32:
            raise _RefusedOperandError(
                "float32 products run on tensor cores as TF32, which is off; "
                'torch.set_float32_matmul_precision("high") allows it'
            )
        return "tf32"
    if element not in OUTPUTS:
        raise _RefusedOperandError(f"no tensor core multiplies {operand.dtype}")
    return element


def _alignment(problem: Problem, index: int, major: Major) -> int:
    """Return the elements, up to 16 bytes, of which all of an operand's rows start at multiples."""
    operand = (*problem.inputs, problem.output)[index]
    return granularity(operand, major, run_time(problem, index))


def _number(problem: Problem, name: str) -> float:
    text = dict(problem.arguments).get(name, "1")
    try:
        return float(text)
    except ValueError:
        raise _RefusedOperandError(f"{name} must be a number, it is {text}") from None


def _bias_index(problem: Problem) -> int | None:
    """Return the index of the bias among the inputs, None if there is none."""
    named = roles(problem)
    return named.index("c") if "c" in named else None


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
    return _column(along_m, bias)


def _column(along_m: int, bias: Operand) -> Bias:
    """Return the shape of a column; its contract does not know how wide the output is."""
    if along_m == 1:
        return "column"
    raise _RefusedOperandError(
        f"{bias.shape} with strides {bias.stride} is no row and no column of D"
    )


def _bias_alignment(problem: Problem, index: int | None, shape: Bias) -> int:
    if index is None:
        return 0
    bias = problem.inputs[index]
    if shape == "full":
        return _alignment(problem, index, "row")
    numbers = [bias.offset_divisor]
    if len(bias.size) == 3 and bias.size[0] > 1:
        numbers.append(bias.stride_divisor(0))
    return math.gcd(full_alignment(_element(bias)), *numbers)


def _scale(problem: Problem, m: int, n: int, alpha: float) -> Scale:
    if problem.op != "scaled_mm":
        return "none"
    scale_a, scale_b = problem.inputs[2:4]
    if scale_a.dtype != "float32" or scale_b.dtype != "float32":
        raise _RefusedOperandError(
            f"scales must be float32, they are {scale_a.dtype} and {scale_b.dtype}"
        )
    counts = math.prod(scale_a.size), math.prod(scale_b.size)
    if counts == (1, 1):
        return "tensor"
    if counts != (m, n):
        raise _RefusedOperandError(
            f"scales have {counts[0]} and {counts[1]} numbers; kernels take one each or {m} and {n}"
        )
    if alpha != 1:
        raise _RefusedOperandError(f"row-wise scales leave no room for alpha, it is {alpha}")
    return "rowwise"
