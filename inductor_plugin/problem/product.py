"""The operands of a product by their roles: A and B, the operator's own, the length of its sums. Pure.

addmm(c, a, b, full) + mul        c, a and b are the operator's own, full is what its epilogue reads
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from inductor_plugin.problem.definition import Operand, Problem

ROLES: dict[str, tuple[str, ...]] = {
    "mm": ("a", "b"),
    "bmm": ("a", "b"),
    "int_mm": ("a", "b"),
    "addmm": ("c", "a", "b"),
    "baddbmm": ("c", "a", "b"),
    "scaled_mm": ("a", "b", "scale_a", "scale_b", "c"),
    "grouped_mm": ("a", "b", "offsets"),
    "weight_int4pack_mm": ("a", "b", "scales"),
}
"""Role of each input of an operator, in Inductor's order; the output is ``d``. The C of ``scaled_mm`` may be missing."""
LINEAR: dict[str, tuple[str, ...]] = {
    "packed_linear": ("x", "packed", "weight", "bias"),
    "linear_unary": ("x", "packed", "bias"),
    "linear_binary": ("x", "other", "packed", "bias"),
}
"""Inputs of oneDNN's and MKL's linear layers, whose weight has a layout of its own: x[..., k], and a bias that may be missing."""
SUM_OF_PRODUCTS = "mm_plus_mm"
"""The operator that computes A @ B + C @ D."""
_CONVOLUTION = "convolution"
_MAY_LACK_BIAS = frozenset({"scaled_mm"})
_INT4_COLUMNS = 8
"""Columns of B in one row of packed int4 weights (`aten._convert_weight_to_int4pack`)."""


class Shaped(Protocol):
    """An operand of a problem, or of a record."""

    @property
    def size(self) -> tuple[int, ...]:
        """Its extents; empty where its layout hides them."""
        ...


def factors(op: str) -> tuple[int, int] | None:
    """Return the indices of A[..., m, k] and B among an operator's inputs; None if it is not a product of two operands."""
    named = ROLES.get(op, ())
    return (named.index("a"), named.index("b")) if "a" in named else None


def own_count(op: str, inputs: int, reads: int | None = None) -> int | None:
    """Return how many inputs of a call with an epilogue are the operator's own: the first. None if that is not known.

    Args:
        op: Inductor's name of the operator.
        inputs: How many inputs the call has.
        reads: How many of them its epilogue reads; None if that is not known.
    """
    if reads is not None:
        return max(inputs - reads, 0)
    if op == SUM_OF_PRODUCTS:
        return min(inputs, 4)
    most = len(ROLES.get(op, ()))
    if not most or (op in _MAY_LACK_BIAS and inputs >= most):
        return None  # the last may be a bias, or what the epilogue reads
    return min(inputs, most)


def own_operands(problem: Problem) -> tuple[Operand, ...]:
    """Return the operator's own inputs, without those that its epilogue reads; all where that is not known."""
    if not problem.epilogue:
        return problem.inputs
    count = own_count(problem.op, len(problem.inputs), problem.epilogue_reads)
    return problem.inputs[:count]


def own_roles(problem: Problem) -> tuple[str, ...]:
    """Return the role of each of the operator's own inputs; empty for an operator that `ROLES` does not know."""
    return ROLES.get(problem.op, ())[: len(own_operands(problem))]


def reduction_length(op: str, operands: Sequence[Shaped]) -> int:
    """Return how many terms the longest sum of a call has: K of a matrix product, whatever its other extents are.

    Of a sum of products it is both of their K, of a convolution the product of a filter's extents. Of any other operator it
    is the largest last extent, as a bound.

    Args:
        op: Inductor's name of the operator.
        operands: Its own operands, without those that an epilogue reads.
    """
    if op == _CONVOLUTION and len(operands) > 1:
        return math.prod(operands[1].size[1:])
    if op == SUM_OF_PRODUCTS and len(operands) > 2:
        return _last(operands[0]) + _last(operands[2])
    pair = (0, 0) if op in LINEAR else factors(op)
    if pair is not None and len(operands) > pair[0]:
        return _last(operands[pair[0]])
    return max(map(_last, operands), default=1)


def output_size(op: str, operands: Sequence[Shaped]) -> tuple[int, ...] | None:
    """Return the extents of the product of A and B; None for an operator that is none, or if a layout hides theirs.

    They are those of the output, but for groups that divide K (A and B are matrices): their outputs come in a batch.
    """
    pair = factors(op)
    if pair is None:
        return None
    a, b = (operands[index].size for index in pair)
    if not a or not b:
        return None
    # Where groups divide the columns of B, A has one more dimension.
    rows = a[-2:-1] if len(b) < len(a) else a[:-1]
    return (*rows, _INT4_COLUMNS * b[0] if op == "weight_int4pack_mm" else b[-1])


def flops(problem: Problem) -> int:
    """Return the multiplications and additions of a call: two for each term of each sum (`reduction_length`)."""
    own = own_operands(problem)
    size = output_size(problem.op, own) or problem.output.size
    return 2 * math.prod(size) * max(1, reduction_length(problem.op, own))


def _last(operand: Shaped) -> int:
    return operand.size[-1] if operand.size else 1
