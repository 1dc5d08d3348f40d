"""Operands of tensor cores in shared memory: where elements lie, written as the PTX ISA describes it, and the PTX that puts them there."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tests.emulator.arithmetic.arrays import Array

Place = Callable[[int, int, int], int]
"""Returns the byte of an element (outer, k) with some bytes, from the operand's start."""


@dataclass(frozen=True)
class Layout:
    """How an operand lies in shared memory, and what its descriptor says: bytes, and the number of the swizzle.

    Numbers are those of ``wgmma``; 4 is that of 128 bytes in pieces of 32, which sm_100 has.
    """

    place: Place
    lead: int
    stride: int
    swizzle: int
    turned: bool = False


def core_matrices(outer: int, k: int, item: int) -> int:
    """Eight rows of 16 bytes one behind the other; 128 bytes further along K, 512 further along the rows."""
    byte = k * item
    return outer // 8 * 512 + outer % 8 * 16 + byte // 16 * 128 + byte % 16


def swizzle(width: int) -> Place:
    """Rows of ``width`` bytes, whose pieces of 16 bytes are exchanged: by the address's bits 7 and up."""

    def place(outer: int, k: int, item: int) -> int:
        byte = outer * width + k * item
        return byte ^ ((byte >> 7) % (width // 16) * 16)

    return place


def turned(width: int, lead: int, stride: int, piece: int = 16) -> Place:
    """Of a turned operand: ``width`` bytes along the rows, some steps of K below, whose pieces are exchanged as above.

    8 steps of K, or 4 with pieces of 32 bytes; the next ones are ``stride`` bytes further, the next rows ``lead`` bytes.
    """
    steps = 8 if piece == 16 else 4

    def place(outer: int, k: int, item: int) -> int:
        rows = width // item
        byte = k % steps * width + outer % rows * item + k // steps * stride + outer // rows * lead
        return byte ^ ((byte >> 7) % (width // piece) * piece)

    return place


def turned_core_matrices(outer: int, k: int, item: int) -> int:
    """16 bytes along the rows, 8 steps of K below; 128 bytes further along K, 512 further along the rows."""
    rows = 16 // item
    return k % 8 * 16 + outer % rows * item + k // 8 * 128 + outer // rows * 512


LAYOUTS = {
    "core matrices": Layout(core_matrices, 128, 512, 0),
    "128 bytes": Layout(swizzle(128), 16, 1024, 1),
    "64 bytes": Layout(swizzle(64), 16, 512, 2),
    "32 bytes": Layout(swizzle(32), 16, 256, 3),
    "turned": Layout(turned(128, 4096, 1024), 4096, 1024, 1, turned=True),
    "turned, 64 bytes": Layout(turned(64, 2048, 512), 2048, 512, 2, turned=True),
    "turned, 32 bytes": Layout(turned(32, 1024, 256), 1024, 256, 3, turned=True),
    "turned core matrices": Layout(turned_core_matrices, 128, 512, 0, turned=True),
    "turned, pieces of 32 bytes": Layout(turned(128, 1024, 512, 32), 1024, 512, 4, turned=True),
}
IMAGE = 16384


def image(matrix: torch.Tensor, layout: Layout) -> Array:
    """Return the bytes of shared memory that hold a matrix [outer, k]."""
    raw = matrix.contiguous().view(torch.uint8).numpy().reshape(*matrix.shape, -1)
    item = raw.shape[-1]
    result = np.full(IMAGE, 0xEE, np.uint8)
    for outer in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            begin = layout.place(outer, k, item)
            result[begin : begin + item] = raw[outer, k]
    return result


COPY = """
  .reg .b32 %tid, %at, %end, %left, %right; .reg .b64 %from, %x, %y, %da, %db; .reg .pred %more, %keep;
  .shared .align 1024 .b8 left[16384]; .shared .align 1024 .b8 right[16384];
  mov.u32 %tid, %tid.x; mov.u32 %left, left; mov.u32 %right, right;
  ld.param.u64 %from, [p0]; mad.wide.u32 %from, %tid, 16, %from;
  mad.lo.u32 %at, %tid, 16, %left; add.u32 %end, %left, 16384;
FIRST:
  ld.global.v2.b64 {%x, %y}, [%from]; st.shared.v2.b64 [%at], {%x, %y};
  add.u64 %from, %from, 2048; add.u32 %at, %at, 2048; setp.lt.u32 %more, %at, %end; @%more bra FIRST;
  ld.param.u64 %from, [p1]; mad.wide.u32 %from, %tid, 16, %from;
  mad.lo.u32 %at, %tid, 16, %right; add.u32 %end, %right, 16384;
SECOND:
  ld.global.v2.b64 {%x, %y}, [%from]; st.shared.v2.b64 [%at], {%x, %y};
  add.u64 %from, %from, 2048; add.u32 %at, %at, 2048; setp.lt.u32 %more, %at, %end; @%more bra SECOND;
  fence.proxy.async; bar.sync 0;
"""


def descriptor(register: str, address: str, layout: Layout, bits: int) -> str:
    """Return instructions that build a descriptor; ``bits`` are its highest ones."""
    rest = layout.lead >> 4 << 16 | layout.stride >> 4 << 32 | bits
    return f"""
      shr.u32 %at, {address}, 4; and.b32 %at, %at, 0x3FFF; cvt.u64.u32 {register}, %at;
      or.b64 {register}, {register}, {rest:#x};
    """


def store(count: int) -> str:
    """Return the stores of a thread's results ``%d0`` ..., side by side."""
    lines = [f"ld.param.u64 %from, [p2]; mad.wide.u32 %from, %tid, {4 * count}, %from;"]
    return "\n".join([*lines, *(f"st.global.b32 [%from+{4 * i}], %d{i};" for i in range(count))])


def names(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%d{i}" for i in range(first, first + count)) + "}"
