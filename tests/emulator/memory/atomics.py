"""Read-modify-write operations: lane after lane, which is one of the orders a GPU may take."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U16, U64, Array, flat
from tests.emulator.arithmetic.formats import bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16
from tests.emulator.memory.memory import Memory
from tests.emulator.ptx.types import value_type
from tests.emulator.races.global_memory import Order
from tests.emulator.threads.group import Group

_WIDE: dict[str, tuple[Any, Any]] = {
    "f16": (f16_to_f32, f32_to_f16),
    "bf16": (bf16_to_f32, f32_to_bf16),
}
_FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def combined(operation: str, old: Array, values: tuple[Array, ...], kind: str) -> Array:
    """Return what an operation writes.

    Args:
        operation: ``add``, ``cas`` ...
        old: What is there, of the numpy type of ``kind``.
        values: The operands, one or (``cas``) two.
        kind: The PTX type.
    """
    base = kind.removesuffix("x2")
    if base in _WIDE:
        widen, narrow = _WIDE[base]
        x, y = widen(flat(old).view(U16)), widen(flat(values[0]).view(U16))
        function = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]
        return narrow(function(x, y)).view(old.dtype)
    if operation == "exch":
        return values[0]
    if operation == "cas":
        return np.where(old == values[0], values[1], old)
    if operation == "inc":
        return np.where(old >= values[0], 0, old + 1).astype(old.dtype)
    if operation == "dec":
        return np.where((old == 0) | (old > values[0]), values[0], old - 1).astype(old.dtype)
    return _FUNCTIONS[operation](old, values[0])


def atomic(
    memory: Memory,
    operation: str,
    space: str,
    address: Array,
    operands: list[tuple[Array, ...]],
    kind: str,
    guard: Array | None,
    group: Group,
    mbarrier: int | None = None,
    order: Order = "",
) -> list[Array]:
    """Do an ``atom`` or ``red`` and return what was there before, for each element of a vector.

    Args:
        memory: The memory.
        operation: ``add``, ``cas`` ...
        space: Of the address.
        address: Of each lane.
        operands: For each operand its elements; one unless it is a vector.
        kind: The PTX type.
        guard: Which lanes take part.
        group: The lanes.
        mbarrier: As of `Memory.note`.
        order: The memory order.
    """
    number = value_type(f"u{kind[1:]}" if kind[0] == "b" and kind[1:].isdigit() else kind)
    width = np.dtype(number).itemsize
    address = group.all(address).astype(U64)
    results = [np.zeros(group.n, number) for _ in operands[0]]
    columns = [[_as(group.all(value), number) for value in operand] for operand in operands]
    for place in group.active(guard):
        lane = Group(group.lanes[place : place + 1], group.block)
        for element, result in enumerate(results):
            at = address[place : place + 1] + U64(element * width)
            array, index = memory.resolve(space, at, lane, width, written=True)
            memory.note(
                space, at, "written", width, lane, atomic=True, mbarrier=mbarrier, order=order
            )
            if array is memory.shared_words[width]:
                memory.barriers.check(width, index)
                memory.generic.wrote(width, index)
            old = array[index].view(number)
            values = tuple(column[element][place : place + 1] for column in columns)
            array[index] = flat(combined(operation, old, values, kind)).view(array.dtype)
            result[place] = old[0]
    return results


def _as(values: Array, number: str) -> Array:
    values = flat(values)
    same = values.dtype.itemsize == np.dtype(number).itemsize
    return values.view(number) if same else values.astype(number)
