"""Bulk copies between global and shared memory: ``cp.async.bulk`` and ``cp.async.bulk.tensor`` (TMA).

A load tells an mbarrier how many bytes have come; a store belongs to a group that its thread waits for. With multicast a
load goes to the same place of several blocks of the cluster, and to the mbarrier of each.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U8, U16, Array, flat
from tests.emulator.arithmetic.formats import bf16_to_f32, f32_to_bf16
from tests.emulator.fault import CudaError, FaultError, UnmodelledError
from tests.emulator.machine.wave import Wave
from tests.emulator.memory.global_view import view_at
from tests.emulator.tensor import tensor_map
from tests.emulator.tensor.tensor_map import TensorMap
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_MASK, SHARED_SHIFT

_PIECE = 16
"""Bytes of a tensor map in shared memory that are looked at together."""
_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_NUMBERS = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "u32": "uint32",
    "s32": "int32",
    "u64": "uint64",
    "s64": "int64",
    "b32": "uint32",
    "b64": "uint64",
}


class _Copies:
    """Tells the stores of one instruction apart, of which lanes of a warp with equal operands make one together.

    So ptxas compiles them, since a store twice is a store: to one instruction of a warp whose operands it knows to be equal, else to
    a loop over those that differ. CUTLASS's epilogues store by whole warps. Of loads, which an mbarrier counts, and of
    reductions it makes a loop over the lanes.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()

    def is_new(self, group: Group, place: int, *operands: Any) -> bool:
        """Return whether no lane before in the warp of this one has the same operands."""
        warp = int(group.lanes[place]) >> 5
        copy = (warp, *(group.at(operand, place) for operand in operands))
        new = copy not in self._seen
        self._seen.add(copy)
        return new


def _signalled(block: int, mbarrier: int, *, pair: bool) -> int:
    """Return the mbarrier that counts what a multicast load brings to a block: in it, or, with ``pair``, in the block of its pair
    with the parity of the block that the mbarrier is named in.
    """
    if pair:
        block = block & ~1 | mbarrier >> SHARED_SHIFT & 1
    return block << SHARED_SHIFT | mbarrier & SHARED_MASK


def _targets(
    wave: Wave,
    group: Group,
    place: int,
    address: Any,
    mbarrier: Any,
    mask: Any,
    size: int,
    *,
    pair: bool,
) -> Iterator[tuple[int, int]]:
    """Yield address and mbarrier in each block that a load of ``size`` bytes reaches.

    Raises:
        FaultError: They are outside of the memory of its cluster, or there is no mbarrier.
    """
    to, barrier = group.at(address, place), group.at(mbarrier, place)
    lane = int(group.lanes[place])
    targets = [(to, barrier)]
    if mask is not None:
        blocks = wave.lanes.peers(lane, group.at(mask, place))
        targets = [
            (block << SHARED_SHIFT | to & SHARED_MASK, _signalled(block, barrier, pair=pair))
            for block in blocks
        ]
    block = int(wave.lanes.block[lane])
    for target in targets:
        wave.memory.check_shared(target[0], size, "a bulk load", block)
        wave.mbarriers.at(target[1])
        wave.memory.check_shared(target[1], 8, "a bulk load", block)
        yield target


def load_tensor(
    wave: Wave,
    group: Group,
    address: Any,
    map_address: Any,
    position: Sequence[Any],
    mbarrier: Any,
    mask: Any,
    guard: Array | None,
    *,
    pair: bool,
) -> None:
    """Load the box at a position of a tensor for each lane; elements outside of the tensor are 0.

    Args:
        wave: The wave.
        group: The lanes.
        address: Where to, in shared memory.
        map_address: Of the tensor's map.
        position: Of the box in the tensor.
        mbarrier: The mbarrier that counts the bytes.
        mask: The blocks of a multicast; None for one load.
        guard: Which lanes take part.
        pair: Whether the mbarrier may be in the other block of a pair (``.cta_group::2``).

    Raises:
        FaultError: The mbarrier is elsewhere than where the box goes, or one of them is out of reach.
    """
    for place in group.active(guard):
        tensor = tensor_map.at(group.at(map_address, place))
        corner = _corner(tensor, position, group, place)
        _count(wave, tensor, corner, "read")
        size = tensor.box_bytes
        for target in _targets(wave, group, place, address, mbarrier, mask, size, pair=pair):
            _check_signal(*target, pair=pair)
            if wave.memory.races is not None:
                words = tensor.pieces(target[0]) << 4
                wave.memory.races.loaded(words, 16, int(group.lanes[place]), target[1])
            work = functools.partial(_load_box, wave, tensor, corner, *target)
            wave.loads.issue(target[1], work)


