"""Global, shared, local and parameter memory.

Global memory is the memory of this process. Shared memory of all blocks is one sparse array, see `lanes`. A generic
address has its space in its highest bits: global 0, shared 1, local 2.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U8, U32, U64, Array, flat
from tests.emulator.fault import CudaError, FaultError, UnmodelledError
from tests.emulator.memory.allowed import Allowed
from tests.emulator.memory.generic_writes import GenericWrites
from tests.emulator.memory.global_view import GLOBAL, HIGHEST, LOWEST, WORDS
from tests.emulator.memory.live_barriers import LiveBarriers
from tests.emulator.memory.traffic import Traffic
from tests.emulator.memory.watch import Watch
from tests.emulator.races.global_memory import Order
from tests.emulator.races.shared import Races
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_MASK, SHARED_SHIFT, Lanes
from tests.emulator.threads.origin import Issuer

SHARED_WINDOW = U64(1 << 60)
LOCAL_WINDOW = U64(2 << 60)
SYSTEM_SHARED_BYTES = 1024
"""The first KiB of a block's shared memory is the system's (since compute capability 8.0)."""
_SPACES = ("global", "shared", "local")
_OFFSET = U64((1 << 60) - 1)
_POISON = 0xFF
_MAP_NORESERVE = 0x4000


class Memory:
    """What a wave of blocks can address.

    Attributes:
        shared_bytes: Shared memory of a block, with the system's.
        shared: The bytes of all blocks' shared memory, by address.
        allowed: Global memory that may be touched; None for all.
        lanes: The threads.
        generic: What threads have written to shared memory without a proxy fence since.
        barriers: Where mbarriers lie in shared memory.
        traffic: What is moved; None if that is not counted.
        watch: Who has touched what; None if that is not watched.
        races: Who has touched shared memory; None if that is not watched.
    """

    def __init__(
        self,
        lanes: Lanes,
        issuer: Issuer,
        *,
        shared_bytes: int,
        local_bytes: int,
        parameters: int,
        allowed: Allowed | None,
        counted: bool = False,
        watched: bool = False,
        hands_over: bool = False,
    ) -> None:
        self.traffic = Traffic() if counted else None
        self.watch = Watch(lanes, issuer, hands_over=hands_over) if watched else None
        self.races: Races | None = self.watch.races if self.watch else None
        self._noted = counted or watched
        self.shared_bytes, self.parameters, self.allowed = shared_bytes, parameters, allowed
        self.lanes = lanes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._pages = mmap.mmap(-1, lanes.blocks << SHARED_SHIFT, flags=flags)
        self.shared: Array = np.frombuffer(self._pages, U8)
        for block in range(lanes.blocks):
            begin = block << SHARED_SHIFT
            self.shared[begin : begin + shared_bytes] = _POISON
        self.shared_words = {width: self.shared.view(kind) for width, kind in WORDS.items()}
        self.generic = GenericWrites(lanes.blocks, shared_bytes)
        self.barriers = LiveBarriers(lanes.blocks)
        self._local_bytes = max(16, -(-local_bytes // 16) * 16)
        self._local = np.full(lanes.count * self._local_bytes, _POISON, U8)
        self._local_words = {width: self._local.view(kind) for width, kind in WORDS.items()}

    def parameter(self, offset: int, kind: str, count: int, lanes: int) -> Array:
        """Return a kernel's parameter for each lane, [lanes] or [lanes, count]."""
        data = ctypes.string_at(self.parameters + offset, np.dtype(kind).itemsize * count)
        values = np.frombuffer(data, kind)
        if count == 1:
            return np.full(lanes, values[0])
        return np.broadcast_to(values, (lanes, count))

    def resolve(
        self, space: str, address: Array, group: Group, width: int, *, written: bool = False
    ) -> tuple[Array, Array]:
        """Return an array and the indices in it that hold ``width`` bytes at each lane's address.

        Raises:
            FaultError: An address is not aligned, outside of its memory, or not allowed.
        """
        if space == "generic":
            space, address = _of_generic(address)
        self._aligned(address, width, space, group)
        shift = width.bit_length() - 1
        if space == "shared":
            own, others = self.lanes.block[group.lanes], address >> SHARED_SHIFT
            inside = address & SHARED_MASK
            if not self._inside(inside, width) or (others != own).any():
                outside = (inside < SYSTEM_SHARED_BYTES) | (inside + width > self.shared_bytes)
                outside |= ~self.lanes.reaches(own, others)
                if outside.any():
                    self._refuse(space, address, int(outside.argmax()), group, width)
            return self.shared_words[width], address >> shift
        if space == "local":
            outside = address + width > self._local_bytes
            if outside.any():
                self._refuse(space, address, int(outside.argmax()), group, width)
            own = (group.lanes * self._local_bytes).astype(U64)
            return self._local_words[width], (own + address) >> shift
        outside = (address < LOWEST) | (address >= HIGHEST)
        if self.allowed is not None:
            outside |= self.allowed.wrong(address, width, written=written)
        if outside.any():
            self._refuse("global", address, int(outside.argmax()), group, width)
        return GLOBAL[width], ((address - LOWEST) >> shift).astype(I64)

    def _inside(self, offset: Array, width: int) -> bool:
        """Return whether ``width`` bytes at each offset are in a block's shared memory; the least and the greatest decide, which is faster than a mask."""
        first, last = np.minimum.reduce(offset), np.maximum.reduce(offset)
        return bool(first >= SYSTEM_SHARED_BYTES and last + width <= self.shared_bytes)

    def _refuse(
        self,
        space: str,
        address: Array,
        place: int,
        group: Group,
        width: int,
        error: CudaError = CudaError.ILLEGAL_ADDRESS,
    ) -> None:
        who = self.lanes.describe_thread(int(group.lanes[place])) if place < group.n else ""
        value = int(address[place])
        limits = {
            "shared": f"outside of the block's own, {self._own_shared}, and of its cluster's blocks",
            "local": f"outside of the thread's {self._local_bytes} bytes",
        }
        nowhere = "in no operand" if self.allowed is None else self.allowed.reason(value, width)
        why = limits.get(space, nowhere)
        if error == CudaError.MISALIGNED_ADDRESS:
            why = f"no multiple of {width}"
        raise FaultError(f"{who} touches {width} bytes at {space} address {value:#x}, {why}", error)

    def load(
        self,
        space: str,
        address: Array,
        kind: str,
        count: int,
        guard: Array | None,
        group: Group,
        order: Order = "",
    ) -> Array:
        """Return ``count`` neighbouring elements for each lane, [lanes] or [lanes, count]; 0 where the guard is false."""
        width = np.dtype(kind).itemsize * count
        address = group.all(address)
        part = group
        if guard is not None:
            guard = group.all(guard)
            if not guard.any():
                return np.zeros(group.n if count == 1 else (group.n, count), kind)
            if not guard.all():
                part, address = group.part(guard), address[guard]
        if self._noted:
            self.note(space, address, "read", width, part, order=order)
        values = self._words(space, address, width, part).view(kind)
        if count > 1:
            values = values.reshape(-1, count)
        if part is group:
            return values
        result = np.zeros(group.n if count == 1 else (group.n, count), kind)
        result[guard] = values
        return result

    def _words(self, space: str, address: Array, width: int, group: Group) -> Array:
        if width <= 16:
            array, index = self.resolve(space, address, group, width)
            return array[index]
        self._aligned(address, width, space, group)
        pieces = [
            np.take(*self.resolve(space, address + offset, group, 16))
            for offset in range(0, width, 16)
        ]
        return np.stack(pieces, 1)

    def _aligned(self, address: Array, width: int, space: str, group: Group) -> None:
        if int(np.bitwise_or.reduce(address)) & (width - 1):
            wrong = int(np.nonzero(address & (width - 1))[0][0])
            self._refuse(space, address, wrong, group, width, CudaError.MISALIGNED_ADDRESS)

    def store(
        self,
        space: str,
        address: Array,
        values: tuple[Array, ...],
        kind: str,
        guard: Array | None,
        group: Group,
        mbarrier: int | None = None,
        order: Order = "",
    ) -> None:
        """Store neighbouring elements of each lane where the guard is true; the rest as of `note`."""
        address = group.all(address)
        columns = [group.all(value) for value in values]
        data = flat(np.stack(columns, 1) if len(values) > 1 else columns[0])
        if guard is not None:
            guard = group.all(guard)
            if not guard.any():
                return
            if not guard.all():
                address, data, group = address[guard], flat(data[guard]), group.part(guard)
        width = np.dtype(kind).itemsize * len(values)
        if self._noted:
            self.note(
                space, address, "written", width, group, data=data, mbarrier=mbarrier, order=order
            )
        if width > 16:
            self._aligned(address, width, space, group)
            words = data.view(np.complex128).reshape(len(address), -1)
            for piece in range(words.shape[1]):
                self._write(space, address + 16 * piece, words[:, piece], group)
            return
        self._write(space, address, data.reshape(-1), group, width)

    def _write(
        self, space: str, address: Array, data: Array, group: Group, width: int = 16
    ) -> None:
        array, index = self.resolve(space, address, group, width, written=True)
        if array is self.shared_words[width]:
            self.barriers.check(width, index)
            self.generic.wrote(width, index)
        array[index] = data.view(array.dtype)

    def store_rows(self, address: Array, rows: Array, group: Group) -> None:
        """Store 16 bytes for each lane to shared (or generic) addresses."""
        space = "shared" if address.dtype.itemsize == 4 else "generic"
        if self._noted:
            self.note(space, address, "written", 16, group, data=rows)
        self._write(space, address, rows.view(np.complex128).reshape(-1), group)

    def copy(self, target: Array, source: Array, count: Array, width: int, group: Group) -> None:
        """Copy ``count`` of ``width`` bytes from global to shared memory, zeros behind them (``cp.async``)."""
        if self.traffic is not None:
            self.traffic.moved("global", "read", int(count.sum()))
            self.traffic.moved("shared", "written", width * len(target))
        data = np.zeros((len(target), width), U8)
        full = count == width
        if full.any():
            array, index = self.resolve("global", source[full].astype(U64), group.part(full), width)
            data[full] = array[index].view(U8).reshape(-1, width)
        for place in np.nonzero(~full & (count > 0))[0]:
            address, size = int(source[place]), int(count[place])
            if self.allowed is not None:
                self.allowed.check(address, size, "cp.async")
            data[place, :size] = np.frombuffer(ctypes.string_at(address, size), U8)
        array, index = self.resolve("shared", target, group, width)
        self.barriers.check(width, index)
        self.generic.wrote(width, index)
        array[index] = data.reshape(-1).view(array.dtype)

    def note(
        self,
        space: str,
        address: Array,
        direction: str,
        width: int,
        group: Group,
        *,
        data: Array | None = None,
        atomic: bool = False,
        mbarrier: int | None = None,
        order: Order = "",
    ) -> None:
        """Take note of what the threads of one instruction move, if that is counted or watched.

        Args:
            space: Of the addresses.
            address: Of each thread.
            direction: ``read`` or ``written``.
            width: Bytes of each thread.
            group: The threads.
            data: What they write.
            atomic: Whether they change it by an atomic operation.
            mbarrier: Which mbarrier counts the bytes, if the threads have gone on in the meantime.
            order: The memory order.
        """
        if not (self._noted and group.n) or space == "param":
            return
        if space == "generic":
            space, address = _of_generic(address)
        if self.traffic is not None:
            self.traffic.moved(space, direction, width * group.n)
            if space == "shared":
                self.traffic.passed(address, width, group)
        if self.watch is None or space == "local":
            return
        if mbarrier is not None:
            self.watch.loads(address, width, group, mbarrier, atomic=atomic)
        elif atomic:
            self.watch.combines(space, address, width, group, order)
        elif data is None:
            self.watch.reads(space, address, width, group, order)
        else:
            there = self._there(space, address, width, group)
            self.watch.writes(space, address, data, there, group, order)

    def _there(self, space: str, address: Array, width: int, group: Group) -> Array:
        """Return the bytes at each address, [threads, width]."""
        places = address.astype(I64)[:, None] + np.arange(width)
        if space == "shared":
            return self.shared[places]
        for offset in range(0, width, 16):
            self.resolve(space, address + offset, group, min(width, 16), written=True)
        return GLOBAL[1][places - LOWEST]

    @property
    def _own_shared(self) -> str:
        """Say which addresses are a block's own."""
        return f"{SYSTEM_SHARED_BYTES:#x} to {self.shared_bytes:#x}"

    def check_shared(self, address: int, size: int, what: str, block: int) -> None:
        """Check a range of shared memory that threads of a block name.

        Raises:
            FaultError: It is outside of its block's, or that block is of another cluster.
        """
        begin = address & SHARED_MASK
        inside = begin >= SYSTEM_SHARED_BYTES and begin + size <= self.shared_bytes
        other = address >> SHARED_SHIFT
        if not inside or (other != block and not self.lanes.reaches(block, other)):
            raise FaultError(
                f"{what} touches {size:#x} bytes at shared address {address:#x}; a block has "
                f"{self._own_shared}, and reaches those of its cluster",
                CudaError.ILLEGAL_ADDRESS,
            )

    def check_global(self, address: int, size: int, what: str, *, written: bool = False) -> None:
        """Check a range of global memory, as `Allowed.check`."""
        if self.allowed is not None:
            self.allowed.check(address, size, what, written=written)

    def peer(self, address: Array, rank: Any, group: Group) -> Array:
        """Return a shared address in another block of the cluster (``mapa``), of the width of ``address``."""
        lanes = self.lanes
        clusters = lanes.cluster[lanes.block[group.lanes]]
        # Lanes that never use the result may ask for a rank that is not there: its address is refused when used.
        nobody = 0xFF
        wanted = zip(clusters.tolist(), group.all(rank).tolist(), strict=True)
        blocks = np.array([lanes.block_at.get(key, nobody) for key in wanted])
        address = group.all(address)
        if address.dtype.itemsize == 8:
            inside = address & U64(SHARED_MASK)
            return (blocks.astype(U64) << U64(SHARED_SHIFT) | inside) + SHARED_WINDOW
        return blocks.astype(U32) << SHARED_SHIFT | address & SHARED_MASK

    def rank_of(self, address: Array) -> Array:
        """Return the rank of the block to which shared addresses belong (``getctarank``)."""
        return self.lanes.rank[(address >> SHARED_SHIFT) & 0xFF].astype(U32)


def is_in_space(name: str, address: Array) -> Array:
    """Return whether generic addresses are in a space (``isspacep``)."""
    tags = {"global": 0, "const": 0, "param": 0, "shared": 1, "local": 2}
    return (address >> U64(60)).astype(I64) == tags[name.partition("::")[0]]


def _of_generic(address: Array) -> tuple[str, Array]:
    if address.dtype.itemsize != 8:
        return "shared", address
    tags = address >> U64(60)
    if (tags != tags[0]).any():
        raise UnmodelledError("one instruction has generic addresses of several spaces")
    if int(tags[0]) >= len(_SPACES):
        raise FaultError(
            f"address {int(address[0]):#x} is in no space", CudaError.INVALID_ADDRESS_SPACE
        )
    return _SPACES[int(tags[0])], address & _OFFSET
