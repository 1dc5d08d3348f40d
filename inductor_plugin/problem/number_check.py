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

from inductor_plugin.problem.definition import Problem
from inductor_plugin.problem.product import (
    LINEAR,
    factors,
    own_operands,
    own_roles,
    reduction_length,
)
from inductor_plugin.problem.tolerance import STEPPED, Tolerance, product_tolerance

REVISION = 7
"""Revision of the check, raised when the check no longer refuses some right kernels: what an earlier revision refused is
measured again.

2: candidates see the operands of the library kernel (frozen int8, int4 and fp16 weights); the tolerance follows the scales of
rows and columns; operands may be truncated to TF32.
3: the product that an epilogue reads is about 1: of larger ones exp and sin have too few digits in the library kernel.
4: operands that are added are as large as the product also where a factor is a frozen weight, and with ``alpha`` and ``beta``.
5: a gradient of an attention may compute delta in its operand; the lse of a library kernel may be a number where NaN is planted.
6: the accepted error is that of K terms, where N was taken if it is larger: in TF32 few terms average less out, and a sum of
products has the terms of both. What an epilogue reads is no bias of ``scaled_mm``. In float32 less is accepted for N > K; what was
accepted stays, as ever.
7: a call of oneDNN that goes on after the product (relu, gelu) is not held to the scales of its rows and columns, as an epilogue is
not, and the integers that it rounds to may differ in steps.
"""
_GOES_ON = frozenset({"attr", "post_op_name", "unary_post_op"})
"""Arguments of oneDNN's products that name what is computed of the product."""
_NO_MORE = frozenset({"None", "'none'", "''", "'add'", "'sub'"})
"""Their values with which it is as large as the product, or a sum."""
_QUANTIZES = "qlinear_"
_ADDED = "c"
"""Role of an operand that is added to the product."""
_LARGEST_FACTOR = 12
"""Most that an operand is scaled by, as a power of two: normal random numbers stay below float16's largest number."""
_SUMS = frozenset({"", "add", "sub", "neg", "relu", "maximum", "minimum", "to_dtype"})


@dataclass(frozen=True)
class NumberCheck:
    """How a candidate's numbers are compared with those of the library kernel.

    Attributes:
        tolerance: Largest accepted errors.
        amplitudes: Factors of the random values of operands, powers of two, by their seed; 1 for all others.
        added: Seeds of the operands that are added to the product.
        factors: How many factors of the product are random: what multiplies each by 2^n, multiplies the product by 2^n
            so many times.
        large_values: Whether the candidate also runs on operands that are thousands of times as large,
            where a kernel that saturates shows. Not with an epilogue: sin(x) of a large x has no digits, and a clamp to
            0..6 makes 6 of 0 where the sum of a product has another sign.
        steep: Power of two for operands whose products are some hundreds, beyond float32's exp; used with an epilogue.
        unplanted: Seeds of operands without NaN: a filter, by which some kernels multiply the zeros of the padding.
    """

    tolerance: Tolerance
    amplitudes: tuple[tuple[int, float], ...] = ()
    added: frozenset[int] = frozenset()
    factors: int = 2
    large_values: bool = True
    steep: int = 3
    unplanted: frozenset[int] = frozenset()


def tolerance_of(problem: Problem, *, tf32: bool) -> Tolerance:
    """Return the largest accepted errors of a call; ``tf32`` as for `product_tolerance`."""
    accepted = product_tolerance(
        problem.output.dtype,
        problem.inputs[0].dtype if problem.inputs else problem.output.dtype,
        reduction_length(problem.op, own_operands(problem)),
        tf32=tf32,
    )
    if accepted.largest == 0.0 and problem.epilogue:
        return Tolerance(STEPPED, STEPPED)
    if accepted.largest == 0.0 and problem.op.startswith(_QUANTIZES):
        return Tolerance(STEPPED, STEPPED, steps=1.0)
    return replace(accepted, own_units=not problem.epilogue and not _goes_on(problem))


def _goes_on(problem: Problem) -> bool:
    """Return whether a library kernel computes another function of the product: of a few numbers, if relu makes a column zeros."""
    return any(name in _GOES_ON and text not in _NO_MORE for name, text in problem.arguments)