def _check_signal(address: int, mbarrier: int, *, pair: bool) -> None:
    """Check that an mbarrier is where the PTX ISA wants it for a tensor that is loaded (``.cta_group``).

    Raises:
        FaultError: It is in another block than what is loaded, or than the pair of that one.
    """
    target, signalled = address >> SHARED_SHIFT, mbarrier >> SHARED_SHIFT
    if target != signalled and not (pair and target == signalled ^ 1):
        which = "the pair of the block" if pair else "the block"
        raise FaultError(
            f"TMA to shared address {address:#x} with the mbarrier at {mbarrier:#x}, which is not in {which} that it loads to"
        )


def _corner(
    tensor: TensorMap, position: Sequence[Any], group: Group, place: int
) -> tuple[int, ...]:
    if len(position) != len(tensor.sizes):
        raise FaultError(f"TMA with {len(position)} coordinates of {len(tensor.sizes)} dimensions")
    return tuple(group.at(coordinate, place) for coordinate in position)


def _count(wave: Wave, tensor: TensorMap, corner: tuple[int, ...], direction: str) -> None:
    """Count the bytes of a box that are inside of its tensor."""
    traffic = wave.memory.traffic
    if traffic is not None:
        window = tensor.window(corner)
        traffic.moved("global", direction, 0 if window is None else window[0].nbytes)
        traffic.moved("shared", "read" if direction == "written" else "written", tensor.box_bytes)


def _load_box(
    wave: Wave, tensor: TensorMap, corner: tuple[int, ...], address: int, mbarrier: int
) -> None:
    box = tensor.empty_box()
    window = tensor.window(corner)
    if window is not None:
        tensor.check_window(window[0], wave.memory)
        box[window[1]] = window[0]
    pieces = tensor.pieces(address)
    wave.memory.barriers.check(16, pieces)
    wave.memory.shared_words[16][pieces] = box.reshape(-1).view(np.complex128)
    wave.mbarriers.received(mbarrier, box.nbytes)


def store_tensor(
    wave: Wave,
    group: Group,
    map_address: Any,
    position: Sequence[Any],
    source: Any,
    reduction: str,
    guard: Array | None,
) -> None:
    """Store a box to a position of a tensor, or combine it with what is there; nothing outside of the tensor."""
    wave.progress.events += 1
    copies = _Copies()
    for place in group.active(guard):
        tensor = tensor_map.at(group.at(map_address, place))
        corner = _corner(tensor, position, group, place)
        if reduction or copies.is_new(group, place, map_address, *position, source):
            _count(wave, tensor, corner, "written")
        address, lane = group.at(source, place), int(group.lanes[place])
        block = int(wave.lanes.block[lane])
        wave.memory.check_shared(address, tensor.box_bytes, "TMA", block)
        pieces = tensor.pieces(address)
        wave.memory.generic.check(16, pieces, "TMA")
        _stored(wave, pieces, lane, group.at(map_address, place))
        work = functools.partial(_store_box, wave, tensor, corner, pieces, reduction)
        wave.stores.issue(group.lanes[place : place + 1], work)


def _stored(wave: Wave, pieces: Array, lane: int, map_address: int = 0) -> None:
    """Watch what a bulk store of a lane reads: pieces of 16 bytes, and a tensor map, if it has one."""
    watch = wave.memory.watch
    if watch is not None:
        step = int(wave.stores.steps(np.array([lane]))[0])
        watch.races.stored(pieces << 4, 16, lane, step)
        if map_address:
            watch.global_races.map_read(map_address, tensor_map.SIZE, lane, step)


def _store_box(
    wave: Wave,
    tensor: TensorMap,
    corner: tuple[int, ...],
    pieces: Array,
    reduction: str,
    _mask: Array,
) -> None:
    shape = tensor.box[::-1]
    box = wave.memory.shared_words[16][pieces].view(tensor.word).reshape(shape)
    window = tensor.window(corner)
    if window is not None:
        tensor.check_window(window[0], wave.memory, written=True)
        _write(window[0], box[window[1]], reduction, tensor.element)


def _write(view: Array, part: Array, reduction: str, element: str) -> None:
    """Store bits, or combine them with what is there as numbers."""
    if not reduction:
        view[...] = part
        return
    if reduction not in _REDUCTIONS:
        raise UnmodelledError(f"bulk reduction {reduction}")
    function = _REDUCTIONS[reduction]
    if element == "bfloat16":
        old, new = bf16_to_f32(flat(view)), bf16_to_f32(flat(part))
        view[...] = f32_to_bf16(function(old, new)).astype(U16)
        return
    combined = function(flat(view).view(element), flat(part).view(element))
    view[...] = flat(combined).view(view.dtype)


def load_bytes(
    wave: Wave,
    group: Group,
    address: Any,
    source: Any,
    size: Any,
    mbarrier: Any,
    mask: Any,
    guard: Array | None,
) -> None:
    """Load ``size`` bytes for each lane."""
    for place in group.active(guard):
        count, begin = group.at(size, place), group.at(source, place)
        _check_bulk(count, begin, group.at(address, place))
        if wave.memory.traffic is not None:
            wave.memory.traffic.moved("global", "read", count)
            wave.memory.traffic.moved("shared", "written", count)
        for target in _targets(wave, group, place, address, mbarrier, mask, count, pair=False):
            if wave.memory.races is not None:
                words = np.arange(target[0], target[0] + count, 16)
                wave.memory.races.loaded(words, 16, int(group.lanes[place]), target[1])
            work = functools.partial(_load_bytes, wave, begin, count, *target)
            wave.loads.issue(target[1], work)


