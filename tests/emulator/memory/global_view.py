"""The memory of this process, which is global memory, as arrays."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U8, U16, U32, U64, Array

LOWEST, HIGHEST = 1 << 16, 1 << 47
"""Addresses that may be touched begin there, and end before."""
WORDS = {1: U8, 2: U16, 4: U32, 8: U64, 16: np.complex128}
"""A type of each width in bytes."""


def view_at(address: int, shape: tuple[int, ...], kind: str, strides: Any = None) -> Array:
    """Return memory of this process as an array; ``strides`` in bytes, dense by default."""
    interface = {
        "data": (address, False),
        "shape": shape,
        "typestr": kind,
        "version": 3,
        "strides": strides,
    }
    holder = type("_Memory", (), {"__array_interface__": interface})()
    return np.asarray(holder)


GLOBAL = {
    width: view_at(LOWEST, ((HIGHEST - LOWEST) // width,), np.dtype(kind).str)
    for width, kind in WORDS.items()
}
"""All of it, by the width of a word; word 0 is that at `LOWEST`."""
