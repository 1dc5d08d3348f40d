"""``tcgen05.mma``: products of one thread or of a pair of blocks, with accumulators in tensor memory (sm_100a)."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import F16, F32, U8, U16, U32, Array, flat
from tests.emulator.fault import CudaError, FaultError, UnmodelledError
from tests.emulator.machine.wave import TENSOR_COLUMNS, Wave
from tests.emulator.tensor import block_scales, shared_operand, tensor_memory
from tests.emulator.tensor.block_scales import Scales
from tests.emulator.tensor.fragments import BYTES, accumulated, numbers
from tests.emulator.tensor.shared_operand import Descriptor
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_MASK, SHARED_SHIFT

_KINDS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2"},
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": {0: "e4m3", 1: "e5m2"},
}
_SCALED = "mxf8f6f4"
"""The kind whose operands have scales: its descriptor names bytes of theirs where others name the type of D, which is f32."""
_LONGER = 1 << 31
"""Bit of the descriptor of such a kind: K is longer."""
_RESULTS = {0: "f16", 1: "f32", 2: "s32"}
_DEPTH_BYTES = 32
"""Bytes of an operand along K."""


@dataclass(frozen=True)
class Shape:
    """What the instruction descriptor says (PTX ISA, "Instruction descriptor").

    Attributes:
        result: Type of D.
        a: Type of A.
        b: Type of B.
        rows: M, of both blocks of a pair together.
        columns: N.
        turned_a: Whether A is stored along M.
        turned_b: Whether B is stored along N.
        negated: Whether the product is subtracted.
    """

    result: str
    a: str
    b: str
    rows: int
    columns: int
    turned_a: bool
    turned_b: bool
    negated: bool

    @property
    def depth(self) -> int:
        """K."""
        return _DEPTH_BYTES // BYTES[self.a]


def shape_of(kind: str, word: int) -> Shape:
    """Return the meaning of an instruction descriptor.

    Raises:
        UnmodelledError: Its types, or sparsity, are not known.
    """
    types, scaled = _KINDS.get(kind, {}), kind == _SCALED
    a, b = types.get(word >> 7 & 7), types.get(word >> 10 & 7)
    result = "f32" if scaled else _RESULTS.get(word >> 4 & 3)
    if a is None or b is None or result is None or word & 0xF or (scaled and word & _LONGER):
        raise UnmodelledError(f"tcgen05.mma of kind {kind} with instruction descriptor {word:#x}")
    return Shape(
        result,
        a,
        b,
        rows=(word >> 24 & 0x1F) << 4,
        columns=(word >> 17 & 0x3F) << 3,
        turned_a=bool(word >> 15 & 1),
        turned_b=bool(word >> 16 & 1),
        negated=bool((word >> 13 ^ word >> 14) & 1),
    )


@dataclass(frozen=True)
class _Product:
    """One product: addresses and descriptors as numbers.

    Attributes:
        shape: What is multiplied.
        blocks: The blocks that compute it, half of the rows each if they are a pair.
        target: Address of D in tensor memory.
        left: ``shared`` or ``tensor``, and descriptor or address of A.
        right: Descriptor of B.
        added: Whether D is added.
        scales: Those of A and of B, if they have scales.
    """

    shape: Shape
    blocks: tuple[int, ...]
    target: int
    left: tuple[str, int]
    right: int
    added: bool
    scales: tuple[Scales, ...] = ()


def multiply(
    wave: Wave,
    group: Group,
    kind: str,
    pair: bool,
    target: Any,
    left: tuple[str, Any],
    right: Any,
    instruction: Any,
    keep: Any,
    guard: Array | None,
    scales: tuple[Any, ...] = (),
) -> None:
    """Issue D = A @ B + D for each active lane, or A @ B where ``keep`` is false.

    Args:
        wave: The wave.
        group: The lanes.
        kind: ``f16``, ``tf32``, ``f8f6f4``, ``i8`` or ``mxf8f6f4``.
        pair: Whether two neighbouring blocks of a cluster compute together, half of the rows each.
        target: Address of D in tensor memory.
        left: ``("shared", descriptor)`` or ``("tensor", address)`` of A.
        right: Descriptor of B.
        instruction: Instruction descriptor.
        keep: Whether D is added.
        guard: Which lanes take part.
        scales: Addresses in tensor memory of the scales of A and of B, for ``mxf8f6f4``.
    """
    for place in group.active(guard):
        lane = int(group.lanes[place])
        block = int(wave.lanes.block[lane])
        word = group.at(instruction, place)
        shape = shape_of(kind, word)
        product = _Product(
            shape,
            (block & ~1, block | 1) if pair else (block,),
            group.at(target, place),
            (left[0], group.at(left[1], place)),
            group.at(right, place),
            bool(group.at(keep, place)),
            _scales(tuple(group.at(each, place) for each in scales), word, shape, pair=pair),
        )
        if product.blocks[-1] >= wave.lanes.blocks:
            raise FaultError("tcgen05.mma of a pair of blocks, but the cluster has one")
        _check_operands(wave, product, lane)
        wave.product_count += 1
        if wave.memory.traffic is not None:
            wave.memory.traffic.multiplied(shape.rows, shape.columns, shape.depth)
        wave.tensor_products.issue(lane, functools.partial(_compute, wave, product))
    wave.progress.events += 1


def _scales(
    addresses: tuple[int, ...], word: int, shape: Shape, *, pair: bool
) -> tuple[Scales, ...]:
    """Return the scales of a product, if it has some.

    Raises:
        UnmodelledError: Those of a pair of blocks.
    """
    if not addresses:
        return ()
    if pair:
        raise UnmodelledError("tcgen05.mma with scales, of a pair of blocks")
    a, b = addresses
    return block_scales.scales_of((a, b), word, shape.rows, shape.columns)


def check_all_lanes(disabled: Sequence[Any], group: Group, guard: Array | None) -> None:
    """Check that a product writes all lanes: no bit of disable-output-lane is set.

    Raises:
        UnmodelledError: One is.
    """
    if any(group.at(word, place) for place in group.active(guard) for word in disabled):
        raise UnmodelledError("tcgen05.mma that leaves lanes of its output as they are")


def _check_operands(wave: Wave, product: _Product, lane: int) -> None:
    """Check that tensor memory is allocated, and that no operand in shared memory lacks a proxy fence or is still being written."""
    races = wave.memory.races
    shape, count = product.shape, len(product.blocks)
    lanes, columns = _accumulator(product.target, shape.rows // count, shape.columns, count > 1)
    for block in product.blocks:
        tensor_memory.check_allocated(wave, block, int(columns.min()), int(columns.max()) + 1)
        operands = [scales.columns for scales in product.scales]
        for scales in product.scales:
            scales.check(wave, block)
        if product.left[0] == "tensor":
            first = product.left[1] & 0xFFFF
            operands.append(np.arange(first, first + _DEPTH_BYTES // 4))
            tensor_memory.check_allocated(wave, block, first, first + _DEPTH_BYTES // 4)
        if wave.tensor_races is not None:
            wave.tensor_races.multiplied(block, (lanes, columns), operands, lane >> 5)
        right = _descriptor_of_right(product)
        extents = (shape.columns // count, shape.depth)
        places = shared_operand.check_written(
            wave.memory, block, right, extents, shape.b, not shape.turned_b
        )
        if races is not None:
            item = shared_operand.BYTES[shape.b]
            races.multiplied_alone(places.reshape(-1), item, lane)
        if product.left[0] == "shared":
            left = _descriptor_of_left(product.left[1], shape)
            extents = (shape.rows // count, shape.depth)
            places = shared_operand.check_written(
                wave.memory, block, left, extents, shape.a, not shape.turned_a
            )
            if races is not None:
                item = shared_operand.BYTES[shape.a]
                races.multiplied_alone(places.reshape(-1), item, lane)


def _descriptor_of_left(bits: int, shape: Shape) -> Descriptor:
    return shared_operand.blackwell(bits, shape.a, not shape.turned_a)


def _descriptor_of_right(product: _Product) -> Descriptor:
    shape = product.shape
    return shared_operand.blackwell(product.right, shape.b, not shape.turned_b)


def _compute(wave: Wave, product: _Product) -> None:
    shape, blocks = product.shape, product.blocks
    pair = len(blocks) > 1
    rows, half = shape.rows // len(blocks), shape.columns // len(blocks)
    descriptor = _descriptor_of_right(product)
    extents = (half, shape.depth)
    columns = np.concatenate(
        [
            shared_operand.read(
                wave.memory, block, descriptor, extents, shape.b, not shape.turned_b
            )
            for block in blocks
        ]
    )
    where = _accumulator(product.target, rows, shape.columns, pair)
    for block in blocks:
        result = _multiplied(wave, product, block, columns)
        if product.scales:
            result = block_scales.scaled(wave, block, product.scales, result)
        signed = -result if shape.negated else result
        _accumulate(wave, block, where, signed, shape, product.added)


def _multiplied(wave: Wave, product: _Product, block: int, columns: Array) -> Array:
    """Return the product of a block's rows of A with all columns of B."""
    shape, (space, address) = product.shape, product.left
    rows, pair = shape.rows // len(product.blocks), len(product.blocks) > 1
    if space == "shared":
        descriptor, major_k = _descriptor_of_left(address, shape), not shape.turned_a
        extents = (rows, shape.depth)
        a = shared_operand.read(wave.memory, block, descriptor, extents, shape.a, major_k)
        return a @ columns.T
    read = functools.partial(_left, wave, block, address, shape)
    lanes = np.arange(rows)
    if rows == 64 and pair:  # as of D, lanes 64 and up are those of the second half of the columns
        halves = zip((lanes, lanes + 64), np.split(columns, 2), strict=True)
        return np.concatenate([read(mine) @ half.T for mine, half in halves], 1)
    if rows == 64:  # 16 lanes of each warp's 32, as D
        lanes = lanes % 16 + 32 * (lanes // 16)
    return read(lanes) @ columns.T


def _left(wave: Wave, block: int, address: int, shape: Shape, lanes: Array) -> Array:
    """Return rows of A that lie in some lanes of tensor memory."""
    column = address & 0xFFFF
    raw = wave.tensor_memory[block, (address >> 16) + lanes, column : column + _DEPTH_BYTES // 4]
    return numbers(flat(raw).view(U8), shape.a).reshape(len(lanes), shape.depth)


def _accumulator(address: int, rows: int, columns: int, pair: bool) -> tuple[Array, Array]:
    """Return lanes and columns of D [rows, columns] in tensor memory."""
    lane, column = address >> 16, address & 0xFFFF
    m, n = np.arange(rows)[:, None], np.arange(columns)[None, :]
    if lane and (rows == 128 or pair):
        raise FaultError(f"tcgen05.mma with D from lane {lane} on, which takes all lanes")
    if rows == 128:
        lanes, places = m + 0 * n, column + n + 0 * m
    elif rows != 64:
        raise UnmodelledError(f"tcgen05.mma of {rows} rows in a block")
    elif pair:  # the second half of the columns lies in lanes 64 and up
        lanes, places = m + 64 * (n >= columns // 2), column + n % (columns // 2) + 0 * m
    else:
        lanes, places = m % 16 + 32 * (m // 16) + lane + 0 * n, column + n + 0 * m
    if places.max() >= TENSOR_COLUMNS:
        raise FaultError(f"column {places.max()} of tensor memory", CudaError.ILLEGAL_ADDRESS)
    return lanes, places


def _accumulate(
    wave: Wave, block: int, where: tuple[Array, Array], product: Array, shape: Shape, added: bool
) -> None:
    memory = wave.tensor_memory[block]
    if shape.result == "f16":
        old = memory[where].astype(U16).view(F16).astype(F32) if added else 0
        memory[where] = (product + old).astype(F16).view(U16)
        return
    number = np.int32 if shape.result == "s32" else F32
    had: Any = memory[where].view(number) if added else 0
    memory[where] = flat(accumulated(product, had, shape.result)).view(U32)


def commit(wave: Wave, group: Group, mbarrier: Any, mask: Any, guard: Array | None) -> None:
    """Arrive at an mbarrier when all products of the thread so far are done; with a mask in several blocks."""
    for place in group.active(guard):
        lane = int(group.lanes[place])
        if mask is None:
            targets = [wave.mbarriers.reached(mbarrier, group, place)[0]]
        else:
            inside = group.at(mbarrier, place) & SHARED_MASK
            peers = wave.lanes.peers(lane, group.at(mask, place))
            targets = [block << SHARED_SHIFT | inside for block in peers]
        products = wave.tensor_products.so_far(lane)
        if wave.memory.races is not None:
            for target in targets:
                wave.memory.races.products_arrive(target, lane)
        for target in targets:
            wave.mbarriers.at(target)
            wave.loads.issue(target, functools.partial(_arrive, wave, products, target))


def _arrive(wave: Wave, products: Callable[[], None], mbarrier: int) -> None:
    products()
    wave.mbarriers.arrived(mbarrier)
