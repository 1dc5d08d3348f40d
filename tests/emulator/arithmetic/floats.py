"""Arithmetic of floats where numpy's is not what PTX describes.

A fused multiply-add rounds once. It is computed in float64: the product of two float32 is exact there; the sum is
rounded to odd (toward the neighbour whose last bit is 1 unless it is exact), after which rounding to a shorter format
is as if there had been no first rounding (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import F16, F32, F64, I64, U32, U64, Array, flat
from tests.emulator.arithmetic.formats import QUIET_NAN_32, f32_to_bf16, f32_to_f16


def _sum_to_odd(a: Array, b: Array) -> Array:
    """Return a + b in float64, rounded to odd."""
    total = np.asarray(a + b, F64)
    back = total - a
    error = (a - (total - back)) + (b - back)
    bits = flat(total).view(U64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & U64(1)) == 0)
    if not inexact.any():
        return total
    # The neighbour toward the exact sum: away from zero if the error has the sign of the sum.
    outward = (error > 0) == (total > 0)
    odd = np.where(outward, bits + U64(1), bits - U64(1))
    return np.where(inexact, odd, bits).view(F64)


def fma(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c of float32, rounded once."""
    product = np.asarray(a, F64) * np.asarray(b, F64)
    return _sum_to_odd(product, np.asarray(c, F64)).astype(F32)


def fma_directed(a: Any, b: Any, c: Any, rounding: str) -> Array:
    """Return a * b + c of float32, rounded once: down (``rm``), up (``rp``) or toward zero (``rz``)."""
    product, addend = np.asarray(a, F64) * np.asarray(b, F64), np.asarray(c, F64)
    exact = _sum_to_odd(product, addend)
    if rounding == "rz":
        return toward_zero(exact)
    near = exact.astype(F32)
    beyond = near > exact if rounding == "rm" else near < exact
    end = F32(-np.inf if rounding == "rm" else np.inf)
    result = np.where(beyond, np.nextafter(near, end), near)
    # A sum that cancels is -0 where it is rounded down; zeros of one sign keep it.
    cancels = (exact == 0) & (np.signbit(product) != np.signbit(addend))
    return np.where(cancels, F32(-0.0), result) if rounding == "rm" else result


def fma_f64(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c of float64. Rounded twice: the last bit may differ from a GPU's."""
    return np.asarray(np.asarray(a, F64) * b + c, F64)


def fma_f16(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c of float16 values held in float32, rounded once, as float16 bits."""
    product = np.asarray(a, F64) * np.asarray(b, F64)
    return f32_to_f16(_sum_to_odd(product, np.asarray(c, F64)))


def fma_bf16(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c of bfloat16 values held in float32, rounded once, as bfloat16 bits."""
    product = np.asarray(a, F64) * np.asarray(b, F64)
    return f32_to_bf16(f32_to_odd(_sum_to_odd(product, np.asarray(c, F64))))


def f32_to_odd(values: Array) -> Array:
    """Return float64 as float32, rounded to odd."""
    near = values.astype(F32)
    bits = flat(near).view(U32)
    wide = near.astype(F64)
    inexact = (wide != values) & np.isfinite(wide) & ((bits & U32(1)) == 0)
    outward = np.abs(values) > np.abs(wide)
    odd = np.where(outward, bits + U32(1), bits - U32(1))
    return np.where(inexact, odd, bits).view(F32)


def saturated(values: Any) -> Array:
    """Return values within 0 and 1, NaN as 0, as ``.sat`` does."""
    limited = np.clip(values, 0, 1)
    return np.where(np.isnan(limited), limited.dtype.type(0), limited)


def relu(values: Any) -> Array:
    """Return values that are not negative, NaN as NaN, as ``.relu`` does."""
    return np.maximum(values, np.asarray(values).dtype.type(0))


_LARGEST = {
    "f16": np.finfo(F16).max,
    "bf16": np.array(0x7F7F0000, U32).view(F32)[()],
    "tf32": np.array(0x7F7FE000, U32).view(F32)[()],
}


def finite(values: Any, kind: str) -> Array:
    """Return values within the finite numbers of a PTX type, NaN as NaN, as ``.satfinite`` does before it rounds."""
    largest = np.asarray(values).dtype.type(_LARGEST[kind])
    return np.clip(values, -largest, largest)


def minimum(a: Any, b: Any, *, nan: bool = False) -> Array:
    """Return the smaller of two floats; -0 is smaller than +0.

    Args:
        a: Floats.
        b: Floats.
        nan: Whether the result is NaN where one is (``.NaN``); else it is the other one, and NaN where both are.
    """
    return _extreme(a, b, np.fmin(a, b), smaller=True, nan=nan)


def maximum(a: Any, b: Any, *, nan: bool = False) -> Array:
    """Return the larger of two floats, as `minimum`; +0 is larger than -0."""
    return _extreme(a, b, np.fmax(a, b), smaller=False, nan=nan)


_NAN = np.array(QUIET_NAN_32, U32).view(F32)[()]
"""The NaN that instructions make of float32, whatever NaN they read."""


def _extreme(a: Any, b: Any, result: Array, *, smaller: bool, nan: bool) -> Array:
    zeros = (result == 0) & (np.signbit(a) != np.signbit(b)) & (np.asarray(a) == b)
    if zeros.any():
        result = np.where(zeros, result.dtype.type(-0.0 if smaller else 0.0), result)
    absent = np.isnan(a) | np.isnan(b) if nan else np.isnan(result)
    if not absent.any():
        return result
    return np.where(absent, _NAN if result.dtype == F32 else F64(np.nan), result)


_ROUND = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def to_whole(values: Array, rounding: str) -> Array:
    """Return floats rounded to whole numbers, of the same type."""
    return _ROUND[rounding](values)


def to_integer(values: Array, kind: str, rounding: str) -> Array:
    """Return floats as integers of a numpy type: limited to its range, NaN as 0.

    PTX documents 0 for NaN for 32 bits and less, and 0x8000000000000000 for 64.
    """
    limits = np.iinfo(kind)
    wide = np.asarray(values, F64)
    whole = _ROUND[rounding](np.nan_to_num(wide, nan=0.0, posinf=1e300, neginf=-1e300))
    below, above = whole <= float(limits.min), whole >= float(limits.max)
    inside = np.where(below | above, 0, whole).astype(kind)
    limited = np.where(below, limits.min, np.where(above, limits.max, inside)).astype(kind)
    if limits.bits < 64:
        return limited
    indefinite = np.array(1 << 63, U64).astype(U64).view(I64 if limits.min else U64)
    return np.where(np.isnan(wide), indefinite, limited)


def toward_zero(values: Array, kind: str = "float32") -> Array:
    """Return float64 or integers as float32 or float64 (a numpy type), rounded toward zero."""
    # A longdouble of x86 has the 64 bits of an integer, a float64 has not.
    is_long = values.dtype.kind in "iu" and values.dtype.itemsize == 8
    wide = np.longdouble if is_long else F64
    near = values.astype(kind)
    too_large = np.abs(near.astype(wide)) > np.abs(values.astype(wide))
    return np.where(too_large, np.nextafter(near, near.dtype.type(0)), near)
