"""Who has touched which pieces of a memory: an access that nothing orders with an earlier one of the same bytes is a race.

Two accesses race if one of them is a write and no chain of barriers leads from one to the other. A write of the value that is there
already changes nothing for anybody, and races with nothing but atomic operations: Triton lets each warp that
holds a copy of a value write it. As in
FastTrack (Flanagan and Freund, PLDI 2009) every agent has a clock that counts its own steps, and knows for each other agent the last
step that lies before its own; each access leaves its agent's step behind, and its instruction for the report. Atomic operations do
not race with each other, but with reads and writes.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U32, Array
from tests.emulator.fault import FaultError
from tests.emulator.threads.group import Group
from tests.emulator.threads.origin import Issuer

Access: TypeAlias = Literal["read", "write", "atomic"]
_DID: dict[Access, tuple[str, str]] = {
    "read": ("reads", "reads"),
    "write": ("writes", "wrote"),
    "atomic": ("accesses atomically", "accessed atomically"),
}
"""How errors call an access, as it is made and as it was made before."""
UNIT_SHIFT = 1
"""Bytes are looked at in pairs; two warps that write one byte each of a pair seem to race."""
_Touch: TypeAlias = tuple[int, int, int]
"""An access: its agent, the agent's step, and the number of the first instruction that has made it in this step."""


class RaceError(FaultError):
    """Two accesses of the same memory have no order, and one of them writes."""


@dataclass(frozen=True)
class _State:
    """Who has touched a piece of memory: the writes of what is there, the reads and atomic operations since.

    An atomic operation leaves writes and reads there: they may have an order with it and none with the next.
    """

    writes: tuple[_Touch, ...] = ()
    reads: tuple[_Touch, ...] = ()
    atomics: tuple[_Touch, ...] = ()


class Clocks(Protocol):
    """What each warp knows of all agents."""

    def clock(self, warp: int) -> Array:
        """Return the last step of each agent that lies before what a warp does now."""
        ...

    def step_of(self, warp: int) -> int:
        """Return the number of a warp's present step."""
        ...

    def named(self, agent: int) -> str:
        """Return how errors call an agent."""
        ...


