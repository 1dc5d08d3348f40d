"""mbarrier objects in shared memory: phases, arrivals, bytes of transactions.

A phase is complete when as many threads have arrived as the barrier counts, and all bytes that it expects have come.
Their 64 bits in memory are opaque in PTX; here they are records beside the memory, by address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U32, U64, Array
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.memory.memory import Memory
from tests.emulator.memory.pending import PendingLoads, Progress
from tests.emulator.races.shared import Races
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_SHIFT

_BYTES = 8
_MOST_COUNT = (1 << 20) - 1
"""Largest count and largest number of outstanding bytes (PTX ISA, "Tracking mechanism")."""


@dataclass
class MBarrier:
    """One barrier.

    Attributes:
        count: Arrivals of each phase.
        missing: Arrivals that the phase lacks.
        bytes: Bytes that it still expects; negative if they came before they were expected.
        phase: Completed phases.
    """

    count: int
    missing: int
    bytes: int = 0
    phase: int = 0

    def __str__(self) -> str:
        return (
            f"phase {self.phase}, {self.missing} of {self.count} arrivals missing, "
            f"{self.bytes} bytes still expected"
        )


class MBarriers:
    """All barriers of a wave.

    Attributes:
        waiting: For each lane the address of the barrier it has waited for in vain, 0 if there is none.
    """

    def __init__(self, lanes: int, memory: Memory, progress: Progress, loads: PendingLoads) -> None:
        self._barriers: dict[int, MBarrier] = {}
        self._memory, self._progress, self._loads = memory, progress, loads
        self.waiting = np.zeros(lanes, U64)

    def at(self, address: int) -> MBarrier:
        """Return a barrier.

        Raises:
            FaultError: There is none at the address.
        """
        barrier = self._barriers.get(address)
        if barrier is None:
            raise FaultError(f"the mbarrier at shared address {address:#x} was not initialised")
        return barrier

    def _reach(self, address: int, group: Group, place: int) -> None:
        """Check that a lane may touch an mbarrier's memory.

        Raises:
            FaultError: It is outside of what its block may touch.
        """
        lane = int(group.lanes[place])
        block = int(self._memory.lanes.block[lane])
        self._memory.check_shared(address, _BYTES, "an mbarrier operation", block)
        if self._memory.watch is not None:
            self._memory.watch.ends.touches(address >> SHARED_SHIFT, lane)

    def reached(self, address: Any, group: Group, place: int) -> tuple[int, MBarrier]:
        """Return the address and the barrier that a lane names.

        Raises:
            FaultError: There is none, or it is in a block of another cluster.
        """
        where = group.at(address, place)
        barrier = self.at(where)
        self._reach(where, group, place)
        return where, barrier

    def _changes(self, address: int, group: Group, place: int) -> None:
        """Take note that a lane begins or ends an mbarrier: its memory changes.

        Raises:
            RaceError: Others have touched it, or seen a phase of it complete, and nothing orders that and this.
        """
        if self._memory.races is not None:
            self._memory.races.begins(address, _BYTES, int(group.lanes[place]))

    def initialise(self, address: Any, count: Any, guard: Array | None, group: Group) -> None:
        """Make barriers of ``count`` arrivals a phase."""
        for place in group.active(guard):
            where, arrivals = group.at(address, place), group.at(count, place)
            self._reach(where, group, place)
            if where % _BYTES:
                raise FaultError(
                    f"mbarrier at {where:#x}, no multiple of {_BYTES}", CudaError.MISALIGNED_ADDRESS
                )
            if not 1 <= arrivals <= _MOST_COUNT:
                raise FaultError(f"mbarrier.init with a count of {arrivals}")
            if where in self._barriers:
                raise FaultError(
                    f"mbarrier.init where there is an mbarrier, at {where:#x}: mbarrier.inval first "
                    f"({self._barriers[where]})"
                )
            self._changes(where, group, place)
            self._barriers[where] = MBarrier(arrivals, arrivals)
            self._memory.barriers.begin(where)
            self._progress.events += 1

    def invalidate(self, address: Any, guard: Array | None, group: Group) -> None:
        """End barriers."""
        for place in group.active(guard):
            where, _ = self.reached(address, group, place)
            self._changes(where, group, place)
            del self._barriers[where]
            self._memory.barriers.end(where)
            self._progress.events += 1

    def expect(self, address: Any, count: Any, guard: Array | None, group: Group) -> None:
        """Expect more bytes in the current phase."""
        for place in group.active(guard):
            where, barrier = self.reached(address, group, place)
            if self._memory.races is not None:
                self._memory.races.uses(where, int(group.lanes[place]))
            barrier.bytes += group.at(count, place)
            if abs(barrier.bytes) > _MOST_COUNT:
                raise FaultError(
                    f"the mbarrier at {where:#x} expects {barrier.bytes} bytes, too many"
                )

    def received(self, address: int, count: int) -> None:
        """Take note of bytes that have come (``complete_tx``)."""
        barrier = self.at(address)
        barrier.bytes -= count
        self._complete(address, barrier)

    def complete_tx(self, address: Any, count: Any, guard: Array | None, group: Group) -> None:
        """Take note of bytes, for each lane; it is always ``.relaxed``."""
        for place in group.active(guard):
            where, _ = self.reached(address, group, place)
            if self._memory.races is not None:
                self._memory.races.arrives(where, int(group.lanes[place]), relaxed=True)
            self.received(where, group.at(count, place))

    def arrive(
        self,
        address: Any,
        count: Any,
        guard: Array | None,
        group: Group,
        *,
        drop: bool = False,
        relaxed: bool = False,
    ) -> Array:
        """Arrive and return each lane's state: the phase it has arrived at. ``drop`` counts less from then on; ``relaxed`` is the order."""
        states = np.zeros(group.n, U64)
        for place in group.active(guard):
            where, barrier = self.reached(address, group, place)
            states[place] = barrier.phase
            if drop:
                barrier.count -= group.at(count, place)
            if self._memory.races is not None:
                self._memory.races.arrives(where, int(group.lanes[place]), relaxed=relaxed)
            self.arrived(where, group.at(count, place))
        return states

    def awaits(self, address: int, count: int) -> None:
        """Await more arrivals in the current phase (``cp.async.mbarrier.arrive`` without ``.noinc``)."""
        barrier = self.at(address)
        barrier.missing += count
        if barrier.missing > _MOST_COUNT:
            raise FaultError(f"the mbarrier at {address:#x} awaits {barrier.missing} arrivals")

    def arrived(self, address: int, count: int = 1) -> None:
        """Take note of arrivals.

        Raises:
            FaultError: The phase counts less.
        """
        barrier = self.at(address)
        if count > barrier.missing:
            raise FaultError(
                f"{count} arrivals at the mbarrier at {address:#x}, more than it counts: {barrier}"
            )
        barrier.missing -= count
        self._complete(address, barrier)

    def _complete(self, address: int, barrier: MBarrier) -> None:
        self._progress.events += 1
        if barrier.missing == 0 and barrier.bytes == 0:
            barrier.phase += 1
            barrier.missing = barrier.count
            if self._memory.races is not None:
                self._memory.races.completes(address)

    def try_wait(
        self,
        address: Any,
        state: Any,
        guard: Array | None,
        group: Group,
        *,
        parity: bool,
        relaxed: bool = False,
    ) -> Array:
        """Return whether a phase is complete: that of a state, or the current one if it has a parity.

        It never suspends: who waits in vain loses its turn. In a late schedule one load comes, then.
        """
        addresses = group.all(address)
        known: dict[int, int] = {}
        phases = np.zeros(group.n, U64)
        active = np.ones(group.n, bool) if guard is None else group.all(guard)
        elsewhere = addresses >> SHARED_SHIFT != self._memory.lanes.block[group.lanes]
        for place in np.nonzero(active & elsewhere)[0]:
            self._reach(int(addresses[place]), group, int(place))
        if active.all() and (addresses == addresses[0]).all():
            phases[:] = self.at(int(addresses[0])).phase
        else:
            for place in np.nonzero(active)[0]:
                where = int(addresses[place])
                if where not in known:
                    known[where] = self.at(where).phase
                phases[place] = known[where]
        wanted = group.all(state)
        done = (phases.astype(U32) & 1) != (wanted & 1) if parity else phases > wanted
        missing = ~done & active
        self.waiting[group.lanes[active]] = 0
        seen = done & active
        if self._memory.races is not None:
            self._watch(
                self._memory.races,
                addresses,
                active,
                seen,
                group,
                wanted,
                parity=parity,
                relaxed=relaxed,
            )
        if missing.any():
            self.waiting[group.lanes[missing]] = addresses[missing]
            self._progress.waited_in_vain = True
            for where in np.unique(addresses[missing]):
                self._loads.let_come(int(where))
        return done

    def _watch(
        self,
        races: Races,
        addresses: Array,
        active: Array,
        seen: Array,
        group: Group,
        wanted: Array,
        *,
        parity: bool,
        relaxed: bool,
    ) -> None:
        """Take note of which mbarriers active lanes look at, and of those where they have seen a phase complete."""
        pairs = zip(addresses[active].tolist(), (group.lanes[active] >> 5).tolist(), strict=True)
        for where, warp in set(pairs):
            races.uses(where, warp << 5)
        if seen.any():
            for where, state in set(
                zip(addresses[seen].tolist(), wanted[seen].tolist(), strict=True)
            ):
                mine = seen & (addresses == where) & (wanted == state)
                races.sees(where, group.lanes[mine], state, parity=parity, relaxed=relaxed)
            races.touched.reads(addresses[seen], _BYTES, group.part(seen))