def added_operands(problem: Problem) -> tuple[int, ...]:
    """Return the indices of the operands that are added to the product.

    They are its C, and the operands of an epilogue that does nothing but add them and clamp the sum: larger
    factors of a product could overflow float16.
    """
    roles = own_roles(problem)
    operations = set(problem.epilogue.partition("-")[0].split("."))
    last = len(problem.inputs) if operations <= _SUMS else len(roles)
    return tuple(
        index
        for index, _ in enumerate(problem.inputs[:last])
        if roles and (index >= len(roles) or roles[index] == _ADDED)
    )


def bias_of(problem: Problem) -> int | None:
    """Return the index of a bias in floats, None if there is none.

    It is the operand that is added to a product as it is: no kernel repacks it, so it may have any numbers.
    """
    roles, layer = own_roles(problem), LINEAR.get(problem.op)
    index = layer.index("bias") if layer else roles.index(_ADDED) if _ADDED in roles else None
    if index is None or index >= len(problem.inputs):
        return None
    return index if "float" in problem.inputs[index].dtype else None


def amplitudes(
    problem: Problem, frozen: Collection[int] = (), shared: Collection[int] = ()
) -> dict[int, float]:
    """Return the factors of the random values of operands, by index; 1 for all others.

    Args:
        problem: The problem.
        frozen: Indices of operands with numbers of their own: weights, with which a product is about 1 as it is.
        shared: Indices of what is both factors, which cannot have a factor of its own.
    """
    size, beta = _product_size(problem, frozen), _scalar(problem, "beta")
    first = _scalable(problem, (*frozen, *shared))
    added = added_operands(problem) if first is None else ()
    wanted = dict.fromkeys(added, size) if first is None else {first: 1 / size}
    roles = own_roles(problem)
    if _ADDED in roles and beta != 1.0:
        index = roles.index(_ADDED)
        wanted[index] = wanted.get(index, 1.0) / beta
    return {index: _power(factor) for index, factor in wanted.items()}


def random_factors(problem: Problem, frozen: Collection[int]) -> int:
    """Return how many factors of a product are random; arguments as of `amplitudes`."""
    return max(1, 2 - len(_factors(problem) & set(frozen)))


def steepness(problem: Problem, frozen: Collection[int] = (), shared: Collection[int] = ()) -> int:
    """Return the power of two for operands whose products are about 256 then; arguments as of `amplitudes`."""
    is_scalable = _scalable(problem, (*frozen, *shared)) is not None
    size = 1.0 if is_scalable else _power(_product_size(problem, frozen))
    return round((8 - math.log2(size)) / random_factors(problem, frozen))


def _scalable(problem: Problem, fixed: Collection[int]) -> int | None:
    """Return which operand makes the product about 1, if an epilogue reads it and both factors are random."""
    known = _factors(problem)
    if not problem.epilogue or len(known) < 2 or not known.isdisjoint(fixed):
        return None
    dtypes = {problem.inputs[index].dtype for index in known}
    return min(known) if all("float" in dtype for dtype in dtypes) else None


def _product_size(problem: Problem, frozen: Collection[int]) -> float:
    """Return about how large a product of normal random numbers is, or of such numbers and a frozen weight."""
    alpha = _scalar(problem, "alpha")
    known = _factors(problem)
    if not known.isdisjoint(frozen):
        return alpha
    length = reduction_length(problem.op, own_operands(problem)) if known else 1
    return alpha * math.sqrt(max(length, 1))


def _scalar(problem: Problem, name: str) -> float:
    """Return the absolute value of a scalar argument; 1 if there is none, or if it leaves its operand out."""
    try:
        value = abs(float(dict(problem.arguments).get(name, "1")))
    except ValueError:
        return 1.0
    return value if math.isfinite(value) and value else 1.0


def _power(factor: float) -> float:
    """Return the nearest power of two that operands may be scaled by."""
    exponent = round(math.log2(factor)) if factor > 0 else 0
    return 2.0 ** min(max(exponent, -_LARGEST_FACTOR), _LARGEST_FACTOR)


def _factors(problem: Problem) -> frozenset[int]:
    """Return the indices of the two factors: of a convolution the image and the filters."""
    return frozenset((0, 1) if problem.op == "convolution" else factors(problem.op) or ())
