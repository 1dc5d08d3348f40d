"""Number formats that numpy lacks: bfloat16, tf32, e4m3 and e5m2, as bits.

PTX ISA, ``cvt`` and "Alternate Floating-Point Data Formats"; OCP 8-bit Floating Point Specification, revision 1.0.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import F16, F32, F64, U8, U16, U32, Array, flat

QUIET_NAN_16, QUIET_NAN_32 = 0x7FFF, 0x7FFFFFFF
"""What ``cvt`` writes for NaN in 16 bits, and as tf32, whatever the NaN."""


def bf16_to_f32(bits: Array) -> Array:
    """Return bfloat16 as float32, exactly."""
    return (bits.astype(U32) << 16).view(F32)


def f16_to_f32(bits: Array) -> Array:
    """Return float16 as float32, exactly."""
    return flat(bits).view(F16).astype(F32)


def f32_to_bf16(values: Any, rounding: str = "rn") -> Array:
    """Return float32 rounded to bfloat16: ``rn`` to the nearest, ties to even; ``rz`` toward zero."""
    bits = flat(np.asarray(values, F32)).view(U32)
    rounded = bits >> 16 if rounding == "rz" else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(bits.view(F32)), QUIET_NAN_16, rounded).astype(U16)


def f32_to_f16(values: Any, rounding: str = "rn") -> Array:
    """Return float32 (or float64) rounded to float16, as `f32_to_bf16`."""
    values = np.asarray(values)
    rounded = values.astype(F16)
    if rounding == "rz":
        too_large = np.abs(rounded.astype(F64)) > np.abs(values.astype(F64))
        # One step toward zero: the bits of a magnitude are in its order.
        rounded = np.where(too_large, (rounded.view(U16) - 1).astype(U16), rounded.view(U16)).view(
            F16
        )
    return np.where(np.isnan(values), QUIET_NAN_16, rounded.view(U16)).astype(U16)


def to_tf32(bits: Array, rounding: str = "rna") -> Array:
    """Return float32 bits rounded to 10 bits of mantissa: ``rna`` ties away from zero, ``rn`` to even, ``rz``."""
    size = bits & 0x7FFFFFFF
    infinite, nan = size == 0x7F800000, size > 0x7F800000
    if rounding == "rna":
        rounded = bits + 0x1000
    elif rounding == "rn":
        rounded = bits + 0xFFF + ((bits >> 13) & 1)
    else:
        rounded = bits
    number = np.where(infinite, bits, rounded) & U32(0xFFFFE000)
    return np.where(nan, U32(QUIET_NAN_32), number)


def _decoded(exponent_bits: int, bias: int, *, infinities: bool) -> Array:
    """Return the value of each of the 256 codes of an 8-bit float."""
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(256)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    if infinities:
        top = exponent == (1 << exponent_bits) - 1
        size = np.where(top, np.where(fraction == 0, np.inf, np.nan), size)
    else:
        size = np.where(codes & 0x7F == 0x7F, np.nan, size)
    return np.where(codes & 0x80, -size, size).astype(F32)


FLOAT8 = {
    "e4m3": _decoded(4, 7, infinities=False),
    "e5m2": _decoded(5, 15, infinities=True),
}
"""The float32 of each code."""

_LARGEST = {"e4m3": 0x7E, "e5m2": 0x7B}
_MANTISSA = {"e4m3": 3, "e5m2": 2}
_LEAST_EXPONENT = {"e4m3": -6, "e5m2": -14}


def f32_to_float8(values: Any, kind: str) -> Array:
    """Return e4m3 or e5m2 codes as ``cvt.rn.satfinite`` does.

    Rounds to the nearest, ties to even; what is larger than the largest finite number, infinities too, becomes
    that number; NaN becomes 0x7F.
    """
    wide = np.asarray(values, F64)
    largest = float(FLOAT8[kind][_LARGEST[kind]])
    size = np.nan_to_num(np.minimum(np.abs(wide), largest))
    _, exponent = np.frexp(size)
    step = np.exp2(np.maximum(exponent - 1, _LEAST_EXPONENT[kind]) - _MANTISSA[kind])
    rounded = np.minimum(np.rint(size / step) * step, largest).astype(F32)
    codes = np.searchsorted(FLOAT8[kind][: _LARGEST[kind] + 1], rounded).astype(U8)
    signed = codes | (np.signbit(wide).astype(U8) << 7)
    return np.where(np.isnan(wide), U8(0x7F), signed)


def float8_to_f32(codes: Array, kind: str) -> Array:
    """Return the float32 of e4m3 or e5m2 codes, exactly."""
    return FLOAT8[kind][codes]


def pair(high: Array, low: Array) -> Array:
    """Return two 16-bit halves as one 32-bit value."""
    return high.astype(U32) << 16 | low.astype(U32)


def halves(word: Array) -> tuple[Array, Array]:
    """Return the low and the high 16 bits of 32."""
    return word.astype(U16), (word >> 16).astype(U16)


def pair8(high: Any, low: Any, kind: str) -> Array:
    """Return two float32 as two 8-bit floats in 16 bits."""
    return f32_to_float8(high, kind).astype(U16) << 8 | f32_to_float8(low, kind)
