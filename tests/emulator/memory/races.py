"""Races on shared memory, by the order that barriers make (happens-before), not by the order in which a schedule runs.

Two accesses of the same bytes, one of them a write, race unless a chain of barriers leads from one to the other. A write of the
value that is there already changes nothing for anybody, and races with nothing but atomic operations: Triton lets each warp that
holds a copy of a value write it. As in
FastTrack (Flanagan and Freund, PLDI 2009) every agent has a clock that counts its own steps, and knows for each other agent the last
step that lies before its own; each access leaves its agent's step behind, and its instruction for the report. Agents are

- the warps: their lanes are in order among each other;
- for each warp its ``cp.async``, its bulk stores, its ``wgmma`` (of a warp group), its ``tcgen05.mma``: they run on their own from
  their issue until they are waited for;
- for each mbarrier the loads whose bytes it counts.

Edges are ``bar``, ``barrier.cluster``, mbarriers (all arrivals and loads of a phase before those that have seen it complete), and waits
for groups. Not modelled: memory-order fences, flags in memory, ``.relaxed``. Atomic operations do not race with each other, but with
reads and writes.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.memory.origin import Issuer
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_SHIFT, Lanes

Access: TypeAlias = Literal["read", "write", "atomic"]
Kind: TypeAlias = Literal["thread", "copy", "store", "product", "tensor"]
_KINDS: tuple[Kind, ...] = ("thread", "copy", "store", "product", "tensor")
_WORDS: dict[str, str] = {
    "thread": "",
    "copy": "cp.async of ",
    "store": "a bulk store of ",
    "product": "a wgmma of ",
    "tensor": "a tcgen05.mma of ",
}
_DID: dict[Access, tuple[str, str]] = {
    "read": ("reads", "reads"),
    "write": ("writes", "wrote"),
    "atomic": ("changes atomically", "changed atomically"),
}
"""How errors call an access, as it is made and as it was made before."""
_UNIT_SHIFT = 1
"""Bytes are looked at in pairs; two warps that write one byte each of a pair seem to race."""
_MBARRIERS_OF_A_BLOCK = 128
_MAP_NORESERVE = 0x4000
_Touch: TypeAlias = tuple[int, int, int]
"""An access: its agent, the agent's step, and the number of the first instruction that has made it in this step."""


class RaceError(FaultError):
    """Two accesses of shared memory have no order, and one of them writes."""


@dataclass(frozen=True)
class _State:
    """Who has touched a piece of memory: the writes of what is there, the reads and atomic operations since.

    An atomic operation leaves writes and reads there: they may have an order with it and none with the next.
    """

    writes: tuple[_Touch, ...] = ()
    reads: tuple[_Touch, ...] = ()
    atomics: tuple[_Touch, ...] = ()


