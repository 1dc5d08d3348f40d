"""How the benchmark worker checks a candidate's numbers. Pure.

With random operands of one magnitude a product of ``k`` terms is ``sqrt(k)`` times as large as a bias: at
k = 65,536 a missing bias is 0.4 % of the output, half of what the rounding of bfloat16 is allowed. So operands
that are added to the product are made as large as the product. Where an epilogue is computed of the product, the
product is made as large as a bias instead: as activations are, of which a sigmoid is not 0 or 1, and exp and sin keep digits.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from inductor_plugin.problem.contract import ROLES
from inductor_plugin.problem.definition import Problem
from inductor_plugin.problem.tolerance import (
    STEPPED,
    Tolerance,
    product_tolerance,
    reduction_length,
)

REVISION = 3
"""Revision of the check, raised when the check no longer refuses some right kernels: what an earlier revision refused is
measured again.

2: candidates see the operands of the library kernel (frozen int8, int4 and fp16 weights); the tolerance follows the scales of
rows and columns; operands may be truncated to TF32.
3: the product that an epilogue reads is about 1: of larger ones exp and sin have too few digits in the library kernel.
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
        added: Seeds of the operands that are added to the product.
        large_values: Whether the candidate also runs on operands that are thousands of times as large,
            where a kernel that saturates shows. Not with an epilogue: sin(x) of a large x has no digits, and a clamp to
            0..6 makes 6 of 0 where the sum of a product has another sign.
        steep: Power of two for operands whose products are some hundreds, beyond float32's exp; used with an epilogue.
        unplanted: Seeds of operands without NaN: a filter, by which some kernels multiply the zeros of the padding.
    """

    tolerance: Tolerance
    amplitudes: tuple[tuple[int, float], ...] = ()
    added: frozenset[int] = frozenset()
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


def amplitudes(problem: Problem, fixed: Collection[int] = ()) -> dict[int, float]:
    """Return the factors of the random values of operands, by index; 1 for all others.

    Args:
        problem: The problem.
        fixed: Indices of operands that cannot have a factor of their own: frozen weights, with which a product is about 1
            as it is, and what is both factors.
    """
    size = _product_size(problem)
    first = _scalable(problem, fixed)
    if first is None:
        return dict.fromkeys(added_operands(problem), size)
    return {first: 1 / size}


def steepness(problem: Problem, fixed: Collection[int] = ()) -> int:
    """Return the power of two for operands whose products are about 256 then; arguments as of `amplitudes`."""
    is_one = _scalable(problem, fixed) is not None
    return round((8 - math.log2(1.0 if is_one else _product_size(problem))) / 2)


def _scalable(problem: Problem, fixed: Collection[int]) -> int | None:
    """Return which operand makes the product about 1, if an epilogue reads it and both factors are random."""
    roles = _roles(problem)
    factors = [roles.index(role) for role in ("a", "b") if role in roles]
    if not problem.epilogue or len(factors) < 2 or not frozenset(factors).isdisjoint(fixed):
        return None
    dtypes = {problem.inputs[index].dtype for index in factors}
    return factors[0] if all("float" in dtype for dtype in dtypes) else None


def _product_size(problem: Problem) -> float:
    """Return about how large a product of normal random numbers is, a power of two."""
    roles = _roles(problem)
    if problem.op == "convolution":
        length = reduction_length(problem)
    else:
        length = problem.inputs[roles.index("a")].size[-1] if "a" in roles else 1
    return 2.0 ** round(math.log2(max(length, 1)) / 2)


def _roles(problem: Problem) -> tuple[str, ...]:
    return ("a", "b") if problem.op == "convolution" else ROLES.get(problem.op, ())
