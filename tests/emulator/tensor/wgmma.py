"""``wgmma.mma_async``: products of a warp group, with operands in shared memory (sm_90a)."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.machine.wave import Wave
from tests.emulator.tensor import fragments, shared_operand
from tests.emulator.tensor.mma import shape_of
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import MOST_WARP_GROUPS


@dataclass(frozen=True)
class Product:
    """What is fixed in the text of an instruction.

    Attributes:
        shape: ``m64n128k16`` ...
        types: Of D, A and B.
        negated: Whether the product is subtracted: one of the operands is multiplied by -1.
        turned_a: Whether A is stored along M instead of K.
        turned_b: Whether B is stored along N.
        saturate: Whether int32 is limited to its range.
    """

    shape: str
    types: tuple[str, str, str]
    negated: bool = False
    turned_a: bool = False
    turned_b: bool = False
    saturate: bool = False


def _warp_groups(wave: Wave, group: Group) -> list[tuple[int, Array]]:
    """Return the block of each warp group, and the places of its 128 lanes in the group."""
    known = group.cache.get("warp groups")
    if known is None:
        units = wave.lanes.warp_group[group.lanes]
        known = list[tuple[int, Array]]()
        for unit in np.unique(units):
            places = np.nonzero(units == unit)[0]
            if len(places) != 128:
                raise FaultError(f"a wgmma of {len(places)} lanes of a warp group")
            known.append((int(unit) // MOST_WARP_GROUPS, places))
        group.cache["warp groups"] = known
    return known


def _same(values: Any, places: Array, group: Group, what: str) -> int:
    """Return a value that all lanes of a warp group must have in common."""
    mine = group.all(values)[places]
    if (mine != mine[0]).any():
        raise FaultError(f"the lanes of a warp group give a wgmma different {what}")
    return int(mine[0])


def _operand(
    wave: Wave,
    lane: int,
    block: int,
    bits: int,
    extents: tuple[int, int],
    kind: str,
    turned: bool,
) -> Array:
    """Return an operand in shared memory, which must not change until the product is waited for."""
    descriptor = shared_operand.hopper(bits)
    read = functools.partial(
        shared_operand.read, wave.memory, block, descriptor, extents, kind, not turned
    )
    places = shared_operand.check_written(wave.memory, block, descriptor, extents, kind, not turned)
    if wave.memory.races is not None:
        item = shared_operand.BYTES[kind]
        groups = wave.products.committed(lane >> 5)
        wave.memory.races.multiplied(places.reshape(-1), item, lane, groups)
    values = read()
    wave.products.reads(lane >> 5, read, values)
    return values


def multiply(
    wave: Wave,
    group: Group,
    product: Product,
    accumulators: Sequence[Any],
    a: Any,
    b: Any,
    keep: Any,
) -> list[Array]:
    """Return the registers of D = A @ B + D, or A @ B where ``keep`` is false.

    Args:
        wave: The wave.
        group: Whole warp groups.
        product: What the text says.
        accumulators: Registers of D.
        a: The descriptor of A, or its registers as a tuple.
        b: The descriptor of B.
        keep: Whether D is added.
    """
    rows, columns, depth = shape_of(product.shape)
    kind, kind_a, kind_b = product.types
    old = np.stack([group.all(register) for register in accumulators])
    result = np.empty_like(old)
    wave.progress.events += 1
    wave.product_count += 1
    for block, places in _warp_groups(wave, group):
        lane = int(group.lanes[places[0]])
        shared = functools.partial(_operand, wave, lane, block)
        bits = _same(b, places, group, "descriptors")
        right = shared(bits, (columns, depth), kind_b, product.turned_b)
        if isinstance(a, tuple):
            registers: tuple[Any, ...] = a
            mine = [group.all(register)[places] for register in registers]
            left = fragments.left(mine, kind_a).reshape(rows, depth)
        else:
            bits = _same(a, places, group, "descriptors")
            left = shared(bits, (rows, depth), kind_a, product.turned_a)
        if wave.memory.traffic is not None:
            wave.memory.traffic.multiplied(rows, columns, depth)
        total = left @ right.T
        if product.negated:
            total = -total
        had: Any = 0
        if _same(keep, places, group, "predicates"):
            had = fragments.wide_accumulator(old[:, places], kind, columns)
        total = fragments.accumulated(total, had, kind, saturate=product.saturate)
        result[:, places] = fragments.wide_result(total, kind)
    return list(result)
