"""Where registers of ``tcgen05.ld`` and ``tcgen05.st`` lie: by the layouts of CuTe (``cute/atom/copy_traits_sm100.hpp``)."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.snippet import run
from tests.support.emulator.shared_memory import names

COLUMNS = 32
THREADS = {
    "16x64b": (64, ((2, 512), (2, 32), (8, 64))),
    "16x128b": (128, ((4, 32), (8, 128))),
    "16x256b": (256, ((4, 64), (8, 256))),
}
"""Bits of a lane, and modes (size, stride in bits) of the thread."""
VALUES = {
    "16x64b": ((1, 0),),
    "16x128b": ((1, 0), (2, 1024)),
    "16x256b": ((2, 32), (2, 2048)),
}
"""Modes of a thread's registers, in bits."""


def offset(index: int, modes: tuple[tuple[int, int], ...]) -> int:
    """Return what a layout of CuTe makes of an index."""
    bits = 0
    for size, stride in modes:
        index, coordinate = divmod(index, size)
        bits += coordinate * stride
    return bits


def elements(shape: str, times: int) -> Iterator[list[int]]:
    """Yield the elements of each thread, ``lane * COLUMNS + column``, in the order of its registers."""
    width, threads = THREADS[shape]
    each = 4 * THREADS[shape][0] // 256 or 1
    for thread in range(32):
        registers: list[int] = []
        for register in range(each * times):
            repeat, value = divmod(register, each)
            lane, bit = divmod(offset(thread, threads) + offset(value, VALUES[shape]), width)
            registers.append(lane * COLUMNS + bit // 32 + width // 32 * repeat)
        yield registers


def moved(shape: str, times: int, lane: int, *, back: bool) -> Array:
    """Load 16 lanes of tensor memory in a shape, or store them and read them by lanes; return the registers of each thread."""
    count = len(next(elements(shape, times)))
    narrow, wide = names(count), names(COLUMNS)
    address = f"add.u32 %half, %tmem, {lane << 16};"
    if back:
        fill = " ".join(f"mad.lo.u32 %d{i}, %tid, {count}, {i};" for i in range(count))
        body = (
            f"{fill} {address} tcgen05.st.sync.aligned.{shape}.x{times}.b32 [%half], {narrow}; tcgen05.wait::st.sync.aligned; "
            f"tcgen05.ld.sync.aligned.32x32b.x{COLUMNS}.b32 {wide}, [%tmem]; tcgen05.wait::ld.sync.aligned;"
        )
        count = COLUMNS
    else:
        fill = " ".join(f"mad.lo.u32 %d{i}, %tid, {COLUMNS}, {i};" for i in range(COLUMNS))
        body = (
            f"{fill} tcgen05.st.sync.aligned.32x32b.x{COLUMNS}.b32 [%tmem], {wide}; tcgen05.wait::st.sync.aligned; {address} "
            f"tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {narrow}, [%half]; tcgen05.wait::ld.sync.aligned;"
        )
    stores = " ".join(f"st.global.b32 [%to+{4 * i}], %d{i};" for i in range(count))
    result = np.full((32, count), -1, np.int32)
    run(
        f".shared .b32 where; .reg .b32 %d<{COLUMNS}>, %tid, %tmem, %half; .reg .b64 %to; mov.u32 %tid, %tid.x; "
        f"ld.param.u64 %to, [p0]; mad.wide.u32 %to, %tid, {4 * count}, %to; "
        f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], {COLUMNS}; ld.shared.b32 %tmem, [where]; "
        f"{body} {stores} tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, {COLUMNS};",
        [result],
        block=32,
        target="sm_100a",
    )
    return result


@pytest.mark.parametrize("lane", [0, 16])
@pytest.mark.parametrize(("shape", "times"), [("16x64b", 4), ("16x128b", 2), ("16x256b", 4)])
def test_a_shape_of_16_lanes_is_that_of_cute(shape: str, times: int, lane: int) -> None:
    wanted = np.array(list(elements(shape, times)))
    assert np.array_equal(moved(shape, times, lane, back=False), wanted + lane * COLUMNS)
    stored = moved(shape, times, lane, back=True)
    assert np.array_equal(
        stored.reshape(-1)[wanted + lane * COLUMNS].reshape(-1), np.arange(wanted.size)
    )
