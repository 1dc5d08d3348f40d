"""Largest accepted difference between a candidate's output and the library kernel's. Pure.

Both kernels round differently, so this bounds the *difference of two roundings*, relative to the root
mean square of the reference: with random operands all outputs have the same magnitude, so that one
number is meaningful for the whole tensor. The largest difference has to leave room for the worst of
millions of numbers; the root mean square of all differences has not, and shows what the largest hides:
a missing bias, or a factor of 1.01.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2fnuz": 2.0**-3,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    "complex32": 2.0**-11,
    "bcomplex32": 2.0**-8,
}
_TF32_ROUNDOFF = 2.0**-11
_NARROW_SUMS = 2.0**-9
"""Error of sums: Hopper's tensor cores keep 14 bits of sums of 8-bit products (DeepSeek-V3, arXiv
2412.19437, 3.3.2)."""
_NARROW_SUMS_SPREAD = 2.0**-11
STEPPED = 0.1
"""Accepted for integers and truth values computed from a product of floats: a value next to a threshold
may fall on either side of it. Their errors are root mean squares (`worker.child.comparison`): one element of
a mask in 200 may differ; two unrelated masks are 1.0 apart."""
_OUTPUT_ULPS = 16.0
"""An output of 4 standard deviations rounds in units 4 times those of the root mean square, in both
kernels (8); twice that for an epilogue's intermediate rounding."""
_OUTPUT_SPREAD = 2.0
"""Two independent roundings of normal numbers differ by 0.6 units, root mean square; partial sums of 8
slices added in the output's type by 1.4. An error of 1 % is 2.6 units of bfloat16."""
_NARROW_OUTPUT_SPREAD = 0.75
"""The same for 8 bits, which are rounded once: an error of 10 % is 1.7 units of float8_e4m3fn with its
rounding, and 0.99 of float8_e5m2."""
_DRIFT = 0.125
"""Part of the output's share of the spread that the mean of a line's errors may reach: roundings to nearest have none.
A forgotten bias of 1 is four times as much in bfloat16 beside a product of 65,536 terms, and 2.7 times as much in
float8_e4m3fn beside one of 4,096."""
_TRUNCATED = 4.0
"""Units of TF32 by which a product may be off: both operands may be truncated, by two units each at most."""


@dataclass(frozen=True)
class Tolerance:
    """Largest accepted errors, relative to the root mean square of the reference.

    Attributes:
        largest: Of any number, beyond ``rounding``.
        spread: Of all numbers, and of each row, column and batch: the root mean square of their errors.
        rounding: Relative to each number: as much as its two roundings to the output's type may differ. With a scale
            for each row, some numbers of a product are 30 times as large as their root mean square.
        drift: Of each row, column and batch: the mean of their errors, beyond what random errors explain.
        own_units: Whether the errors of a line are relative to the scales of rows and columns, however small; not with an
            epilogue: sigmoid(-20) of two roundings differs by a tenth.
        steps: Largest difference of two integers, as a number: a zero point of 128 makes their root mean square large.
    """

    largest: float
    spread: float
    rounding: float = 0.0
    drift: float = math.inf
    own_units: bool = False
    steps: float = math.inf

    def of_type(self, dtype: str) -> Tolerance:
        """Return the largest accepted errors of a further output of a kernel, of another type perhaps."""
        if dtype not in _UNIT_ROUNDOFF:
            return Tolerance(STEPPED, STEPPED)
        own = product_tolerance(dtype, dtype, 1, tf32=False)
        return Tolerance(
            max(self.largest, own.largest),
            max(self.spread, own.spread),
            own.rounding,
            max(self.drift, own.drift),
        )


def product_tolerance(
    output_dtype: str, input_dtype: str, reduction: int, *, tf32: bool
) -> Tolerance:
    """Return the largest accepted errors of a product; the arguments are those of `tolerance`."""
    largest = tolerance(output_dtype, input_dtype, reduction, tf32=tf32)
    unit = _UNIT_ROUNDOFF.get(output_dtype)
    if unit is None:
        return Tolerance(largest, largest)
    narrow = output_dtype.startswith("float8")
    truncated = tf32 and input_dtype == "float32"
    # The rounding of one factor is that of a whole row of products; it averages out over many terms.
    operand = 2.0 * _TF32_ROUNDOFF * (1 + max(reduction, 1) ** -0.5) if truncated else 0.0
    if input_dtype.startswith("float8"):
        operand = _NARROW_SUMS_SPREAD
    others = operand + 2.0 * max(reduction, 1) ** 0.5 * _summing_unit(output_dtype)
    own = (_NARROW_OUTPUT_SPREAD if narrow else _OUTPUT_SPREAD) * unit
    return Tolerance(
        largest,
        own + others,
        rounding=2.0 * unit + (_TRUNCATED * _TF32_ROUNDOFF if truncated else 0.0),
        drift=_DRIFT * own + others,
    )


