"""Races on shared memory, by the order that barriers make (happens-before), not by the order in which a schedule runs.

`touched` says what a race is, and this file what orders two accesses. Agents are

- the warps: their lanes are in order among each other;
- for each warp its ``cp.async``, its bulk stores, its ``wgmma`` (of a warp group), its ``tcgen05.mma``: they run on their own from
  their issue until they are waited for; and its ``mbarrier.init``, which has a fence of its own;
- for each mbarrier the loads whose bytes it counts.

Edges are ``bar``, ``barrier.cluster``, mbarriers (all arrivals and loads of a phase before those that have seen it complete), and waits
for groups. An arrival that is ``.relaxed`` brings only what lies before a fence of its warp, and a wait that is ``.relaxed`` learns of it
at the next fence. What flags in global memory order is in `global_memory`; those in shared memory are not modelled.

TMA, ``wgmma`` and ``tcgen05.mma`` read shared memory through the async proxy. What a warp has written by ``st``, ``cp.async`` or atomic operations
has to lie before a ``fence.proxy.async``, and that before what reads it (PTX ISA, "Causality order": "linked by a proxy fence"): so each
warp knows the steps that lie before such a fence, too, and barriers hand that on as they hand on the rest.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import mmap
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.races.phases import Phases
from tests.emulator.races.touched import UNIT_SHIFT, Access, RaceError, Touched
from tests.emulator.threads.lanes import SHARED_SHIFT, Lanes
from tests.emulator.threads.origin import Issuer

Kind: TypeAlias = Literal["thread", "copy", "store", "product", "tensor", "mbarrier"]
_KINDS: tuple[Kind, ...] = ("thread", "copy", "store", "product", "tensor", "mbarrier")
_GENERIC = 2
"""The first kinds write through the generic proxy."""
_WORDS: dict[str, str] = {
    "thread": "",
    "copy": "cp.async of ",
    "store": "a bulk store of ",
    "product": "a wgmma of ",
    "tensor": "a tcgen05.mma of ",
    "mbarrier": "an mbarrier.init of ",
}
_MBARRIERS_OF_A_BLOCK = 128
_MAP_NORESERVE = 0x4000
_KNOWN, _FENCED = 0, 1


class Races:
    """What each agent knows of the others, and who has touched shared memory.

    Attributes:
        touched: Who has touched which pieces of it; it takes note of what threads read and write themselves.
    """

    def __init__(self, lanes: Lanes, issuer: Issuer) -> None:
        self._lanes, self._warps, self._issuer = lanes, lanes.count >> 5, issuer
        self._first_load = len(_KINDS) * self._warps
        self._first_phase = self._first_load + _MBARRIERS_OF_A_BLOCK * lanes.blocks
        agents = self._first_phase + _MBARRIERS_OF_A_BLOCK * lanes.blocks
        self._clocks = np.zeros((self._warps, 2, agents), I64)  # what a warp knows; what is fenced
        own = np.arange(self._warps)
        self._clocks[own, _KNOWN, own] = 1
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        size = (lanes.blocks << SHARED_SHIFT >> UNIT_SHIFT) * 4
        self._pages = mmap.mmap(-1, size, flags=flags)
        pieces = np.frombuffer(self._pages, U32)
        self.touched = Touched(self, self._warps, issuer, "shared", pieces)
        self._mbarriers: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self._gathered: dict[int, Array] = {}
        self._phases: dict[int, Phases] = {}
        self._begun: dict[int, tuple[int, int, int]] = {}
        self._users: dict[int, dict[int, tuple[int, int]]] = {}
        self._released: dict[int, Array] = {}
        self._to_acquire: dict[int, Array] = {}

    @property
    def agents(self) -> int:
        """How many agents there are besides mbarriers; the first are the warps."""
        return self._first_load

    def known_to(self, warp: int) -> Array:
        """Return the last step of each agent, besides mbarriers, that lies before what a warp does now."""
        return self._clocks[warp, _KNOWN, : self._first_load]

    def clock(self, warp: int) -> Array:
        """Return the last step of each agent, mbarriers among them, that lies before what a warp does now."""
        return self._clocks[warp, _KNOWN]

    def step_of(self, warp: int) -> int:
        """Return the number of a warp's present step."""
        return int(self._clocks[warp, _KNOWN, warp])

    def tensor_step(self, warp: int) -> tuple[int, int]:
        """Return the agent of a warp's ``tcgen05.mma``, and the number of its next step."""
        agent = self._agent("tensor", warp)
        self._loads[agent] = self._loads.get(agent, 0) + 1
        return agent, self._loads[agent]

    def touches(self, address: Array, width: int, lane: int, access: Access) -> None:
        """Take note of what a warp touches itself, ``width`` bytes at each address."""
        warp = lane >> 5
        step, clock = self.step_of(warp), self.clock(warp)
        self.touched.change(address, width, warp, step, clock, access)

    def copied(self, address: Array, width: int, lanes: Array, steps: Array) -> None:
        """Take note of what ``cp.async`` of these lanes writes, in a step of each (`PendingGroups.steps`)."""
        for warp in np.unique(lanes >> 5):
            mine = lanes >> 5 == warp
            step = int(steps[mine].max())
            agent = self._agent("copy", int(warp))
            self.touched.change(address[mine], width, agent, step, self.clock(warp), "write")

    def stored(self, address: Array, width: int, lane: int, step: int) -> None:
        """Take note of what a bulk store reads, in a step as of `copied`."""
        warp = lane >> 5
        self._read_async(address, width, self.stores_of(warp), step, self._clocks[warp])

    def stores_of(self, warp: int) -> int:
        """Return the agent of a warp's bulk stores."""
        return self._agent("store", warp)

    def multiplied(self, address: Array, width: int, lane: int, groups: int) -> None:
        """Take note of what a ``wgmma`` reads; its warp group begins with the warp of ``lane``."""
        warps = self._warp_group(lane >> 5)
        agent = self._agent("product", int(warps[0]))
        self._read_async(address, width, agent, groups + 1, self._clocks[warps].min(0))

    def multiplied_alone(self, address: Array, width: int, lane: int) -> None:
        """Take note of what a ``tcgen05.mma`` reads."""
        warp = lane >> 5
        agent, step = self.tensor_step(warp)
        self._read_async(address, width, agent, step, self._clocks[warp])

    def _read_async(self, address: Array, width: int, agent: int, step: int, clock: Array) -> None:
        """Take note of what an agent reads through the async proxy.

        Raises:
            RaceError: Others have written it, and nothing orders the two.
            FaultError: A warp has written it, and no proxy fence lies between the two.
        """
        self.touched.change(address, width, agent, step, clock[_KNOWN], "read")
        generic = _GENERIC * self._warps
        write = self.touched.newer(address, width, clock[_FENCED, :generic])
        if write is not None:
            raise FaultError(
                f"{self.named(agent)} reads shared memory through the async proxy that {self.named(write[0])} has written, and there is no "
                f"fence.proxy.async since that both are ordered with; the earlier one is {self._issuer.line_of(write[2])}"
            )

    def begins(self, mbarrier: int, width: int, lane: int) -> None:
        """Take note that a lane begins or ends an mbarrier: its memory changes.

        Raises:
            RaceError: Others have touched it, or used the mbarrier, and nothing orders that and this.
        """
        warp = lane >> 5
        self._phases_of(mbarrier).begin()
        for user, (step, number) in self._users.pop(mbarrier, {}).items():
            if self._clocks[warp, _KNOWN, user] < step:
                raise RaceError(
                    f"{self.named(warp)} ends the mbarrier at {mbarrier:#x}, which {self.named(user)} uses: no barrier and no wait orders "
                    f"the two; the earlier one is {self._issuer.line_of(number)}"
                )
        agent = self._agent("mbarrier", warp)
        step = self._loads[agent] = self._loads.get(agent, 0) + 1
        self.touched.change(np.array([mbarrier]), width, agent, step, self.clock(warp), "write")
        self._clocks[warp, _KNOWN, agent] = step
        self._begun[mbarrier] = (agent, step, self._issuer.number)

    def uses(self, mbarrier: int, lane: int) -> None:
        """Take note that a lane does anything with an mbarrier but begin it.

        Raises:
            RaceError: Nothing orders that with its beginning.
        """
        warp = lane >> 5
        self._users.setdefault(mbarrier, {})[warp] = (self.step_of(warp), self._issuer.number)
        begun = self._begun.get(mbarrier)
        if begun is None:
            return
        agent, step, number = begun
        if self._clocks[warp, _KNOWN, agent] < step:
            raise RaceError(
                f"{self.named(warp)} uses the mbarrier at {mbarrier:#x}, which {self.named(agent)} begins: no barrier and no wait "
                f"orders the two; the earlier one is {self._issuer.line_of(number)}"
            )

    def loaded(
        self, address: Array, width: int, lane: int, mbarrier: int, access: Access = "write"
    ) -> None:
        """Take note of what a load writes, the end of which an mbarrier tells, with what its warp did before the issue."""
        self.uses(mbarrier, lane)
        warp, agent = lane >> 5, self._agent_of(mbarrier)
        step = self._loads[agent] = self._loads.get(agent, 0) + 1
        self.touched.change(address, width, agent, step, self.clock(warp), access)
        gathered = self._gathered_by(mbarrier)
        self._phases_of(mbarrier).arrivers.add(agent)
        self._give(gathered, warp)
        gathered[_KNOWN, agent] = step

    def waited(self, kind: Kind, lanes: Array, steps: Array) -> None:
        """Take note that each lane has waited for its operations of a kind up to a step."""
        for warp in np.unique(lanes >> 5):
            step = int(steps[lanes >> 5 == warp].max())
            first = int(self._warp_group(int(warp))[0]) if kind == "product" else int(warp)
            agent = self._agent(kind, first)
            known = self._clocks[warp, _KNOWN]
            known[agent] = max(known[agent], step)

    def arrives(self, mbarrier: int, lane: int, *, relaxed: bool = False) -> None:
        """Take note that a thread arrives at an mbarrier."""
        self.uses(mbarrier, lane)
        self._phases_of(mbarrier).arrivers.add(lane >> 5)
        self._give(self._gathered_by(mbarrier), lane >> 5, relaxed=relaxed)

    def products_arrive(self, mbarrier: int, lane: int) -> None:
        """Take note that a thread arrives at an mbarrier when its ``tcgen05.mma`` so far are done."""
        self.arrives(mbarrier, lane)
        known, agent = self._gathered_by(mbarrier)[_KNOWN], self._agent("tensor", lane >> 5)
        self._phases_of(mbarrier).arrivers.add(agent)
        known[agent] = max(known[agent], self._loads.get(agent, 0))

    def arrives_behind_copies(self, mbarrier: int, lanes: Array, steps: Array) -> None:
        """Take note that lanes arrive at an mbarrier when their ``cp.async`` up to a step are done; they know nothing of that themselves."""
        gathered = self._gathered_by(mbarrier)
        for warp in np.unique(lanes >> 5):
            self.uses(mbarrier, int(warp) << 5)
            self._give(gathered, int(warp))
            agent, step = self._agent("copy", int(warp)), int(steps[lanes >> 5 == warp].max())
            self._phases_of(mbarrier).arrivers.add(agent)
            gathered[_KNOWN, agent] = max(gathered[_KNOWN, agent], step)

    def completes(self, mbarrier: int) -> None:
        """Take note that a phase is complete: all that has arrived lies before it."""
        phases, gathered = self._phases_of(mbarrier), self._gathered_by(mbarrier)
        agent = self._phase_agent(mbarrier)
        gathered[_KNOWN, agent] += 1
        if len(phases.arrivers) == 1 and (warp := phases.arrivers.pop()) < self._warps:
            self._clocks[warp, _KNOWN, agent] = gathered[_KNOWN, agent]  # nobody else was needed
        phases.complete(gathered)

    def sees(
        self, mbarrier: int, lanes: Array, state: int, *, parity: bool, relaxed: bool = False
    ) -> None:
        """Take note that threads have seen a phase complete.

        A wait by parity may be over as soon as the phase is that a warp knows of, or the next one if the parity of that is another; what
        completed later happens to be there, and is not handed over.

        Args:
            mbarrier: Its address.
            lanes: The threads.
            state: The phase that they wait for, or its parity.
            parity: Whether it is one.
            relaxed: The order.
        """
        phases, agent = self._phases_of(mbarrier), self._phase_agent(mbarrier)
        for warp in np.unique(lanes >> 5).tolist():
            place = state
            if parity:
                count = max(0, int(self._clocks[warp, _KNOWN, agent]) - phases.before)
                place = count - 1 if (count - 1) & 1 == state & 1 else count
            known = phases.known(place)
            if known is not None:
                self.take(known, np.array([warp << 5]), relaxed=relaxed)

    def give(self, gathered: Array | None, lanes: Array, *, relaxed: bool = False) -> Array:
        """Return what a barrier or a flag knows, with what these threads bring to it; ``relaxed``: what they did before their last fence."""
        if gathered is None:
            gathered = np.zeros(self._clocks.shape[1:], I64)
        for warp in np.unique(lanes >> 5):
            self._give(gathered, int(warp), relaxed=relaxed)
        return gathered

    def take(self, gathered: Array, lanes: Array, *, relaxed: bool = False) -> None:
        """Let threads know what a barrier or a flag knows; ``relaxed``: at their next fence."""
        warps = np.unique(lanes >> 5)
        if not relaxed:
            self._clocks[warps] = np.maximum(self._clocks[warps], gathered)
            return
        for warp in warps.tolist():
            _join(self._to_acquire, warp, gathered)

    def fence(self, lanes: Array, *, acquires: bool = True, releases: bool = True) -> None:
        """Take note of a memory-order fence: what relaxed waits have seen lies before what follows, what was done before relaxed arrivals."""
        for warp in np.unique(lanes >> 5).tolist():
            read = self._to_acquire.pop(warp, None) if acquires else None
            if read is not None:
                self.take(read, np.array([warp << 5]))
            if releases:
                self._released[warp] = self.give(None, np.array([warp << 5]))

    def fence_mbarriers(self, lanes: Array) -> None:
        """Take note of a ``fence.mbarrier_init``: of what lies before it, it orders ``mbarrier.init`` alone."""
        for warp in np.unique(lanes >> 5).tolist():
            agent, inits = self._agent("mbarrier", warp), np.zeros(self._clocks.shape[1:], I64)
            inits[_KNOWN, agent] = self._loads.get(agent, 0)
            _join(self._released, warp, inits)

    def fence_proxy(self, lanes: Array) -> None:
        """Take note of a ``fence.proxy.async``: what lies before it may be read through the async proxy behind it."""
        for warp in np.unique(lanes >> 5).tolist():
            known, fenced = self._clocks[warp]
            np.maximum(known, fenced, out=fenced)
            known[warp] += 1

    def _give(self, gathered: Array, warp: int, *, relaxed: bool = False) -> None:
        if relaxed:
            np.maximum(gathered, self._released.get(warp, 0), out=gathered)
            return
        np.maximum(gathered, self._clocks[warp], out=gathered)
        self._clocks[warp, _KNOWN, warp] += 1

    def _warp_group(self, warp: int) -> Array:
        """Return the warps of a warp's group, in order."""
        lanes = self._lanes
        first = lanes.warp_group[warp << 5]
        return np.unique(lanes.warp[lanes.warp_group == first])

    def _agent(self, kind: Kind, warp: int) -> int:
        return _KINDS.index(kind) * self._warps + warp

    def _agent_of(self, mbarrier: int) -> int:
        number = self._mbarriers.setdefault(mbarrier, len(self._mbarriers))
        if self._first_load + number >= self._first_phase:
            raise UnmodelledError(f"more than {_MBARRIERS_OF_A_BLOCK} mbarriers in a block")
        return self._first_load + number

    def _phase_agent(self, mbarrier: int) -> int:
        """Return the agent whose steps are the phases of an mbarrier."""
        return self._agent_of(mbarrier) - self._first_load + self._first_phase

    def _phases_of(self, mbarrier: int) -> Phases:
        return self._phases.setdefault(mbarrier, Phases())

    def _gathered_by(self, mbarrier: int) -> Array:
        if mbarrier not in self._gathered:
            self._gathered[mbarrier] = np.zeros(self._clocks.shape[1:], I64)
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


def step_known(gathered: Array, warp: int) -> int:
    """Return the last step of a warp that a barrier or a flag knows."""
    return int(gathered[_KNOWN, warp])


def _join(arrays: dict[int, Array], warp: int, known: Array) -> None:
    """Let the array of a warp know what another one knows."""
    before = arrays.get(warp)
    arrays[warp] = known if before is None else np.maximum(before, known)
