"""Operations of an epilogue of a CUTLASS kernel, as C++ over float32 values.

They are the functions Inductor's Triton kernels call (libdevice's exact ones), not CUTLASS's
activations: those use tanh.approx, off by 2^-11, and their hardswish and relu6 lose NaN.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["number", "truth"]
"""Kind of a value: a float32, or the result of a comparison."""


@dataclass(frozen=True)
class Functor:
    """One operation on single values.

    Attributes:
        text: C++, with ``{0}``, ``{1}`` ... for its arguments.
        takes: Kinds of its arguments.
        gives: Kind of its result.
    """

    text: str
    takes: tuple[Kind, ...] = ("number",)
    gives: Kind = "number"


_TWO: tuple[Kind, ...] = ("number", "number")
_TRUTHS: tuple[Kind, ...] = ("truth", "truth")

FUNCTORS: dict[str, Functor] = {
    "add": Functor("{0} + {1}", _TWO),
    "sub": Functor("{0} - {1}", _TWO),
    "mul": Functor("{0} * {1}", _TWO),
    "truediv": Functor("{0} / {1}", _TWO),
    # NaN if either is, as in torch; fmaxf would return the other.
    "maximum": Functor("cutlass::maximum<float, true>{{}}({0}, {1})", _TWO),
    "minimum": Functor("cutlass::minimum<float, true>{{}}({0}, {1})", _TWO),
    "relu": Functor("cutlass::maximum<float, true>{{}}({0}, 0.0f)"),
    "neg": Functor("-{0}"),
    "abs": Functor("fabsf({0})"),
    "square": Functor("{0} * {0}"),
    "reciprocal": Functor("1.0f / {0}"),
    "sqrt": Functor("sqrtf({0})"),
    "rsqrt": Functor("1.0f / sqrtf({0})"),
    "exp": Functor("expf({0})"),
    "expm1": Functor("expm1f({0})"),
    "log": Functor("logf({0})"),
    "log1p": Functor("log1pf({0})"),
    "sigmoid": Functor("1.0f / (1.0f + expf(-{0}))"),
    "tanh": Functor("tanhf({0})"),
    "erf": Functor("erff({0})"),
    # Ties to even, as torch.round.
    "round": Functor("nearbyintf({0})"),
    "floor": Functor("floorf({0})"),
    "ceil": Functor("ceilf({0})"),
    "trunc": Functor("truncf({0})"),
    "lt": Functor("{0} < {1}", _TWO, "truth"),
    "le": Functor("{0} <= {1}", _TWO, "truth"),
    "gt": Functor("{0} > {1}", _TWO, "truth"),
    "ge": Functor("{0} >= {1}", _TWO, "truth"),
    "eq": Functor("{0} == {1}", _TWO, "truth"),
    "ne": Functor("{0} != {1}", _TWO, "truth"),
    "logical_and": Functor("{0} && {1}", _TRUTHS, "truth"),
    "logical_or": Functor("{0} || {1}", _TRUTHS, "truth"),
    "bitwise_and": Functor("{0} && {1}", _TRUTHS, "truth"),
    "bitwise_or": Functor("{0} || {1}", _TRUTHS, "truth"),
    "logical_not": Functor("!{0}", ("truth",), "truth"),
    "where": Functor("{0} ? {1} : {2}", ("truth", "number", "number")),
    "number": Functor("{0} ? 1.0f : 0.0f", ("truth",)),
}
"""By the name in Inductor's ``ops``; ``number`` is ``to_dtype`` of a truth value."""

MONOTONE = frozenset({"round", "floor", "ceil", "trunc"})
"""Functions of one number that keep it between the same two integers."""

_WITHIN: dict[str, tuple[float, float]] = {
    "sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "number": (0.0, 1.0),
}

Bounds: TypeAlias = tuple[float, float]
ANY: Bounds = (-math.inf, math.inf)


def bounds(op: str, arguments: list[Bounds]) -> Bounds:
    """Return the interval of a result that is not NaN.

    Args:
        op: A name of `FUNCTORS`.
        arguments: Intervals of the arguments.
    """
    if op in _WITHIN:
        return _WITHIN[op]
    if op in MONOTONE:
        low, high = arguments[0]
        return math.floor(low) if math.isfinite(low) else low, (
            math.ceil(high) if math.isfinite(high) else high
        )
    if op in ("maximum", "minimum"):
        pick = max if op == "maximum" else min
        return pick(arguments[0][0], arguments[1][0]), pick(arguments[0][1], arguments[1][1])
    if op == "relu":
        return max(arguments[0][0], 0.0), max(arguments[0][1], 0.0)
    if op == "where":
        value, other = arguments[1:]
        return min(value[0], other[0]), max(value[1], other[1])
    return ANY


def literal(value: float) -> str:
    """Return a float32 constant in C++."""
    if math.isnan(value):
        return "NAN"
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "(-INFINITY)"
    text = f"{rounded:.9g}"
    text = text if any(mark in text for mark in ".e") else f"{text}.0"
    return f"{text}f" if rounded >= 0 and not text.startswith("-") else f"({text}f)"