class Touched:
    """Who has touched which pieces of a memory.

    Attributes:
        pieces: The number of each piece's state, by address.
    """

    def __init__(
        self, clocks: Clocks, warps: int, issuer: Issuer, memory: str, pieces: Array
    ) -> None:
        """Begin with what nobody has touched.

        Args:
            clocks: What the warps know.
            warps: How many there are: the first agents.
            issuer: The instruction that runs.
            memory: How errors call the memory.
            pieces: Zeros, one for each two bytes.
        """
        self._clocks, self._warps, self._issuer, self._memory = clocks, warps, issuer, memory
        self.pieces = pieces
        self._states = [_State()]
        self._numbers = {_State(): 0}
        self._next: dict[tuple[int, _Touch], int] = {}

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
        pairs = (units.size, min(width, 1 << UNIT_SHIFT))
        written, there = after.reshape(pairs), before.reshape(pairs)
        same = (written == there).all(1)
        if not self._touch(units.reshape(-1), warps, same):
            return
        place = (address if width == 1 else units).reshape(-1)
        _, place = np.unique(place, return_inverse=True)
        now = np.zeros((int(place.max()) + 1, pairs[1]), after.dtype)
        now[place] = there
        for warp in np.unique(warps).tolist():
            mine = warps == warp
            same = (written[mine] == now[place[mine]]).all(1)
            step, clock = self._clocks.step_of(warp), self._clocks.clock(warp)
            self._change_units(units.reshape(-1)[mine], warp, step, clock, "write", same=same)
            now[place[mine]] = written[mine]

    def combines(self, address: Array, width: int, group: Group) -> None:
        """Take note of what threads of a warp change by an atomic operation, ``width`` bytes each.

        Raises:
            RaceError: Others have read or written it, and nothing orders the two.
        """
        warp = int(group.lanes[0]) >> 5
        step, clock = self._clocks.step_of(warp), self._clocks.clock(warp)
        self._change_units(_units(address, width).reshape(-1), warp, step, clock, "atomic")

    def change(
        self, address: Array, width: int, agent: int, step: int, clock: Array, access: Access
    ) -> None:
        """Take note of what an agent touches in a step, ``width`` bytes at each address; it knows what ``clock`` says.

        Raises:
            RaceError: Others have touched it, and nothing orders the two.
        """
        units = _units(address, width).reshape(-1)
        self._change_units(units, agent, step, clock, access)

    def newer(self, address: Array, width: int, clock: Array) -> _Touch | None:
        """Return an access that the first agents wrote by, and that does not lie before what ``clock`` says of them; None without."""
        numbers: list[int] = np.unique(self.pieces[_units(address, width)]).tolist()
        for number in numbers:
            state = self._states[number]
            writes = _unknown(state.writes, clock)
            # As in `_following`: any of several that have written the same.
            if len(writes) == len(state.writes) and writes:
                return writes[0]
            if atomics := _unknown(state.atomics, clock):
                return atomics[0]
        return None

    def _touch(self, units: Array, warps: Array, same: Array | None) -> bool:
        """Take note of pieces that threads of several warps touch in one instruction.

        Args:
            units: The pieces.
            warps: Who touches each.
            same: Whether what is written is there already; None for reads.

        Returns:
            Whether several warps write one piece: nothing is noted then.
        """
        before = self.pieces[units]
        access: Access = "read" if same is None else "write"
        change = np.zeros(len(units), bool) if same is None else same
        packed = (before.astype(I64) * self._warps + warps) * 2 + change
        different, place = np.unique(packed, return_inverse=True)
        after = np.zeros(len(different), U32)
        for number, each in enumerate(different.tolist()):
            pair, is_same = divmod(each, 2)
            state, warp = divmod(pair, self._warps)
            step, clock = self._clocks.step_of(warp), self._clocks.clock(warp)
            after[number] = self._following(state, warp, step, clock, access, same=bool(is_same))
        self.pieces[units] = after[place]
        if (self.pieces[units] == after[place]).all():
            return False
        self.pieces[units] = before
        if same is None:
            for warp in np.unique(warps).tolist():
                step, clock = self._clocks.step_of(warp), self._clocks.clock(warp)
                self._change_units(units[warps == warp], warp, step, clock, "read")
        return same is not None

    def _change_units(
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
        packed = self.pieces[units].astype(I64) * 2 + (0 if same is None else same)
        different, place = np.unique(packed, return_inverse=True)
        after = [
            self._following(each >> 1, agent, step, clock, access, same=bool(each & 1))
            for each in different.tolist()
        ]
        self.pieces[units] = np.array(after, U32)[place]

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
            f"{self._clocks.named(agent)} {_DID[does][0]} {self._memory} memory that {self._clocks.named(other[0])} {_DID[did][1]}: no barrier "
            f"and no wait orders the two; the earlier one is {self._issuer.line_of(other[2])}"
        )


def _unknown(accesses: Iterable[_Touch], clock: Array) -> tuple[_Touch, ...]:
    """Return the accesses that do not lie before what an agent does that knows what ``clock`` says."""
    return tuple(each for each in accesses if each[0] < len(clock) and clock[each[0]] < each[1])


def _with(
    accesses: Iterable[_Touch], own: _Touch, before: Iterable[_Touch] = ()
) -> tuple[_Touch, ...]:
    """Return accesses and one more; of those ``before`` in the same step of its agent, the first one stands for it."""
    same = [each for each in before if each[:2] == own[:2]]
    return tuple(sorted({*accesses, *(same or [own])}))


def _units(address: Array, width: int) -> Array:
    """Return the pieces of memory that ``width`` bytes at each address touch, [addresses, n]."""
    first = np.asarray(address).astype(I64) >> UNIT_SHIFT
    return first[:, None] + np.arange(max(1, width >> UNIT_SHIFT))
