"""Matrix fragments in the registers of a warp, and operands' bytes as numbers.

A register of A or B holds 4 bytes along K; an accumulator's two neighbouring columns. Lane 4 * row + place (PTX ISA,
"Matrix fragments for mma.m16n8k16" and its neighbours).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import F16, F32, F64, U8, U16, U32, Array, flat
from tests.emulator.arithmetic.formats import FLOAT8, bf16_to_f32
from tests.emulator.fault import UnmodelledError

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}
"""Bytes of an operand's element, by its PTX type."""

_TF32_MASK = U32(0xFFFFE000)


def numbers(data: Array, kind: str) -> Array:
    """Return raw bytes as numbers: float32, or float64 for whole numbers, whose sums are exact up to 2^53.

    Raises:
        UnmodelledError: The type is not known.
    """
    data = flat(data)
    if kind == "bf16":
        return bf16_to_f32(data.view(U16))
    if kind == "f16":
        return data.view(F16).astype(F32)
    if kind == "tf32":  # tensor cores ignore the lowest 13 bits
        return (data.view(U32) & _TF32_MASK).view(F32)
    if kind == "s8":
        return data.view(np.int8).astype(F64)
    if kind == "u8":
        return data.view(U8).astype(F64)
    if kind in FLOAT8:
        return FLOAT8[kind][data.view(U8)]
    raise UnmodelledError(f"operands of type {kind} are not known")


def left(registers: Sequence[Array], kind: str) -> Array:
    """Return A of ``mma`` from its registers, each [warps * 32]: [warps, 16, K] (8 rows if it is one register)."""
    rows = 2 if len(registers) > 1 else 1
    data = np.concatenate(registers).reshape(len(registers) // rows, rows, -1, 8, 4)
    data = flat(data.transpose(2, 1, 3, 0, 4))  # warp, half of the rows, row, piece of K, place
    return numbers(data.view(U8), kind).reshape(len(data), rows * 8, -1)


def right(registers: Sequence[Array], kind: str) -> Array:
    """Return B of ``mma`` from its registers: [warps, K, 8]."""
    data = np.concatenate(registers).reshape(len(registers), -1, 8, 4)
    data = flat(data.transpose(1, 2, 0, 3))
    return numbers(data.view(U8), kind).reshape(len(data), 8, -1).transpose(0, 2, 1)


def accumulator(registers: Sequence[Any], kind: str, warps: int) -> Array:
    """Return C of an ``mma`` with 8 columns as [warps, 16, 8], float32 or int32."""
    data = np.concatenate(registers)
    if kind == "f16":
        half = data.view(F16).reshape(2, warps, 8, 4, 2).transpose(1, 0, 2, 3, 4)
        return half.reshape(warps, 16, 8).astype(F32)
    words = data.view(np.int32 if kind == "s32" else F32)
    return words.reshape(2, 2, warps, 8, 4).transpose(2, 0, 3, 4, 1).reshape(warps, 16, 8)


def result(total: Array, kind: str) -> list[Array]:
    """Return D [warps, 16, 8] as registers, the opposite of `accumulator`."""
    warps = len(total)
    if kind == "f16":
        half = total.astype(F16).reshape(warps, 2, 8, 4, 2).transpose(1, 0, 2, 3, 4)
        return list(flat(half).view(U32).reshape(2, -1))
    words = total.reshape(warps, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)
    return list(flat(words).view(U32).reshape(4, -1))


def wide_accumulator(registers: Array, kind: str, columns: int) -> Array:
    """Return the accumulator of a ``wgmma`` [registers, 128] as [64, columns], float32 or int32."""
    if kind == "f16":
        half = flat(registers).view(F16).reshape(columns // 8, 2, 4, 8, 4, 2)
        return half.transpose(2, 1, 3, 0, 4, 5).reshape(64, columns).astype(F32)
    words = flat(registers).view(np.int32 if kind == "s32" else F32)
    ordered = words.reshape(columns // 8, 2, 2, 4, 8, 4).transpose(3, 1, 4, 0, 5, 2)
    return ordered.reshape(64, columns)


def wide_result(total: Array, kind: str) -> Array:
    """Return [64, columns] as the registers of a ``wgmma``, uint32 [registers, 128]."""
    columns = total.shape[1]
    if kind == "f16":
        half = total.astype(F16).reshape(4, 2, 8, columns // 8, 4, 2).transpose(3, 1, 0, 2, 4, 5)
        return flat(half).view(U32).reshape(columns // 4, 128)
    words = total.reshape(4, 2, 8, columns // 8, 4, 2).transpose(3, 1, 5, 0, 2, 4)
    return flat(words).view(U32).reshape(columns // 2, 128)


def accumulated(product: Array, old: Any, kind: str, *, saturate: bool = False) -> Array:
    """Return product + old as int32 (``s32``: modulo 2^32, or within its range) or float32."""
    if kind != "s32":
        return (product + old).astype(F32)
    total = product + old
    if saturate:
        return np.clip(total, -(2**31), 2**31 - 1).astype(np.int64).astype(np.int32)
    return total.astype(np.int64).astype(np.int32)