class Races:
    """What each agent knows of the others, and who has touched what."""

    def __init__(self, lanes: Lanes, issuer: Issuer) -> None:
        self._lanes, self._warps, self._issuer = lanes, lanes.count >> 5, issuer
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
        self._next: dict[tuple[int, _Touch], int] = {}
        self._mbarriers: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self._gathered: dict[int, Array] = {}
        self._complete: dict[int, Array] = {}

    @property
    def agents(self) -> int:
        """How many agents there are besides mbarriers; the first are the warps."""
        return self._first_load

    def known_to(self, warp: int) -> Array:
        """Return the last step of each agent, besides mbarriers, that lies before what a warp does now."""
        return self._clocks[warp, : self._first_load]

    def step_of(self, warp: int) -> int:
        """Return the number of a warp's present step."""
        return int(self._clocks[warp, warp])

    def tensor_step(self, warp: int) -> tuple[int, int]:
        """Return the agent of a warp's ``tcgen05.mma``, and the number of its next step."""
        agent = self._agent("tensor", warp)
        self._loads[agent] = self._loads.get(agent, 0) + 1
        return agent, self._loads[agent]

    def reads(self, address: Array, width: int, group: Group) -> None:
        """Take note of what threads read, ``width`` bytes each.

        Raises:
            RaceError: Others have written it, and nothing orders the two.
        """
        units = _units(address, width)
        warps = np.repeat(group.lanes >> 5, units.shape[1])
        self._touch(units.reshape(-1), warps, None)

    def writes(self, address: Array, after: Array, before: Array, group: Group) -> None:
        """Take note of what threads write.

        Args:
            address: Where, [threads].
            after: The bytes that each writes, [threads, width].
            before: The bytes that are there, [threads, width].
            group: The threads.

        Raises:
            RaceError: Others have touched it, and nothing orders the two.
        """
        width = after.shape[1]
        units = _units(address, width)
        warps = np.repeat(group.lanes >> 5, units.shape[1])
        pairs = (units.size, min(width, 1 << _UNIT_SHIFT))
        written, there = after.reshape(pairs), before.reshape(pairs)
        same = (written == there).all(1)
        if not self._touch(units.reshape(-1), warps, same):
            return
        place = (address if width == 1 else units).reshape(-1)
        _, place = np.unique(place, return_inverse=True)
        now = np.zeros((int(place.max()) + 1, pairs[1]), after.dtype)
        now[place] = there
        for warp in np.unique(warps):
            mine = warps == warp
            same = (written[mine] == now[place[mine]]).all(1)
            step, clock = int(self._clocks[warp, warp]), self._clocks[warp]
            self._change(units.reshape(-1)[mine], int(warp), step, clock, "write", same=same)
            now[place[mine]] = written[mine]

    def combines(self, address: Array, width: int, group: Group) -> None:
        """Take note of what threads of a warp change by an atomic operation, ``width`` bytes each.

        Raises:
            RaceError: Others have read or written it, and nothing orders the two.
        """
        warp = int(group.lanes[0]) >> 5
        step, clock = self.step_of(warp), self._clocks[warp]
        self._change(_units(address, width).reshape(-1), warp, step, clock, "atomic")

    def copied(self, address: Array, width: int, lanes: Array, steps: Array) -> None:
        """Take note of what ``cp.async`` of these lanes writes, in a step of each (`PendingGroups.steps`)."""
        for warp in np.unique(lanes >> 5):
            mine = lanes >> 5 == warp
            step = int(steps[mine].max())
            agent = self._agent("copy", int(warp))
            units = _units(address[mine], width).reshape(-1)
            self._change(units, agent, step, self._clocks[warp], "write")

    def stored(self, address: Array, width: int, lane: int, step: int) -> None:
        """Take note of what a bulk store reads, in a step as of `copied`."""
        warp = lane >> 5
        agent = self._agent("store", warp)
        units = _units(address, width).reshape(-1)
        self._change(units, agent, step, self._clocks[warp], "read")

    def multiplied(self, address: Array, width: int, lane: int, groups: int) -> None:
        """Take note of what a ``wgmma`` reads; its warp group begins with the warp of ``lane``."""
        warps = self._warp_group(lane >> 5)
        agent = self._agent("product", int(warps[0]))
        units = _units(address, width).reshape(-1)
        self._change(units, agent, groups + 1, self._clocks[warps].min(0), "read")

    def multiplied_alone(self, address: Array, width: int, lane: int) -> None:
        """Take note of what a ``tcgen05.mma`` reads."""
        warp = lane >> 5
        agent, step = self.tensor_step(warp)
        units = _units(address, width).reshape(-1)
        self._change(units, agent, step, self._clocks[warp], "read")

    def loaded(
        self, address: Array, width: int, lane: int, mbarrier: int, access: Access = "write"
    ) -> None:
        """Take note of what a load writes, the end of which an mbarrier tells, with what its warp did before the issue."""
        warp, agent = lane >> 5, self._agent_of(mbarrier)
        step = self._loads[agent] = self._loads.get(agent, 0) + 1
        units = _units(address, width).reshape(-1)
        self._change(units, agent, step, self._clocks[warp], access)
        gathered = self._gathered_by(mbarrier)
        self._give(gathered, warp)
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

    def arrives_behind_copies(self, mbarrier: int, lanes: Array, steps: Array) -> None:
        """Take note that lanes arrive at an mbarrier when their ``cp.async`` up to a step are done; they know nothing of that themselves."""
        gathered = self._gathered_by(mbarrier)
        for warp in np.unique(lanes >> 5):
            self._give(gathered, int(warp))
            agent, step = self._agent("copy", int(warp)), int(steps[lanes >> 5 == warp].max())
            gathered[agent] = max(gathered[agent], step)

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

    def _touch(self, units: Array, warps: Array, same: Array | None) -> bool:
        """Take note of pieces that threads of several warps touch in one instruction.

        Args:
            units: The pieces.
            warps: Who touches each.
            same: Whether what is written is there already; None for reads.

        Returns:
            Whether several warps write one piece: nothing is noted then.
        """
        before = self._touched[units]
        access: Access = "read" if same is None else "write"
        change = np.zeros(len(units), bool) if same is None else same
        packed = (before.astype(I64) * self._warps + warps) * 2 + change
        different, place = np.unique(packed, return_inverse=True)
        after = np.zeros(len(different), U32)
        for number, each in enumerate(different.tolist()):
            pair, is_same = divmod(each, 2)
            state, warp = divmod(pair, self._warps)
            step, clock = int(self._clocks[warp, warp]), self._clocks[warp]
            after[number] = self._following(state, warp, step, clock, access, same=bool(is_same))
        self._touched[units] = after[place]
        if (self._touched[units] == after[place]).all():
            return False
        self._touched[units] = before
        if same is None:
            for warp in np.unique(warps):
                step, clock = int(self._clocks[warp, warp]), self._clocks[warp]
                self._change(units[warps == warp], int(warp), step, clock, "read")
        return same is not None

    def _change(
        self,
        units: Array,
        agent: int,
        step: int,
        clock: Array,
        access: Access,
        *,
        same: Array | None = None,
    ) -> None:
        """Take note of pieces that one agent touches, which knows what ``clock`` says; ``same`` as of `_touch`."""
        packed = self._touched[units].astype(I64) * 2 + (0 if same is None else same)
        different, place = np.unique(packed, return_inverse=True)
        after = [
            self._following(each >> 1, agent, step, clock, access, same=bool(each & 1))
            for each in different.tolist()
        ]
        self._touched[units] = np.array(after, U32)[place]

    def _following(
        self, number: int, agent: int, step: int, clock: Array, access: Access, *, same: bool
    ) -> int:
        """Return the state behind an access.

        Raises:
            RaceError: It races with what was there.
        """
        state, own = self._states[number], (agent, step, self._issuer.number)
        writes = [each for each in _unknown(state.writes, clock) if each[:2] != own[:2]]
        # What is read is whole behind any of those that have written it.
        if writes and not same and (access != "read" or len(writes) == len(state.writes)):
            raise self._race(writes[0], "write", agent, access)
        atomics = _unknown(state.atomics, clock)
        if atomics and access != "atomic":
            raise self._race(atomics[0], "atomic", agent, access)
        if access == "read" and (number, own) in self._next:
            return self._next[number, own]
        reads = _unknown(state.reads, clock)
        if reads and access != "read" and not same:
            raise self._race(reads[0], "read", agent, access)
        if access == "write":
            following = _State(_with(writes, own), reads)
        elif access == "read":
            following = _State(state.writes, _with(reads, own, state.reads), state.atomics)
        else:
            following = _State(state.writes, state.reads, _with(atomics, own, state.atomics))
        after = self._numbers.setdefault(following, len(self._states))
        if after == len(self._states):
            self._states.append(following)
        if access == "read":
            self._next[number, own] = after
        return after

    def _race(self, other: _Touch, did: Access, agent: int, does: Access) -> RaceError:
        return RaceError(
            f"{self.named(agent)} {_DID[does][0]} shared memory that {self.named(other[0])} {_DID[did][1]}: no barrier "
            f"and no wait orders the two; the earlier one is {self._issuer.line_of(other[2])}"
        )

    def named(self, agent: int) -> str:
        """Return how errors call an agent."""
        if agent >= self._first_load:
            number = agent - self._first_load
            address = next(at for at, place in self._mbarriers.items() if place == number)
            return f"a load that the mbarrier at {address:#x} counts"
        kind, warp = divmod(agent, self._warps)
        lanes = np.arange(warp << 5, (warp << 5) + 32)
        return _WORDS[_KINDS[kind]] + self._lanes.describe(lanes)


def _unknown(accesses: Iterable[_Touch], clock: Array) -> tuple[_Touch, ...]:
    """Return the accesses that do not lie before what an agent does that knows what ``clock`` says."""
    return tuple(each for each in accesses if clock[each[0]] < each[1])


def _with(
    accesses: Iterable[_Touch], own: _Touch, before: Iterable[_Touch] = ()
) -> tuple[_Touch, ...]:
    """Return accesses and one more; of those ``before`` in the same step of its agent, the first one stands for it."""
    same = [each for each in before if each[:2] == own[:2]]
    return tuple(sorted({*accesses, *(same or [own])}))


def _units(address: Array, width: int) -> Array:
    """Return the pieces of memory that ``width`` bytes at each address touch, [addresses, n]."""
    first = np.asarray(address).astype(I64) >> _UNIT_SHIFT
    return first[:, None] + np.arange(max(1, width >> _UNIT_SHIFT))
