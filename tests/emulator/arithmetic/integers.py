"""Integer operations that numpy lacks. Arrays have the type whose width and sign the operation has."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U8, U32, U64, Array, flat

_ONES_64 = ~U64(0)


def bits_of(values: Array) -> int:
    """Return the width of the numbers."""
    return values.dtype.itemsize * 8


def shift_left(values: Array, count: Array) -> Array:
    """Return values << count; 0 from a count of their width on."""
    bits = bits_of(values)
    kept = (count & (bits - 1)).astype(values.dtype)
    return np.where(count < bits, values << kept, values.dtype.type(0))


def shift_right(values: Array, count: Array) -> Array:
    """Return values >> count; from a count of their width on, all bits are the sign."""
    bits = bits_of(values)
    if values.dtype.kind == "i":
        return values >> np.minimum(count, bits - 1).astype(values.dtype)
    kept = (count & (bits - 1)).astype(values.dtype)
    return np.where(count < bits, values >> kept, values.dtype.type(0))


def funnel_left(low: Array, high: Array, count: Any, *, wrap: bool) -> Array:
    """Return the upper half of (high, low) << count; the count is taken modulo 32, or limited to 32."""
    both = high.astype(U64) << U64(32) | low.astype(U64)
    amount = count & U32(31) if wrap else np.minimum(count, U32(32))
    return ((both << amount.astype(U64)) >> U64(32)).astype(U32)


def funnel_right(low: Array, high: Array, count: Any, *, wrap: bool) -> Array:
    """Return the lower half of (high, low) >> count, as `funnel_left`."""
    both = high.astype(U64) << U64(32) | low.astype(U64)
    amount = count & U32(31) if wrap else np.minimum(count, U32(32))
    return (both >> amount.astype(U64)).astype(U32)


def divide(a: Array, b: Array) -> Array:
    """Return a / b toward zero; all ones where b is 0, which PTX leaves open and GPUs do."""
    a, b = np.broadcast_arrays(a, b)
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a // np.where(b == 0, b.dtype.type(1), b))
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = a // safe
    toward_zero = floor + ((floor * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, a.dtype.type(-1), toward_zero).astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """Return a - (a / b) * b, with the sign of a."""
    return (a - divide(a, b) * b).astype(np.asarray(a).dtype)


def multiply_high(a: Array, b: Array) -> Array:
    """Return the upper half of the product of twice the width."""
    a, b = np.broadcast_arrays(a, b)
    kind = a.dtype
    signed = kind.kind == "i"
    if kind.itemsize < 8:
        wide = I64 if signed else U64
        return (a.astype(wide) * b.astype(wide) >> wide(8 * kind.itemsize)).astype(kind)
    x, y = flat(a).view(U64), flat(b).view(U64)
    mask, half = U64(0xFFFFFFFF), U64(32)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + (x_low * y_low >> half)
    other = x_low * y_high + (middle & mask)
    high = x_high * y_high + (middle >> half) + (other >> half)
    if signed:
        high = high - np.where(a < 0, y, U64(0)) - np.where(b < 0, x, U64(0))
    return high.view(kind)


def sad(a: Array, b: Array, c: Array) -> Array:
    """Return c + |a - b|."""
    return (c + np.where(a > b, a - b, b - a)).astype(c.dtype)


def lop3(a: Array, b: Array, c: Array, table: int) -> Array:
    """Return a logical function of three words; bit 4a + 2b + c of the table is its value."""
    result = np.zeros_like(a)
    for i in range(8):
        if table >> i & 1:
            result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return result


def permute(a: Array, b: Array, selector: Any, mode: str = "") -> Array:
    """Return four bytes of the eight of (b, a), chosen by ``prmt``'s selector in one of its modes."""
    count = len(a)
    data = np.empty((count, 8), U8)
    data[:, :4] = flat(a).view(U8).reshape(count, 4)
    data[:, 4:] = flat(b).view(U8).reshape(count, 4)
    chosen = np.broadcast_to(np.asarray(selector, U32), (count,)).astype(I64)
    result = np.empty((count, 4), U8)
    rows = np.arange(count)
    for i in range(4):
        if mode:
            result[:, i] = data[rows, _byte_of_mode(mode, chosen & 3, i)]
            continue
        nibble = chosen >> (4 * i) & 15
        byte = data[rows, nibble & 7]
        sign = np.where(byte & U8(0x80), U8(0xFF), U8(0))
        result[:, i] = np.where(nibble & 8, sign, byte)
    return result.reshape(-1).view(U32)


def _byte_of_mode(mode: str, k: Array, i: int) -> Array:
    if mode == "f4e":
        return k + i
    if mode == "b4e":
        return (k - i) & 7
    if mode == "rc8":
        return k
    if mode == "ecl":
        return np.maximum(k, i)
    if mode == "ecr":
        return np.minimum(k, i)
    return (k & 1) * 2 + (i & 1)  # rc16