def tolerance(output_dtype: str, input_dtype: str, reduction: int, *, tf32: bool) -> float:
    """Return the largest accepted error, relative to the root mean square of the reference.

    Args:
        output_dtype: Type the kernel writes, without ``torch.``.
        input_dtype: Type of its operands.
        reduction: Length of the longest dot product.
        tf32: True if float32 operands may be rounded to TF32.

    Returns:
        0.0 for integers, which have to agree exactly.
    """
    unit = _UNIT_ROUNDOFF.get(output_dtype)
    if unit is None:
        return 0.0
    operand = _TF32_ROUNDOFF if tf32 and input_dtype == "float32" else 0.0
    # A sum of k terms rounded in float32 in another order moves by about sqrt(k) units (Higham,
    # Accuracy and Stability, 4.2); 8 covers the maximum over millions of outputs.
    summed = 8.0 * max(reduction, 1) ** 0.5 * _summing_unit(output_dtype)
    narrow = _NARROW_SUMS if input_dtype.startswith("float8") else 0.0
    return _OUTPUT_ULPS * unit + 8.0 * operand + narrow + summed


def _summing_unit(output_dtype: str) -> float:
    """Return the unit in which a product is summed: float32's, float64's for results of that type."""
    return min(_UNIT_ROUNDOFF["float32"], _UNIT_ROUNDOFF[output_dtype])


_ATTENTION_ORDER = 32.0
"""Units of float32 by which two orders of summation, or two implementations of exp2, may differ: Triton
kernels in the interpreter differ from float64 by 8e-7 at most with float32 operands."""
_NARROW_WEIGHTS = 3.0 * _UNIT_ROUNDOFF["float8_e4m3fn"]
"""Weights rounded to 3 bits of mantissa have a relative error of 0.0265, root mean square, and of one
unit at most. So has their sum, in units of its row's scale; 3 units are 7 times that, for the worst number
of a row with few keys."""
_NARROW_SPREAD = 1.5 * 0.0265
"""The same for the root mean square of all numbers: an output that is 5 % too large exceeds it."""
_ATTENTION_TIMES = 2.0
"""A candidate may be this many times as far from float64 as the library kernel is."""


@dataclass(frozen=True)
class Bound:
    """Largest accepted error of an attention's output.

    Attributes:
        relative: In units of its row's scale, the root of the sum of squares of the summands.
        unit: In units of each number itself: it is rounded once when it is written.
        spread: Root mean square of the errors of all numbers, beyond that rounding, as ``relative``.
    """

    relative: float
    unit: float
    spread: float = math.inf

    def __add__(self, other: Bound) -> Bound:
        """Return the largest difference of two kernels that keep one bound each."""
        return Bound(self.relative + other.relative, self.unit + other.unit)


def attention_bound(
    library_error: float | None,
    *,
    output_dtype: str,
    input_dtype: str,
    reduction: int,
    tf32: bool,
) -> Bound:
    """Return the largest accepted error of a candidate against float64, from that of the library kernel.

    Args:
        library_error: The library kernel's largest error beyond the rounding of its output, in units
            of the row's scale; None if it has no such output, or a wrong one: then the bound for any
            two kernels is used, `tolerance`, which is also the largest that is ever accepted.
        output_dtype: Type the kernel writes, without ``torch.``.
        input_dtype: Type of q, k and v. With 8 bits a kernel may round the weights to 8 bits, whatever
            the library kernel does; lse, float32, is computed from weights before that.
        reduction: Keys of a query.
        tf32: True if float32 operands may be rounded to TF32.
    """
    unit = _UNIT_ROUNDOFF.get(output_dtype, 0.0)
    if input_dtype.startswith("float8"):
        if output_dtype == "float32":
            return Bound(_NARROW_SUMS, unit, _NARROW_SUMS_SPREAD)
        return Bound(_NARROW_SUMS + _NARROW_WEIGHTS, unit, _NARROW_SPREAD)
    if library_error is None:
        # lse is float32, but if q is not, ATen's lse on a CPU is off by 5.5e-5: a faster exp.
        return Bound(2.0 * tolerance(input_dtype, input_dtype, reduction, tf32=tf32), unit)
    wide = "float64" if input_dtype == "float64" else "float32"
    floor = _ATTENTION_ORDER * _UNIT_ROUNDOFF[wide]
    floor += 8.0 * _TF32_ROUNDOFF if tf32 and input_dtype == "float32" else 0.0
    return Bound(_ATTENTION_TIMES * library_error + floor, unit)
