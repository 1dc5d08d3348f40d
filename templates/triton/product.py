"""A matrix product as the Triton templates see it, read from a problem once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inductor_plugin.cost.tile import GemmShape
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.contract import Contract
from inductor_plugin.problem.layout import judge_problem
from inductor_plugin.problem.product import factors

HALVES = ("float16", "bfloat16")
"""Types whose products tensor cores sum in float32."""
OPS = ("mm", "addmm", "bmm", "baddbmm")
"""Operators that compute a `Product`."""
TMA_ALIGNMENT_BYTES = 16
"""Alignment of addresses and strides in a TMA descriptor (CUDA driver API, cuTensorMapEncodeTiled)."""
TMA_CAPABILITY = (9, 0)
"""The first compute capability with tensor descriptors."""
CONTRACT: Mapping[str, Contract] = {
    name.lower(): Contract(name, extent="free", shared_rows=True, exact=True) for name in "AB"
}
"""Pointers are computed from all strides, so that rows may have any stride; only the loads need a unit
stride. Inductor's own code reads a bias and writes the output."""
TMA_CONTRACT: Mapping[str, Contract] = {
    name.lower(): Contract(
        name,
        alignment=TMA_ALIGNMENT_BYTES,
        # Inductor proves it of a dynamic extent, before it creates the descriptor.
        extent="measured",
        shared_batch=False,
        exact=True,
    )
    for name in "AB"
}
"""Layouts that a descriptor can describe."""
_DIMS = {2: ("mk", "kn"), 3: ("bmk", "bkn")}


@dataclass(frozen=True)
class Product:
    """C[b, m, n] = alpha * A[b, m, k] @ B[b, k, n] + beta * bias, without b where ``batched`` is False.

    Attributes:
        batch: Products in the batch; 1 if not batched.
        m: Rows of A; for a dynamic dimension the size it is measured at.
        n: Columns of B.
        k: The dimension that is summed.
        a: Operand A.
        b: Operand B.
        out: Dtype of C.
        batched: True if the operands have three dimensions.
        biased: True if the first input of the call is a bias.
        alpha: Factor of the product.
        beta: Factor of the bias.
        dynamic: Which of ``b``, ``m``, ``n``, ``k`` are known only at run time.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    out: str
    batched: bool
    biased: bool
    alpha: float
    beta: float
    dynamic: frozenset[str]

    @property
    def shape(self) -> GemmShape:
        """The product for the ranking."""
        return GemmShape(
            self.m, self.n, self.k, self.batch, self.a.dtype, self.b.dtype, self.out,
            self.a.stride[-1] == 1, self.b.stride[-1] == 1,
        )  # fmt: skip

    @property
    def epilogue(self) -> dict[str, Any]:
        """The fields of `TritonSource` that describe its bias and scalars."""
        epilogue = "addmm" if self.biased else "none"
        return {"epilogue": epilogue, "alpha": self.alpha, "beta": self.beta}

    def even(self, dim: str, block: int) -> bool:
        """Return True if a dimension is a multiple of ``block`` whenever the kernel runs."""
        return dim not in self.dynamic and getattr(self, dim) % block == 0


def product_of(problem: Problem) -> Product | str:
    """Return the product an operator of `OPS` computes, or why there is none for Triton."""
    pair = factors(problem.op)
    if problem.op not in OPS or pair is None:
        return f"it serves {', '.join(OPS)}, not {problem.op}"
    a, b = (problem.inputs[index] for index in pair)
    reason = _why_not(problem, a, b)
    if reason is not None:
        return reason
    scalars = _scalars(problem)
    if scalars is None:
        return f"alpha and beta must be numbers, these are {dict(problem.arguments)}"
    names = dict(zip(pair, _DIMS[len(a.size)], strict=True))
    dynamic = {names[dim.operand][dim.dim] for dim in problem.dynamic if dim.operand in names}
    return Product(
        batch=a.size[0] if len(a.size) == 3 else 1,
        m=a.size[-2],
        n=b.size[-1],
        k=a.size[-1],
        a=a,
        b=b,
        out=problem.output.dtype,
        batched=len(a.size) == 3,
        biased=pair[0] > 0,
        alpha=scalars[0],
        beta=scalars[1],
        dynamic=frozenset(dynamic),
    )


def too_old(problem: Problem, capability: tuple[int, int]) -> str | None:
    """Return why a GPU cannot run a kernel, None if it can or is unknown."""
    if problem.target is None or problem.target.capability >= capability:
        return None
    need, have = (".".join(map(str, pair)) for pair in (capability, problem.target.capability))
    return f"it needs compute capability {need}, the device has {have}"


@cache
def text_of(module: str) -> str:
    """Return the Jinja text next to a template's module (its ``__file__``)."""
    return Path(module).with_suffix(".jinja").read_text(encoding="utf-8")


def _why_not(problem: Problem, a: Operand, b: Operand) -> str | None:
    operands = (*problem.inputs, problem.output)
    reasons = {
        "its operands are not all on a CUDA device": any(
            operand.device != "cuda" for operand in operands
        ),
        "an operand has an opaque layout": any(operand.layout != "strided" for operand in operands),
        f"A and B must be both float16 or both bfloat16, they are {a.dtype} and {b.dtype}": (
            a.dtype not in HALVES or b.dtype != a.dtype
        ),
        f"it writes {a.dtype} or float32, this asks for {problem.output.dtype}": (
            problem.output.dtype not in (a.dtype, "float32")
        ),
        "a dimension is empty": 0 in (*a.size, *b.size),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return reason or judge_problem(CONTRACT, problem).refusal


def _scalars(problem: Problem) -> tuple[float, float] | None:
    arguments = dict(problem.arguments)
    try:
        return _number(arguments.get("alpha", "1")), _number(arguments.get("beta", "1"))
    except ValueError:
        return None


def _number(text: str) -> float:
    """Return a number, as an int if it is whole: 1.0 would add a multiplication, 1 does not."""
    value = float(text)
    return int(value) if value.is_integer() else value
