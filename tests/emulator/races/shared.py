"""Races on shared memory, by the order that barriers make (happens-before), not by the order in which a schedule runs.

`touched` says what a race is, and this file what orders two accesses. Agents are

- the warps: their lanes are in order among each other;
- for each warp its ``cp.async``, its bulk stores, its ``wgmma`` (of a warp group), its ``tcgen05.mma``: they run on their own from
  their issue until they are waited for;
- for each mbarrier the loads whose bytes it counts.

Edges are ``bar``, ``barrier.cluster``, mbarriers (all arrivals and loads of a phase before those that have seen it complete), and waits
for groups. What flags in global memory order is in `global_memory`; those in shared memory are not modelled.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import mmap
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array
from tests.emulator.fault import UnmodelledError
from tests.emulator.races.touched import UNIT_SHIFT, Access, Touched
from tests.emulator.threads.lanes import SHARED_SHIFT, Lanes
from tests.emulator.threads.origin import Issuer

Kind: TypeAlias = Literal["thread", "copy", "store", "product", "tensor"]
_KINDS: tuple[Kind, ...] = ("thread", "copy", "store", "product", "tensor")
_WORDS: dict[str, str] = {
    "thread": "",
    "copy": "cp.async of ",
    "store": "a bulk store of ",
    "product": "a wgmma of ",
    "tensor": "a tcgen05.mma of ",
}
_MBARRIERS_OF_A_BLOCK = 128
_MAP_NORESERVE = 0x4000


class Races:
    """What each agent knows of the others, and who has touched shared memory.

    Attributes:
        touched: Who has touched which pieces of it; it takes note of what threads read and write themselves.
    """

    def __init__(self, lanes: Lanes, issuer: Issuer) -> None:
        self._lanes, self._warps = lanes, lanes.count >> 5
        self._first_load = len(_KINDS) * self._warps
        agents = self._first_load + _MBARRIERS_OF_A_BLOCK * lanes.blocks
        self._clocks = np.zeros((self._warps, agents), I64)
        own = np.arange(self._warps)
        self._clocks[own, own] = 1
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        size = (lanes.blocks << SHARED_SHIFT >> UNIT_SHIFT) * 4
        self._pages = mmap.mmap(-1, size, flags=flags)
        pieces = np.frombuffer(self._pages, U32)
        self.touched = Touched(self, self._warps, issuer, "shared", pieces)
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

    def clock(self, warp: int) -> Array:
        """Return the last step of each agent, mbarriers among them, that lies before what a warp does now."""
        return self._clocks[warp]

    def step_of(self, warp: int) -> int:
        """Return the number of a warp's present step."""
        return int(self._clocks[warp, warp])

    def tensor_step(self, warp: int) -> tuple[int, int]:
        """Return the agent of a warp's ``tcgen05.mma``, and the number of its next step."""
        agent = self._agent("tensor", warp)
        self._loads[agent] = self._loads.get(agent, 0) + 1
        return agent, self._loads[agent]

    def copied(self, address: Array, width: int, lanes: Array, steps: Array) -> None:
        """Take note of what ``cp.async`` of these lanes writes, in a step of each (`PendingGroups.steps`)."""
        for warp in np.unique(lanes >> 5):
            mine = lanes >> 5 == warp
            step = int(steps[mine].max())
            agent = self._agent("copy", int(warp))
            self.touched.change(address[mine], width, agent, step, self._clocks[warp], "write")

    def stored(self, address: Array, width: int, lane: int, step: int) -> None:
        """Take note of what a bulk store reads, in a step as of `copied`."""
        warp = lane >> 5
        self.touched.change(address, width, self.stores_of(warp), step, self._clocks[warp], "read")

    def stores_of(self, warp: int) -> int:
        """Return the agent of a warp's bulk stores."""
        return self._agent("store", warp)

    def multiplied(self, address: Array, width: int, lane: int, groups: int) -> None:
        """Take note of what a ``wgmma`` reads; its warp group begins with the warp of ``lane``."""
        warps = self._warp_group(lane >> 5)
        agent = self._agent("product", int(warps[0]))
        self.touched.change(address, width, agent, groups + 1, self._clocks[warps].min(0), "read")

    def multiplied_alone(self, address: Array, width: int, lane: int) -> None:
        """Take note of what a ``tcgen05.mma`` reads."""
        warp = lane >> 5
        agent, step = self.tensor_step(warp)
        self.touched.change(address, width, agent, step, self._clocks[warp], "read")

    def loaded(
        self, address: Array, width: int, lane: int, mbarrier: int, access: Access = "write"
    ) -> None:
        """Take note of what a load writes, the end of which an mbarrier tells, with what its warp did before the issue."""
        warp, agent = lane >> 5, self._agent_of(mbarrier)
        step = self._loads[agent] = self._loads.get(agent, 0) + 1
        self.touched.change(address, width, agent, step, self._clocks[warp], access)
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

    def named(self, agent: int) -> str:
        """Return how errors call an agent."""
        if agent >= self._first_load:
            number = agent - self._first_load
            address = next(at for at, place in self._mbarriers.items() if place == number)
            return f"a load that the mbarrier at {address:#x} counts"
        kind, warp = divmod(agent, self._warps)
        lanes = np.arange(warp << 5, (warp << 5) + 32)
        return _WORDS[_KINDS[kind]] + self._lanes.describe(lanes)
