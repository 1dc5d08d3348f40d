"""Races on global memory of threads' own loads, stores and atomic operations, within the blocks that run at once.

Blocks hand numbers over by flags: one thread writes a flag behind a fence (``.release``), another one reads it and goes on behind a
fence (``.acquire``); what lies before the one then lies before what follows the other (PTX ISA, "Release and Acquire Patterns"). Barriers
of a block bring in the other threads (`shared`). A flag is any address of an atomic operation, or of a load or store that is
``.volatile``, ``.relaxed``, ``.acquire`` or ``.release``; these do not race with each other. A plain load
that polls a flag orders nothing.

A tensor map is read by a bulk store until that is waited for (``cp.async.bulk.wait_group.read``), and not to be changed before.

Not looked at: what else TMA and ``cp.async`` read and write there, blocks of an earlier wave, and the scope of an order (``.cta``, ``.gpu``).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array
from tests.emulator.ptx.syntax import Instruction
from tests.emulator.races.shared import Races
from tests.emulator.races.touched import UNIT_SHIFT, Touched
from tests.emulator.threads.group import Group
from tests.emulator.threads.origin import Issuer

Order: TypeAlias = Literal["", "relaxed", "acquire", "release", "acq_rel"]
"""The order of an access; empty for a plain one, which is no flag."""
_PAGE_SHIFT = 16
_PAGE = 1 << _PAGE_SHIFT
_PIECE = 16
"""Bytes of a tensor map that are looked at together."""
_LOAD, _STORE, _ATOMIC = "ld", "st", ("atom", "red")


def order_of(instruction: Instruction) -> Order:
    """Return the order of a load, a store or an atomic operation; ``atom`` and ``red`` are relaxed if they say nothing."""
    orders: tuple[Order, ...] = ("relaxed", "acquire", "release", "acq_rel")
    said: list[Order] = [order for order in orders if instruction.has(order)]
    if said:
        return said[0]
    is_relaxed = instruction.name in _ATOMIC or any(map(instruction.has, ("volatile", "mmio")))
    return "relaxed" if is_relaxed else ""


def hands_over(code: Iterable[Instruction]) -> bool:
    """Return whether instructions have flags outside of shared memory: without, a block reads nothing that another one writes."""
    accesses = (each for each in code if each.name in (_LOAD, _STORE, *_ATOMIC))
    spaces = ("shared", "shared::cta", "shared::cluster")
    return any(order_of(each) and not any(map(each.has, spaces)) for each in accesses)


class GlobalRaces:
    """Who has touched global memory, and what each flag hands over."""

    def __init__(self, races: Races, warps: int, issuer: Issuer) -> None:
        self._races = races
        self._touched = Touched(races, warps, issuer, "global", np.zeros(0, U32))
        self._pages: dict[int, int] = {}
        self._flags: dict[int, Array] = {}

    def reads(self, address: Array, width: int, group: Group) -> None:
        """Take note of plain loads, ``width`` bytes each.

        Raises:
            RaceError: Others have written it, and nothing orders the two.
        """
        self._touched.reads(self._placed(address), width, group)

    def writes(self, address: Array, after: Array, before: Array, group: Group) -> None:
        """Take note of plain stores, as `Touched.writes`."""
        self._touched.writes(self._placed(address), after, before, group)

    def flags(
        self, address: Array, width: int, group: Group, order: Order, *, reads: bool, writes: bool
    ) -> None:
        """Take note of accesses of flags, ``width`` bytes each.

        Args:
            address: Of each thread.
            width: Bytes of each.
            group: The threads.
            order: Their order.
            reads: Whether they read: loads, and atomic operations.
            writes: Whether they write.

        Raises:
            RaceError: Others touch it by plain loads and stores, and nothing orders the two.
        """
        placed = self._placed(address)
        for warp in np.unique(group.lanes >> 5).tolist():
            mine = group.lanes >> 5 == warp
            self._touched.combines(placed[mine], width, group.part(mine))
            flags = np.unique(address[mine]).tolist()
            if reads:
                self._take(flags, warp, order)
            if writes:
                self._give(flags, warp, order, keeps=reads)

    def map_read(self, address: int, size: int, lane: int, step: int) -> None:
        """Take note that a bulk store of a lane reads its tensor map, in a step as of `PendingGroups.steps`.

        Raises:
            RaceError: Others have changed it, and nothing orders the two.
        """
        warp = lane >> 5
        agent, clock = self._races.stores_of(warp), self._races.clock(warp)
        self._touched.change(self._pieces(address, size), _PIECE, agent, step, clock, "read")

    def map_written(self, address: int, size: int, lane: int) -> None:
        """Take note that a warp changes a tensor map.

        Raises:
            RaceError: A bulk store may still read it.
        """
        warp = lane >> 5
        step, clock = self._races.step_of(warp), self._races.clock(warp)
        self._touched.change(self._pieces(address, size), _PIECE, warp, step, clock, "write")

    def _take(self, flags: Iterable[int], warp: int, order: Order) -> None:
        for flag in flags:
            known = self._flags.get(flag)
            if known is not None:
                relaxed = order not in ("acquire", "acq_rel")
                self._races.take(known, np.array([warp << 5]), relaxed=relaxed)

    def _give(self, flags: Iterable[int], warp: int, order: Order, *, keeps: bool) -> None:
        """Let flags hand over what a warp knows; with ``keeps`` what they handed over before, too."""
        relaxed = order not in ("release", "acq_rel")
        given = self._races.give(None, np.array([warp << 5]), relaxed=relaxed)
        for flag in flags:
            before = self._flags.get(flag) if keeps else None
            self._flags[flag] = given if before is None else np.maximum(given, before)

    def _pieces(self, address: int, size: int) -> Array:
        return self._placed(np.arange(address, address + size, _PIECE))

    def _placed(self, address: Array) -> Array:
        """Return where bytes lie among those of the pages that were touched so far."""
        address = np.asarray(address).astype(I64)
        pages = address >> _PAGE_SHIFT
        known, where = np.unique(pages, return_inverse=True)
        slots = [self._pages.setdefault(page, len(self._pages)) for page in known.tolist()]
        # A vector at the end of a page is aligned, and so within it.
        size = len(self._pages) << _PAGE_SHIFT >> UNIT_SHIFT
        pieces = self._touched.pieces
        if len(pieces) < size:
            more = np.zeros(max(size, 2 * len(pieces)) - len(pieces), U32)
            self._touched.pieces = np.concatenate([pieces, more])
        return (np.array(slots, I64)[where] << _PAGE_SHIFT) + (address & (_PAGE - 1))