def _check_bulk(count: int, *addresses: int) -> None:
    if count % 16 or any(address % 16 for address in addresses):
        raise FaultError(
            f"a bulk copy of {count} bytes at {', '.join(map(hex, addresses))}: no multiples of 16",
            CudaError.MISALIGNED_ADDRESS,
        )


def _load_bytes(wave: Wave, source: int, count: int, address: int, mbarrier: int) -> None:
    wave.memory.check_global(source, count, "cp.async.bulk")
    wave.memory.barriers.check(16, np.arange(address >> 4, (address + count) >> 4))
    wave.memory.shared[address : address + count] = np.frombuffer(
        ctypes.string_at(source, count), U8
    )
    wave.mbarriers.received(mbarrier, count)


def store_bytes(
    wave: Wave,
    group: Group,
    target: Any,
    source: Any,
    size: Any,
    reduction: str,
    kind: str,
    guard: Array | None,
) -> None:
    """Store ``size`` bytes of each lane, or combine them as numbers of a PTX type with what is there."""
    wave.progress.events += 1
    copies = _Copies()
    for place in group.active(guard):
        count, to, begin = (group.at(value, place) for value in (size, target, source))
        _check_bulk(count, to, begin)
        new = bool(reduction) or copies.is_new(group, place, target, size, source)
        if wave.memory.traffic is not None and new:
            wave.memory.traffic.moved("global", "written", count)
            wave.memory.traffic.moved("shared", "read", count)
        wave.memory.check_global(to, count, "cp.async.bulk", written=True)
        block = int(wave.lanes.block[group.lanes[place]])
        wave.memory.check_shared(begin, count, "cp.async.bulk", block)
        words = np.arange(begin >> 4, (begin + count) >> 4)
        wave.memory.generic.check(16, words, "cp.async.bulk")
        _stored(wave, words, int(group.lanes[place]))
        element = _NUMBERS[kind] if reduction else "uint8"
        work = functools.partial(_store_bytes, wave, to, begin, count, reduction, element)
        wave.stores.issue(group.lanes[place : place + 1], work)


def _store_bytes(
    wave: Wave, target: int, source: int, count: int, reduction: str, element: str, _mask: Array
) -> None:
    word = "uint16" if element == "bfloat16" else element
    view = view_at(target, (count // np.dtype(word).itemsize,), np.dtype(word).str)
    data = wave.memory.shared[source : source + count].view(word)
    _write(view, data, reduction, element)


def replace_field(
    wave: Wave,
    group: Group,
    space: str,
    address: Any,
    field: str,
    index: int,
    value: Any,
    guard: Array | None,
) -> None:
    """Replace a field of a tensor map (``tensormap.replace``)."""
    for place in group.active(guard):
        lane = group.part(np.arange(group.n) == place)
        where = group.all(address)[place : place + 1]
        array, places = wave.memory.resolve(space, where, lane, 1, written=True)
        begin = int(places[0])
        if array is wave.memory.shared_words[1]:
            wave.memory.barriers.check(1, np.arange(begin, begin + tensor_map.SIZE))
        raw = array[begin : begin + tensor_map.SIZE]
        before = np.array(raw)
        tensor_map.replace(raw, field, index, group.at(value, place))
        if array is wave.memory.shared_words[1] and wave.memory.races is not None:
            changed = (raw != before).reshape(-1, _PIECE).any(1)
            pieces = begin + _PIECE * np.nonzero(changed)[0]
            wave.memory.races.touches(pieces, _PIECE, int(group.lanes[place]), "write")
    wave.progress.events += 1


def copy_map(
    wave: Wave, group: Group, target: Any, source: Any, size: int, guard: Array | None
) -> None:
    """Copy a tensor map from shared to global memory, once for each warp (``tensormap.cp_fenceproxy``)."""
    for place in group.first_of_warps(guard):
        to, begin = group.at(target, place), group.at(source, place)
        wave.memory.check_global(to, size, "tensormap.cp_fenceproxy", written=True)
        block = int(wave.lanes.block[group.lanes[place]])
        wave.memory.check_shared(begin, size, "tensormap.cp_fenceproxy", block)
        if wave.memory.races is not None:
            pieces = np.arange(begin, begin + size, _PIECE)
            wave.memory.races.touches(pieces, _PIECE, int(group.lanes[place]), "read")
        data = wave.memory.shared[begin : begin + size].tobytes()
        if wave.memory.watch is not None and data != ctypes.string_at(to, size):
            wave.memory.watch.global_races.map_written(to, size, int(group.lanes[place]))
        ctypes.memmove(to, data, size)
    wave.progress.events += 1
