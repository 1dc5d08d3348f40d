"""A matrix product as the Triton templates see it, read from a problem once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inductor_plugin.problem import Operand, Problem

HALVES = ("float16", "bfloat16")
"""Types whose products tensor cores sum in float32."""

MULTIPROCESSORS = 132
"""Of an H100; the order of candidates depends on it, no kernel does."""
PROGRAMS = 2 * MULTIPROCESSORS
"""Programs that fill a device."""
TMA_ALIGNMENT_BYTES = 16
"""Of addresses and strides in a TMA descriptor (CUDA driver API, cuTensorMapEncodeTiled)."""


@dataclass(frozen=True)
class Product:
    """C[m, n] = alpha * A[m, k] @ B[k, n] + beta * bias.

    Attributes:
        m: Rows of A; for a dynamic dimension the size it is measured at.
        n: Columns of B.
        k: The dimension that is summed.
        a: Operand A.
        b: Operand B.
        biased: True if the first input of the call is a bias.
        alpha: Factor of the product.
        beta: Factor of the bias.
        dynamic: Which of ``m``, ``n``, ``k`` are known only at run time.
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    biased: bool
    alpha: float
    beta: float
    dynamic: frozenset[str]

    def even(self, dim: str, block: int) -> bool:
        """Return True if a dimension is a multiple of ``block`` whenever the kernel runs."""
        return dim not in self.dynamic and getattr(self, dim) % block == 0


def product_of(problem: Problem) -> Product | str:
    """Return the product an ``mm`` or ``addmm`` computes, or why there is none for Triton."""
    reason = _unfit(problem)
    if reason is not None:
        return reason
    first = 1 if problem.op == "addmm" else 0
    a, b = problem.inputs[first : first + 2]
    scalars = _scalars(problem)
    if scalars is None:
        return f"alpha and beta must be numbers, these are {dict(problem.arguments)}"
    names = {(first, 0): "m", (first, 1): "k", (first + 1, 0): "k", (first + 1, 1): "n"}
    dynamic = {names.get((one.operand, one.dim), "") for one in problem.dynamic}
    return Product(
        m=a.size[0],
        n=b.size[1],
        k=a.size[1],
        a=a,
        b=b,
        biased=first == 1,
        alpha=scalars[0],
        beta=scalars[1],
        dynamic=frozenset(dynamic - {""}),
    )


def cdiv(size: int, block: int) -> int:
    """Return how many blocks cover a size."""
    return -(-size // block)


def unfit_for_tma(name: str, operand: Operand, item_bytes: int) -> str | None:
    """Return why a TMA descriptor cannot hold a matrix with a unit stride, None if it can."""
    unit = 1 if operand.stride[1] == 1 else 0
    outer, inner = operand.stride[1 - unit], operand.size[unit]
    lengths = {"offset": operand.offset, "stride": outer, "inner extent": inner}
    for what, length in lengths.items():
        if item_bytes * length % TMA_ALIGNMENT_BYTES:
            return (
                f"TMA needs multiples of {TMA_ALIGNMENT_BYTES} bytes, {name}'s {what} is "
                f"{length} elements"
            )
    if outer < inner:
        return f"{name}'s rows overlap: its strides are {operand.stride}"
    return None


@cache
def text_of(module: str) -> str:
    """Return the Jinja text that lies beside a template's module (its ``__file__``)."""
    return Path(module).with_suffix(".jinja").read_text(encoding="utf-8")


def _unfit(problem: Problem) -> str | None:
    operands = (*problem.inputs, problem.output)
    a, b = problem.inputs[-2:]
    reasons = {
        "its operands are not all on a CUDA device": any(one.device != "cuda" for one in operands),
        "an operand has an opaque layout": any(one.layout != "strided" for one in operands),
        f"A and B must be both float16 or both bfloat16, they are {a.dtype} and {b.dtype}": (
            a.dtype not in HALVES or b.dtype != a.dtype
        ),
        f"it writes {a.dtype} or float32, this asks for {problem.output.dtype}": (
            problem.output.dtype not in (a.dtype, "float32")
        ),
        "a dimension is empty": 0 in (*a.size, *b.size),
        f"each matrix needs a unit stride, the strides are {a.stride} and {b.stride}": (
            1 not in a.stride or 1 not in b.stride
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _scalars(problem: Problem) -> tuple[float, float] | None:
    given = dict(problem.arguments)
    try:
        return _number(given.get("alpha", "1")), _number(given.get("beta", "1"))
    except ValueError:
        return None


def _number(text: str) -> float:
    """Return a number, whole where it is: 1 makes no multiplication, 1.0 would."""
    value = float(text)
    return int(value) if value.is_integer() else value