def extract(values: Array, start: Any, length: Any) -> Array:
    """Return a field of bits (``bfe``); the sign of a signed one is repeated, from its last bit that is there."""
    bits = bits_of(values)
    start, length = np.asarray(start).astype(I64) & 0xFF, np.asarray(length).astype(I64) & 0xFF
    if values.dtype.kind == "u":
        mask = (U64(1) << np.minimum(length, 63).astype(U64)) - U64(1)
        mask = np.where(length >= 64, _ONES_64, mask)
        moved = values.astype(U64) >> np.minimum(start, 63).astype(U64)
        return np.where(start >= bits, U64(0), moved & mask).astype(values.dtype)
    top = np.minimum(start + length - 1, bits - 1)
    count = np.maximum(top - start + 1, 0)
    moved = values.astype(I64) >> np.minimum(start, 63)
    field = (moved << (64 - np.maximum(count, 1))) >> (64 - np.maximum(count, 1))
    sign = np.where(values < 0, I64(-1), I64(0))
    field = np.where(count > 0, field, sign)
    return np.where(length == 0, I64(0), field).astype(values.dtype)


def insert(a: Array, b: Array, start: Any, length: Any) -> Array:
    """Return b with a field of bits replaced by the lowest bits of a (``bfi``)."""
    bits = bits_of(b)
    start = np.asarray(start).astype(U64) & U64(0xFF)
    length = np.asarray(length).astype(U64) & U64(0xFF)
    ones = np.where(length >= 64, _ONES_64, (U64(1) << np.minimum(length, U64(63))) - U64(1))
    moved = np.minimum(start, U64(63))
    mask = np.where(start >= bits, U64(0), ones << moved)
    result = b.astype(U64) & ~mask | (a.astype(U64) << moved) & mask
    return result.astype(b.dtype)


def leading_zeros(values: Array) -> Array:
    """Return how many of the highest bits are 0, as uint32."""
    bits = bits_of(values)
    wide = values.astype(U64) & U64((1 << bits) - 1)
    result = np.full(values.shape, bits, U32)
    for i in range(bits):
        result[(wide >> U64(i) & U64(1)) == 1] = bits - 1 - i
    return result


def find_highest(values: Array, *, shift_amount: bool) -> Array:
    """Return the place of the highest bit that is not the sign, or how far it is from the top; all ones if none."""
    bits = bits_of(values)
    plain = np.where(values < 0, ~values, values) if values.dtype.kind == "i" else values
    leading = leading_zeros(plain)
    place = leading if shift_amount else U32(bits - 1) - leading
    return np.where(leading == bits, U32(0xFFFFFFFF), place)


def count_ones(values: Array) -> Array:
    """Return how many bits are 1, as uint32."""
    return np.bitwise_count(values).astype(U32)


def reverse(values: Array) -> Array:
    """Return the bits in the opposite order."""
    bits = bits_of(values)
    wide = values.astype(U64)
    result = np.zeros_like(wide)
    for i in range(bits):
        result |= (wide >> U64(i) & U64(1)) << U64(bits - 1 - i)
    return result.astype(values.dtype)


def dot4(a: Array, b: Array, c: Array, *, signed_a: bool, signed_b: bool) -> Array:
    """Return c + the products of four bytes each (``dp4a``), as uint32."""
    count = len(a)
    x = flat(a).view(np.int8 if signed_a else U8).reshape(count, 4).astype(I64)
    y = flat(np.broadcast_to(b, a.shape)).view(np.int8 if signed_b else U8).reshape(count, 4)
    return ((x * y).sum(1) + c).astype(I64).astype(U32)


def limited(values: Array, kind: str) -> Array:
    """Return integers within the range of another type (``cvt.sat``)."""
    limits = np.iinfo(kind)
    own = np.iinfo(values.dtype)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    return np.clip(values, low, high).astype(kind)


def add_saturated(a: Array, b: Array) -> Array:
    """Return a + b of int32, limited to its range (``add.sat.s32``)."""
    return limited(a.astype(I64) + b.astype(I64), "int32")


def subtract_saturated(a: Array, b: Array) -> Array:
    """Return a - b of int32, limited to its range (``sub.sat.s32``)."""
    return limited(a.astype(I64) - b.astype(I64), "int32")


def packed(a: Array, b: Array, rest: Any, kind: str) -> Array:
    """Return two integers limited to a narrow kind, ``b`` in the lowest bits and ``a`` above it, below the low bits of ``rest``."""
    bits, signed = int(kind[1:]), kind[0] == "s"
    low = -(1 << bits - 1) if signed else 0
    parts = [
        np.clip(np.asarray(x, I64), low, low + (1 << bits) - 1) & (1 << bits) - 1 for x in (b, a)
    ]
    both = parts[0] | parts[1] << bits | np.asarray(rest, I64) << 2 * bits
    return (both & 0xFFFFFFFF).astype(U32)
