"""Operands of ``wgmma`` and ``tcgen05.mma`` in shared memory, found through a matrix descriptor.

The layouts are those CUTLASS calls canonical (``cute/atom/mma_traits_sm90_gmma.hpp``); the PTX ISA has the same under
"Strides" and "Shared Memory Matrix Layout".
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U8, Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.memory.memory import Memory
from tests.emulator.tensor.fragments import BYTES, numbers
from tests.emulator.threads.lanes import SHARED_SHIFT

WIDE_PIECES = 4
"""The swizzle of 128 bytes that exchanges pieces of 32 bytes, where others exchange pieces of 16."""
_SWIZZLE_BYTES = {0: 16, 1: 128, 2: 64, 3: 32, WIDE_PIECES: 128}
_SWIZZLE_MASK = {0: 0, 1: 7, 2: 3, 3: 1, WIDE_PIECES: 3}
_BLACKWELL_SWIZZLE = {0: 0, 1: WIDE_PIECES, 2: 1, 4: 2, 6: 3}


@dataclass(frozen=True)
class Descriptor:
    """Where an operand lies.

    Attributes:
        start: Address of its first byte in the block's shared memory.
        lead: Bytes from one column of core matrices to the next.
        stride: Bytes from one row of core matrices to the next.
        swizzle: 0 none, 1 of 128 bytes, 2 of 64, 3 of 32, or `WIDE_PIECES`.
    """

    start: int
    lead: int
    stride: int
    swizzle: int


def hopper(bits: int) -> Descriptor:
    """Return the descriptor of a ``wgmma`` operand."""
    if bits >> 49 & 7:
        raise UnmodelledError(f"the base offset of the matrix descriptor {bits:#x} is not known")
    return Descriptor(_field(bits, 0), _field(bits, 16), _field(bits, 32), bits >> 62 & 3)


def blackwell(bits: int, kind: str, major_k: bool) -> Descriptor:
    """Return the descriptor of a ``tcgen05.mma`` operand.

    Args:
        bits: The descriptor.
        kind: Type of its elements.
        major_k: Whether neighbours along K are neighbours in memory.

    Raises:
        FaultError: No GPU reads such elements in this layout (PTX ISA, "Valid Combinations of Type-Size, Major-ness and Swizzling").
        UnmodelledError: The layout is not known.
    """
    layout = bits >> 61 & 7
    if bits >> 49 & 7 or layout not in _BLACKWELL_SWIZZLE:
        raise UnmodelledError(
            f"the matrix descriptor {bits:#x}: layout {layout}, base offset {bits >> 49 & 7}"
        )
    swizzle = _BLACKWELL_SWIZZLE[layout]
    if major_k and swizzle == WIDE_PIECES:
        raise UnmodelledError(
            f"the matrix descriptor {bits:#x}: pieces of 32 bytes along K, of which CUTLASS knows no layout"
        )
    if not major_k and (BYTES[kind] == 4) != (swizzle == WIDE_PIECES):
        raise FaultError(
            f"the matrix descriptor {bits:#x}: layout {layout} of {kind} along M or N; elements of 32 bits, and "
            "they alone, are exchanged in pieces of 32 bytes (layout 1) there"
        )
    return Descriptor(_field(bits, 0), _field(bits, 16), _field(bits, 32), swizzle)


def _field(bits: int, shift: int) -> int:
    return (bits >> shift & 0x3FFF) << 4


@functools.cache
def offsets(
    outer: int, depth: int, item: int, descriptor_rest: tuple[int, int, int], major_k: bool
) -> Array:
    """Return byte offsets [outer, depth] of an operand's elements from its start, before the swizzle.

    Args:
        outer: Rows of A, or columns of B.
        depth: Extent along K.
        item: Bytes of an element.
        descriptor_rest: ``lead``, ``stride`` and ``swizzle`` of the descriptor.
        major_k: Whether neighbours along K are neighbours in memory.
    """
    lead, stride, swizzle = descriptor_rest
    width = _SWIZZLE_BYTES[swizzle]
    mn, k = np.arange(outer)[:, None], np.arange(depth)[None, :]
    if major_k:
        byte = k * item
        if swizzle == 0:
            return mn // 8 * stride + mn % 8 * 16 + byte // 16 * lead + byte % 16
        return mn // 8 * stride + mn % 8 * width + byte
    per_row = width // item
    inside = mn % per_row * item
    if swizzle == 0:
        return mn // per_row * stride + inside + k % 8 * 16 + k // 8 * lead
    rows = 4 if swizzle == WIDE_PIECES else 8  # of K, until what is exchanged repeats
    return mn // per_row * lead + inside + k % rows * width + k // rows * stride


def swizzled(address: Any, swizzle: int) -> Any:
    """Return addresses whose pieces of 16 (or 32) bytes are exchanged within 128, 64 or 32 bytes, by bits 7 and up."""
    piece_bits = 5 if swizzle == WIDE_PIECES else 4
    return address ^ ((address >> 7 & _SWIZZLE_MASK[swizzle]) << piece_bits)


def _words(
    memory: Memory,
    block: int,
    descriptor: Descriptor,
    extents: tuple[int, int],
    kind: str,
    major_k: bool,
) -> Array:
    """Return the places of an operand's elements in shared memory, in units of their size."""
    item = BYTES[kind]
    rest = (descriptor.lead, descriptor.stride, descriptor.swizzle)
    places = offsets(extents[0], extents[1], item, rest, major_k)
    places = swizzled(descriptor.start + places, descriptor.swizzle)
    begin = block << SHARED_SHIFT
    first = int(places.min())
    memory.check_shared(begin + first, int(places.max()) + item - first, "a matrix operand", block)
    return (places + begin) // item


def check_written(
    memory: Memory,
    block: int,
    descriptor: Descriptor,
    extents: tuple[int, int],
    kind: str,
    major_k: bool,
) -> Array:
    """Check that there was a proxy fence behind what threads have written to an operand; when a product is issued.

    Returns:
        The address of each of its elements.

    Raises:
        FaultError: There was none, or the operand is outside of the block's shared memory.
    """
    words = _words(memory, block, descriptor, extents, kind, major_k)
    memory.generic.check(BYTES[kind], words, "a matrix operand")
    return words * BYTES[kind]


def read(
    memory: Memory,
    block: int,
    descriptor: Descriptor,
    extents: tuple[int, int],
    kind: str,
    major_k: bool,
) -> Array:
    """Return an operand [outer, depth] as numbers.

    Raises:
        FaultError: It is outside of the block's shared memory.
    """
    item = BYTES[kind]
    words = _words(memory, block, descriptor, extents, kind, major_k)
    data = memory.shared_words[item][words]
    return numbers(np.ascontiguousarray(data).view(U8), kind).reshape(extents)
