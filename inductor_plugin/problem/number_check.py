"""How the benchmark worker checks a candidate's numbers. Pure.

With random operands of one magnitude a product of ``k`` terms is ``sqrt(k)`` times as large as a bias: at
k = 65,536 a missing bias is 0.4 % of the output, half of what the rounding of bfloat16 is allowed. So operands
that are added to the product are made as large as the product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from inductor_plugin.problem.contract import ROLES
from inductor_plugin.problem.definition import Problem
from inductor_plugin.problem.tolerance import (
    STEPPED,
    Tolerance,
    product_tolerance,
    reduction_length,
)

REVISION = 2
"""Revision of the check, raised when the check no longer refuses some right kernels: what an earlier revision refused is
measured again.

2: candidates see the operands of the library kernel (frozen int8, int4 and fp16 weights); the tolerance follows the scales of
rows and columns; operands may be truncated to TF32.
"""
_ADDED = "c"
"""Role of an operand that is added to the product."""
_SUMS = frozenset({"", "add", "sub", "neg", "relu", "maximum", "minimum", "to_dtype"})


@dataclass(frozen=True)
class NumberCheck:
    """How a candidate's numbers are compared with those of the library kernel.

    Attributes:
        tolerance: Largest accepted errors.
        amplitudes: Factors of the random values of operands, powers of two, by their seed; 1 for all others.
        large_values: Whether the candidate also runs on operands that are thousands of times as large,
            where a kernel that saturates shows. Not with an epilogue: sin(x) of a large x has no digits, and a clamp to
            0..6 makes 6 of 0 where the sum of a product has another sign.
        steep: Power of two for operands whose products are some hundreds, beyond float32's exp; used with an epilogue.
        unplanted: Seeds of operands without NaN: a filter, by which some kernels multiply the zeros of the padding.
    """

    tolerance: Tolerance
    amplitudes: tuple[tuple[int, float], ...] = ()
    large_values: bool = True
    steep: int = 3
    unplanted: frozenset[int] = frozenset()


def tolerance_of(problem: Problem, *, tf32: bool) -> Tolerance:
    """Return the largest accepted errors of a call; ``tf32`` as for `product_tolerance`."""
    roles = ROLES.get(problem.op, ())
    product = replace(problem, inputs=problem.inputs[: len(roles) or None])
    accepted = product_tolerance(
        problem.output.dtype,
        problem.inputs[0].dtype if problem.inputs else problem.output.dtype,
        reduction_length(product),
        tf32=tf32,
    )
    stepped = problem.epilogue and accepted.largest == 0.0
    return (
        Tolerance(STEPPED, STEPPED)
        if stepped
        else replace(accepted, own_units=not problem.epilogue)
    )


def added_operands(problem: Problem) -> tuple[int, ...]:
    """Return the indices of the operands that are added to the product.

    They are its C, and the operands of an epilogue that does nothing but add them and clamp the sum: larger
    factors of a product could overflow float16.
    """
    roles = ROLES.get(problem.op, ())
    operations = set(problem.epilogue.partition("-")[0].split("."))
    last = len(problem.inputs) if operations <= _SUMS else len(roles)
    return tuple(
        index
        for index, _ in enumerate(problem.inputs[:last])
        if roles and (index >= len(roles) or roles[index] == _ADDED)
    )


def steepness(problem: Problem) -> int:
    """Return the power of two for operands of normal random numbers whose products are about 256."""
    return round((8 - math.log2(amplitude(problem))) / 2)


def amplitude(problem: Problem) -> float:
    """Return the factor that makes normal random numbers about as large as the product, a power of two."""
    roles = ROLES.get(problem.op, ())
    length = problem.inputs[roles.index("a")].size[-1] if "a" in roles else 1
    return 2.0 ** round(math.log2(max(length, 1)) / 2)
