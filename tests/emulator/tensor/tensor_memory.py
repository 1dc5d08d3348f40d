"""Tensor memory of sm_100: allocation, ``tcgen05.ld`` and ``tcgen05.st``.

Tensor memory of a block is 128 lanes of 512 columns of 32 bits; an address is ``lane << 16 | column``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array, flat
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.machine.wave import TENSOR_COLUMNS, Allocation, Wave
from tests.emulator.races.tensor import Transfer
from tests.emulator.threads.group import Group


@dataclass(frozen=True)
class Rows16:
    """A shape of 16 lanes: where the registers of a thread lie, as in CuTe's ``copy_traits_sm100.hpp``.

    Attributes:
        registers: Those of each thread for ``.x1``.
        columns: Columns of ``.x1``.
    """

    registers: int
    columns: int

    def place(self, thread: Array, register: Array) -> tuple[Array, Array]:
        """Return the lane and the column of registers, counted from the address of the instruction."""
        repeat, register = np.divmod(register, self.registers)
        four = thread // 4
        if self.registers == 1:
            return four + 8 * (thread % 2), thread // 2 % 2 + self.columns * repeat
        lower, beside = np.divmod(register, self.registers // 2)
        column = self.registers // 2 * (thread % 4) + beside
        return four + 8 * lower, column + self.columns * repeat


SHAPES: Mapping[str, Rows16 | None] = {
    "32x32b": None,
    "16x32bx2": None,
    "16x64b": Rows16(1, 2),
    "16x128b": Rows16(2, 4),
    "16x256b": Rows16(4, 8),
}
"""Shapes of ``tcgen05.ld`` and ``tcgen05.st``. Those without a record have a register for each column, ``16x32bx2`` for the upper half
of the threads in columns that its offset names."""


def registers_of(shape: str) -> int:
    """Return the registers of each thread for ``.x1``."""
    rows = SHAPES[shape]
    return 1 if rows is None else rows.registers


def allocate(
    wave: Wave,
    group: Group,
    space: str,
    address: Any,
    count: Any,
    guard: Array | None,
    *,
    pair: bool,
) -> None:
    """Allocate columns for a block, once for each warp, and write the first one's address to shared memory.

    A ``pair`` of blocks allocates together, so that each knows of the other's columns: those are not watched.

    Raises:
        FaultError: The number is no power of two from 32 to 512, or none are left: a GPU would wait.
    """
    for place in group.first_of_warps(guard):
        block = int(wave.lanes.block[group.lanes[place]])
        wanted = group.at(count, place)
        if wanted & (wanted - 1) or not 32 <= wanted <= TENSOR_COLUMNS:
            raise FaultError(f"tcgen05.alloc of {wanted} columns: no power of two from 32 to 512")
        used = wave.columns.setdefault(block, {})
        begin = next(
            (
                first
                for first in range(0, TENSOR_COLUMNS + 1 - wanted, wanted)
                if all(first >= at + n.columns or first + wanted <= at for at, n in used.items())
            ),
            None,
        )
        if begin is None:
            raise FaultError(
                f"tcgen05.alloc of {wanted} columns, but {sum(n.columns for n in used.values())} are taken"
            )
        used[begin] = Allocation(wanted, wave.issuer.origin())
        lane = group.part(np.arange(group.n) == place)
        where = group.all(address)[place : place + 1]
        array, index = wave.memory.resolve(space, where, lane, 4)
        if array is wave.memory.shared_words[4]:
            wave.memory.barriers.check(4, index)
        written = np.array([begin], U32)
        wave.memory.note(space, where, "written", 4, lane, data=written)
        array[index] = begin
        if wave.tensor_races is not None and not pair:
            columns = np.arange(begin, begin + wanted)
            wave.tensor_races.allocated(block, columns, int(lane.lanes[0]) >> 5)
    wave.progress.events += 1


def release(wave: Wave, group: Group, address: Any, count: Any, guard: Array | None) -> None:
    """Give columns back, once for each warp.

    Raises:
        FaultError: They were not allocated together.
    """
    for place in group.first_of_warps(guard):
        block = int(wave.lanes.block[group.lanes[place]])
        first, columns = group.at(address, place) & 0xFFFF, group.at(count, place)
        given = wave.columns.get(block, {}).pop(first, None)
        if given is None or given.columns != columns:
            raise FaultError(
                f"tcgen05.dealloc of {columns} columns from {first} on, never allocated so"
            )
        if wave.tensor_races is not None:
            warp = int(group.lanes[place]) >> 5
            wave.tensor_races.freed(block, np.arange(first, first + columns), warp)
    wave.progress.events += 1


def check_allocated(wave: Wave, block: int, first: int, end: int) -> None:
    """Check that columns of a block are allocated; they may belong to several neighbouring allocations.

    Raises:
        FaultError: One is not.
    """
    used = wave.columns.get(block, {})
    known = sum(max(0, min(end, at + n.columns) - max(first, at)) for at, n in used.items())
    if known != end - first:
        raise FaultError(
            f"columns {first} to {end - 1} of tensor memory are used, and not all of them are allocated",
            CudaError.ILLEGAL_ADDRESS,
        )


def _places(
    wave: Wave, group: Group, address: Any, count: int, shape: str, split: int
) -> tuple[Array, Array, Array]:
    """Return (block, lane, column) of each thread's registers, [threads, count].

    Shape 32x32b has a lane for each thread; the others have 16 lanes, 16x32bx2 columns ``split`` further for
    the upper half of the threads.
    """
    address = group.all(address).astype(I64)
    base, thread = address >> 16, (group.lanes & 31)[:, None]
    first = 32 * (wave.lanes.thread[group.lanes] >> 5 & 3)
    register = np.arange(count)[None, :]
    allowed = base == first
    if shape == "32x32b":
        lane, column = thread, register
    else:
        allowed |= base == first + 16
        rows = SHAPES[shape]
        if rows is None:
            lane, column = thread % 16, register + split * (thread // 16)
        else:
            lane, column = rows.place(thread, register)
    lane, columns = base[:, None] + lane, (address & 0xFFFF)[:, None] + column
    if not allowed.all():
        raise FaultError(
            f"a warp may use tensor memory from lane {int(first[0])} on, not from {int(base[0])}",
            CudaError.ILLEGAL_ADDRESS,
        )
    if (columns >= TENSOR_COLUMNS).any():
        raise FaultError(f"column {int(columns.max())} of tensor memory", CudaError.ILLEGAL_ADDRESS)
    blocks = wave.lanes.block[group.lanes]
    used = np.stack([blocks, columns.min(1), columns.max(1) + 1], 1)
    for block, begin, end in np.unique(used, axis=0).tolist():
        check_allocated(wave, block, begin, end)
    return blocks[:, None], lane, columns


def _watch(wave: Wave, what: Transfer, group: Group, places: tuple[Array, Array, Array]) -> None:
    """Tell `TensorRaces` what each warp loads or stores."""
    if wave.tensor_races is None:
        return
    blocks, lanes, columns = places
    for warp in np.unique(group.lanes >> 5):
        mine = group.lanes >> 5 == warp
        block = int(blocks[mine][0, 0])
        wave.tensor_races.issued(what, block, lanes[mine], np.unique(columns[mine]), int(warp))


def wait(wave: Wave, group: Group, what: Transfer, guard: Array | None) -> None:
    """Wait for all loads, or all stores, of the warps: they are done when they are issued, and known to others only now."""
    if wave.tensor_races is not None:
        lanes = group.lanes if guard is None else group.lanes[group.all(guard)]
        wave.tensor_races.waited(what, np.unique(lanes >> 5).tolist())


def load(
    wave: Wave,
    group: Group,
    address: Any,
    count: int,
    shape: str,
    split: int,
    guard: Array | None,
) -> list[Array]:
    """Return ``count`` registers of each thread; 0 where the guard is false."""
    result = np.zeros((group.n, count), U32)
    here = np.ones(group.n, bool) if guard is None else group.all(guard)
    if here.any():
        part = group.part(here)
        places = _places(wave, part, group.all(address)[here], count, shape, split)
        _watch(wave, "ld", part, places)
        result[here] = wave.tensor_memory[places]
    return [flat(result[:, i]) for i in range(count)]


def store(
    wave: Wave,
    group: Group,
    address: Any,
    values: Sequence[Any],
    shape: str,
    split: int,
    guard: Array | None,
) -> None:
    """Store the registers of each thread where the guard is true."""
    data = np.stack([group.all(value) for value in values], 1)
    address = group.all(address)
    if guard is not None:
        guard = group.all(guard)
        if not guard.any():
            return
        address, data, group = address[guard], data[guard], group.part(guard)
    places = _places(wave, group, address, len(values), shape, split)
    _watch(wave, "st", group, places)
    wave.tensor_memory[places] = data
    wave.progress.events += 1
