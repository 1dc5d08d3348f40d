"""Races on shared memory, by the order that barriers make (happens-before), not by the order in which a schedule runs.

Two accesses of the same bytes, one of them a write, race unless a chain of barriers leads from one to the other. As in
FastTrack (Flanagan and Freund, PLDI 2009) every agent has a clock that counts its own steps, and knows for each other agent the last
step that lies before its own; each access leaves its agent's step behind. Agents are

- the warps: their lanes are in order among each other;
- for each warp its ``cp.async``, its bulk stores, its ``wgmma`` (of a warp group), its ``tcgen05.mma``: they run on their own from
  their issue until they are waited for;
- for each mbarrier the loads whose bytes it counts.

Edges are ``bar``, ``barrier.cluster``, mbarriers (all arrivals and loads of a phase before those that have seen it complete), and waits
for groups. Not modelled: memory-order fences, flags in memory, ``.relaxed``. Atomic operations do not race.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_SHIFT, Lanes

Kind: TypeAlias = Literal["thread", "copy", "store", "product", "tensor"]
_KINDS: tuple[Kind, ...] = ("thread", "copy", "store", "product", "tensor")
_WORDS: dict[str, str] = {
    "thread": "",
    "copy": "cp.async of ",
    "store": "a bulk store of ",
    "product": "a wgmma of ",
    "tensor": "a tcgen05.mma of ",
}
_UNIT_SHIFT = 1
"""Bytes are looked at in pairs; two warps that write one byte each of a pair seem to race."""
_MBARRIERS_OF_A_BLOCK = 128
_MAP_NORESERVE = 0x4000


class RaceError(FaultError):
    """Two accesses of shared memory have no order, and one of them writes."""


@dataclass(frozen=True)
class _State:
    """Who has touched a piece of memory: (agent, step) of the last write, and of the reads since."""

    write: tuple[int, int] | None = None
    reads: tuple[tuple[int, int], ...] = ()


class Races:
    """What each agent knows of the others, and who has touched what."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes, self._warps = lanes, lanes.count >> 5
        self._first_load = len(_KINDS) * self._warps
        agents = self._first_load + _MBARRIERS_OF_A_BLOCK * lanes.blocks
        self._clocks = np.zeros((self._warps, agents), I64)
        own = np.arange(self._warps)
        self._clocks[own, own] = 1
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        size = (lanes.blocks << SHARED_SHIFT >> _UNIT_SHIFT) * 4
        self._pages = mmap.mmap(-1, size, flags=flags)
        self._touched: Array = np.frombuffer(self._pages, U32)
        self._states = [_State()]
        self._numbers = {_State(): 0}
        self._next: dict[tuple[int, int, int, bool], int] = {}
        self._mbarriers: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self._gathered: dict[int, Array] = {}
        self._complete: dict[int, Array] = {}

    def access(self, address: Array, width: int, group: Group, *, writes: bool) -> None:
        """Take note of what threads read or write, ``width`` bytes each.

        Raises:
            RaceError: Others have touched it, and nothing orders the two.
        """
        warps = group.lanes >> 5
        self._touch(_units(address, width), warps, "thread", writes=writes)

    def copied(self, address: Array, width: int, lanes: Array, groups: Array) -> None:
        """Take note of what ``cp.async`` of these lanes writes; ``groups`` have been committed before it."""
        for warp in np.unique(lanes >> 5):
            mine = lanes >> 5 == warp
            step = int(groups[mine].max()) + 1
            agent = self._agent("copy", int(warp))
            units = _units(address[mine], width).reshape(-1)
            self._change(units, agent, step, self._clocks[warp], writes=True)

    def stored(self, address: Array, width: int, lane: int, groups: int) -> None:
        """Take note of what a bulk store reads; ``groups`` have been committed before it."""
        warp = lane >> 5
        agent = self._agent("store", warp)
        units = _units(address, width).reshape(-1)
        self._change(units, agent, groups + 1, self._clocks[warp], writes=False)

    def multiplied(self, address: Array, width: int, lane: int, groups: int) -> None:
        """Take note of what a ``wgmma`` reads; its warp group begins with the warp of ``lane``."""
        warps = self._warp_group(lane >> 5)
        agent = self._agent("product", int(warps[0]))
        units = _units(address, width).reshape(-1)
        self._change(units, agent, groups + 1, self._clocks[warps].min(0), writes=False)

    def multiplied_alone(self, address: Array, width: int, lane: int) -> None:
        """Take note of what a ``tcgen05.mma`` reads."""
        warp = lane >> 5
        agent = self._agent("tensor", warp)
        step = self._loads[agent] = self._loads.get(agent, 0) + 1
        units = _units(address, width).reshape(-1)
        self._change(units, agent, step, self._clocks[warp], writes=False)

    def loaded(self, address: Array, width: int, lane: int, mbarrier: int) -> None:
        """Take note of what a load writes, the end of which an mbarrier tells."""
        warp, agent = lane >> 5, self._agent_of(mbarrier)
        step = self._loads[agent] = self._loads.get(agent, 0) + 1
        units = _units(address, width).reshape(-1)
        self._change(units, agent, step, self._clocks[warp], writes=True)
        gathered = self._gathered_by(mbarrier)
        np.maximum(gathered, self._clocks[warp], out=gathered)
        gathered[agent] = step

    def waited(self, kind: Kind, lanes: Array, steps: Array) -> None:
        """Take note that each lane has waited for its operations of a kind up to a step."""
        for warp in np.unique(lanes >> 5):
            step = int(steps[lanes >> 5 == warp].max())
            first = int(self._warp_group(int(warp))[0]) if kind == "product" else int(warp)
            agent = self._agent(kind, first)
            self._clocks[warp, agent] = max(self._clocks[warp, agent], step)

    def arrives(self, mbarrier: int, lane: int, *, with_products: bool = False) -> None:
        """Take note that a thread arrives at an mbarrier, or that its ``tcgen05.mma`` so far do."""
        gathered = self._gathered_by(mbarrier)
        self._give(gathered, lane >> 5)
        if with_products:
            agent = self._agent("tensor", lane >> 5)
            gathered[agent] = max(gathered[agent], self._loads.get(agent, 0))

    def completes(self, mbarrier: int) -> None:
        """Take note that a phase is complete: all that has arrived lies before it."""
        self._complete[mbarrier] = self._gathered_by(mbarrier).copy()

    def sees(self, mbarrier: int, lanes: Array) -> None:
        """Take note that threads have seen a phase complete."""
        known = self._complete.get(mbarrier)
        if known is not None:
            self.take(known, lanes)

    def give(self, gathered: Array | None, lanes: Array) -> Array:
        """Return what a barrier knows, with what these threads bring to it."""
        if gathered is None:
            gathered = np.zeros(self._clocks.shape[1], I64)
        for warp in np.unique(lanes >> 5):
            self._give(gathered, int(warp))
        return gathered

    def take(self, gathered: Array, lanes: Array) -> None:
        """Let threads know what a barrier knows."""
        warps = np.unique(lanes >> 5)
        self._clocks[warps] = np.maximum(self._clocks[warps], gathered)

    def _give(self, gathered: Array, warp: int) -> None:
        np.maximum(gathered, self._clocks[warp], out=gathered)
        self._clocks[warp, warp] += 1

    def _warp_group(self, warp: int) -> Array:
        """Return the warps of a warp's group, in order."""
        lanes = self._lanes
        first = lanes.warp_group[warp << 5]
        return np.unique(lanes.warp[lanes.warp_group == first])

    def _agent(self, kind: Kind, warp: int) -> int:
        return _KINDS.index(kind) * self._warps + warp

    def _agent_of(self, mbarrier: int) -> int:
        number = self._mbarriers.setdefault(mbarrier, len(self._mbarriers))
        if self._first_load + number >= self._clocks.shape[1]:
            raise UnmodelledError(f"more than {_MBARRIERS_OF_A_BLOCK} mbarriers in a block")
        return self._first_load + number

    def _gathered_by(self, mbarrier: int) -> Array:
        if mbarrier not in self._gathered:
            self._gathered[mbarrier] = np.zeros(self._clocks.shape[1], I64)
        return self._gathered[mbarrier]

    def _touch(self, units: Array, warps: Array, kind: Kind, *, writes: bool) -> None:
        """Take note of pieces [lanes, n] that threads of several warps touch in one instruction."""
        flat = units.reshape(-1)
        who = np.repeat(warps, units.shape[1])
        before = self._touched[flat]
        different, place = np.unique(before.astype(I64) * self._warps + who, return_inverse=True)
        after = np.zeros(len(different), U32)
        for number, pair in enumerate(different.tolist()):
            state, warp = divmod(pair, self._warps)
            agent = self._agent(kind, warp)
            step, clock = int(self._clocks[warp, agent]), self._clocks[warp]
            after[number] = self._following(state, agent, step, clock, writes=writes)
        self._touched[flat] = after[place]
        if (self._touched[flat] != after[place]).any():  # several warps touch the same
            self._touched[flat] = before
            for warp in np.unique(warps):
                agent = self._agent(kind, int(warp))
                step, clock = int(self._clocks[warp, agent]), self._clocks[warp]
                self._change(flat[who == warp], agent, step, clock, writes=writes)

    def _change(self, units: Array, agent: int, step: int, clock: Array, *, writes: bool) -> None:
        """Take note of pieces that one agent touches, which knows what ``clock`` says."""
        different, place = np.unique(self._touched[units], return_inverse=True)
        after = [
            self._following(int(state), agent, step, clock, writes=writes) for state in different
        ]
        self._touched[units] = np.array(after, U32)[place]

    def _following(self, number: int, agent: int, step: int, clock: Array, *, writes: bool) -> int:
        """Return the state behind an access.

        Raises:
            RaceError: It races with what was there.
        """
        key = (number, agent, step, writes)
        state = self._states[number]
        if state.write is not None and state.write != (agent, step):
            self._ordered(state.write, clock, agent, "wrote", writes=writes)
        if key in self._next and not writes:
            return self._next[key]
        reads: tuple[tuple[int, int], ...] = ()
        if writes:
            for read in state.reads:
                self._ordered(read, clock, agent, "reads", writes=True)
            following = _State((agent, step))
        else:
            reads = tuple(read for read in state.reads if clock[read[0]] < read[1])
            following = _State(state.write, tuple(sorted({*reads, (agent, step)})))
        if following not in self._numbers:
            self._numbers[following] = len(self._states)
            self._states.append(following)
        self._next[key] = self._numbers[following]
        return self._next[key]

    def _ordered(
        self, other: tuple[int, int], clock: Array, agent: int, did: str, *, writes: bool
    ) -> None:
        if clock[other[0]] >= other[1]:
            return
        now = "writes" if writes else "reads"
        raise RaceError(
            f"{self._named(agent)} {now} shared memory that {self._named(other[0])} {did}: no barrier and "
            "no wait orders the two"
        )

    def _named(self, agent: int) -> str:
        if agent >= self._first_load:
            number = agent - self._first_load
            address = next(at for at, place in self._mbarriers.items() if place == number)
            return f"a load that the mbarrier at {address:#x} counts"
        kind, warp = divmod(agent, self._warps)
        lanes = np.arange(warp << 5, (warp << 5) + 32)
        return _WORDS[_KINDS[kind]] + self._lanes.describe(lanes)


def _units(address: Array, width: int) -> Array:
    """Return the pieces of memory that ``width`` bytes at each address touch, [addresses, n]."""
    first = np.asarray(address).astype(I64) >> _UNIT_SHIFT
    return first[:, None] + np.arange(max(1, width >> _UNIT_SHIFT))
