"""Warp-wide matrix instructions: ``mma.sync``, ``ldmatrix``, ``stmatrix``, ``movmatrix``."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U16, U32, Array, flat
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.wave import Wave
from tests.emulator.tensor import fragments
from tests.emulator.threads.group import Group

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def shape_of(text: str) -> tuple[int, int, int]:
    """Return m, n and k of a shape: ``m16n8k16``.

    Raises:
        UnmodelledError: It is none.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise UnmodelledError(f"the shape {text} is not known")
    return int(match[1]), int(match[2]), int(match[3])


def mma(
    wave: Wave,
    group: Group,
    shape: str,
    types: Sequence[str],
    a: Sequence[Any],
    b: Sequence[Any],
    c: Sequence[Any],
    *,
    saturate: bool = False,
) -> list[Array]:
    """Return the registers of D = A @ B + C for each warp.

    Products are summed in float32 (whole numbers exactly), not in the order of a GPU.

    Args:
        wave: The wave.
        group: Whole warps.
        shape: ``m16n8k16`` ...
        types: Of D, A, B and C.
        a: Registers of A.
        b: Registers of B.
        c: Registers of C.
        saturate: Whether int32 is limited to its range.
    """
    rows, columns, depth = shape_of(shape)
    if (rows, columns) != (16, 8):
        raise UnmodelledError(f"mma of shape {shape} is not known")
    _, kind_a, kind_b, kind_c = types
    left = fragments.left([group.all(register) for register in a], kind_a)
    right = fragments.right([group.all(register) for register in b], kind_b)
    if left.shape[1:] != (16, depth):
        raise UnmodelledError(f"mma of shape {shape} with {len(a)} registers of {kind_a}")
    old = fragments.accumulator([group.all(register) for register in c], kind_c, len(left))
    if wave.memory.traffic is not None:
        wave.memory.traffic.multiplied(rows, columns, depth, len(left))
    product = np.matmul(left, right)
    total = fragments.accumulated(product, old, kind_c, saturate=saturate)
    return fragments.result(total, types[0])


def _rows(group: Group, address: Any, count: int) -> tuple[Array, Group]:
    """Return the addresses of the rows, and the lanes that give them: 8 for each matrix, in every warp."""
    if group.n % 32:
        raise FaultError(f"a matrix instruction of {group.n} lanes, no whole warps")
    giving = np.arange(group.n) % 32 < 8 * count
    return flat(group.all(address)[giving]), group.part(giving)


def load_matrices(
    wave: Wave, group: Group, address: Any, count: int, *, transposed: bool
) -> list[Array]:
    """Return ``count`` matrices of 8 x 8 elements of 16 bits, one register each (``ldmatrix``)."""
    rows, giving = _rows(group, address, count)
    space = "shared" if rows.dtype.itemsize == 4 else "generic"
    array, index = wave.memory.resolve(space, rows, giving, 16)
    wave.memory.note(space, rows, "read", 16, giving)
    data = array[index].view(U16).reshape(-1, count, 8, 8)
    if transposed:
        data = flat(data.transpose(0, 1, 3, 2))
    words = data.view(U32).reshape(-1, count, 32)
    return [flat(words[:, i]).reshape(-1) for i in range(count)]


def store_matrices(
    wave: Wave, group: Group, address: Any, values: Sequence[Any], *, transposed: bool
) -> None:
    """Store a matrix of each register, the opposite of `load_matrices` (``stmatrix``)."""
    rows, giving = _rows(group, address, len(values))
    words = np.stack([flat(group.all(value)).reshape(-1, 32) for value in values], 1)
    data = flat(words).view(U16).reshape(-1, len(values), 8, 8)
    if transposed:
        data = data.transpose(0, 1, 3, 2)
    wave.memory.store_rows(rows, flat(data), giving)
    wave.progress.events += 1


def move_matrix(group: Group, values: Any) -> Array:
    """Return a matrix of 8 x 8 elements of 16 bits transposed (``movmatrix``)."""
    data = flat(group.all(values)).view(U16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return flat(data).view(U32).reshape(-1)
