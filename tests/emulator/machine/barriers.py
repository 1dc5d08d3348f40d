"""Barriers of threads: the sixteen of a block (``bar``, ``barrier.cta``) and that of a cluster."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.machine.wave import Wave
from tests.emulator.ptx.syntax import (
    Block,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
)
from tests.emulator.threads.group import Group

Resume: TypeAlias = Callable[[Group, int], None]
"""Lets a group go on at a block."""

MOST_BARRIERS = 16


@dataclass(frozen=True)
class _Waiting:
    """Threads at a barrier: who, where they go on, and what they bring to a reduction."""

    group: Group
    following: int
    reduction: str = ""
    result: Register | None = None
    values: Array | None = None


@dataclass
class _NamedBarrier:
    """One barrier of a block.

    Attributes:
        arrived: Threads that have arrived, 32 for each warp (PTX ISA, "barrier": "in multiple of warp size").
        wanted: Threads it is for; None if all of the block take part.
        waiting: Those that wait.
        lanes: All that are here.
        parts: Those of warps that are not all here: they do not count yet.
        text: The instruction of who came last.
        known: What the barrier knows of others' steps, see `Races`.
    """

    arrived: int = 0
    wanted: int | None = None
    waiting: list[_Waiting] = field(default_factory=list[_Waiting])
    lanes: list[Array] = field(default_factory=list[Array])
    parts: list[Array] = field(default_factory=list[Array])
    text: str = ""
    known: Array | None = None


class NamedBarriers:
    """The barriers of all blocks."""

    def __init__(self, wave: Wave, resume: Resume) -> None:
        self._wave, self._resume = wave, resume
        self._barriers: dict[tuple[int, int], _NamedBarrier] = {}

    def take(self, group: Group, block: Block) -> None:
        """Let a group arrive at a barrier, or wait for it."""
        instruction = block.code[0]
        assert block.following is not None
        operands = list(instruction.operands)
        reduction, result, values = "", None, None
        if instruction.has("red"):
            reduction = next(part for part in instruction.parts if part in ("popc", "and", "or"))
            result, values = self._reduced(operands, group)
        numbers = self._value(operands[0], group)
        wanted = self._value(operands[1], group) if len(operands) > 1 else None
        blocks = self._wave.lanes.block[group.lanes]
        keys = blocks * MOST_BARRIERS + numbers
        if (numbers >= MOST_BARRIERS).any():
            raise FaultError(f"barrier {int(numbers.max())}; a block has {MOST_BARRIERS}")
        for key in np.unique(keys):
            mask = keys == key
            part = group.part(mask)
            place = (int(key) // MOST_BARRIERS, int(key) % MOST_BARRIERS)
            barrier = self._barriers.setdefault(place, _NamedBarrier())
            self._expect(barrier, place, None if wanted is None else int(wanted[mask][0]))
            barrier.lanes.append(part.lanes)
            barrier.parts.append(part.lanes)
            self._count(barrier)
            if self._wave.memory.races is not None:
                barrier.known = self._wave.memory.races.give(barrier.known, part.lanes)
            barrier.text = f"{instruction.text} at {instruction.place}"
            if instruction.has("arrive"):
                self._resume(part, block.following)
            else:
                brought = None if values is None else values[mask]
                waiting = _Waiting(part, block.following, reduction, result, brought)
                barrier.waiting.append(waiting)
            self.release(*place)

    def _count(self, barrier: _NamedBarrier) -> None:
        """Count the warps of which all living threads are at a barrier."""
        if not barrier.parts:
            return
        lanes = np.concatenate(barrier.parts)
        here = np.bincount(lanes >> 5, minlength=len(self._wave.lanes.live_in_warp))
        complete = (here > 0) & (here >= self._wave.lanes.live_in_warp)
        rest = lanes[~complete[lanes >> 5]]
        barrier.arrived += 32 * int(complete.sum())
        barrier.parts = [rest] if len(rest) else []

    def _expect(self, barrier: _NamedBarrier, place: tuple[int, int], wanted: int | None) -> None:
        if wanted is not None and (wanted % 32 or wanted <= 0):
            raise FaultError(f"barrier {place[1]} for {wanted} threads, no multiple of a warp")
        if (barrier.arrived or barrier.parts) and barrier.wanted != wanted:
            raise FaultError(
                f"barrier {place[1]} is for {barrier.wanted or 'all'} threads, now for {wanted or 'all'}"
            )
        barrier.wanted = wanted

    def _reduced(self, operands: list[Operand], group: Group) -> tuple[Register, Array]:
        """Take result and predicate away from the operands of a reduction, and return them."""
        result, predicate = operands.pop(0), operands.pop()
        assert isinstance(result, Register)
        if isinstance(predicate, Negated):
            return result, ~self._value(predicate.register, group)
        return result, self._value(predicate, group)

    def _value(self, operand: Operand, group: Group) -> Array:
        if isinstance(operand, Immediate):
            return np.full(group.n, int(operand.value))
        assert isinstance(operand, Register)
        return self._wave.registers[operand.number][group.s]

    def release_all(self) -> None:
        """Look at each barrier again, after threads have ended."""
        for place in list(self._barriers):
            self.release(*place)

    def release(self, block: int, number: int) -> None:
        """Let those who wait go on if all are there.

        Raises:
            FaultError: More threads have arrived than the barrier is for.
        """
        barrier = self._barriers[block, number]
        self._count(barrier)
        wanted = barrier.wanted
        if wanted is None:
            wanted = 32 * self._wave.lanes.live_warps(block)
        if not barrier.arrived or barrier.arrived < wanted:
            return
        if barrier.arrived > wanted:
            raise FaultError(
                f"{barrier.arrived} threads at barrier {number}, which is for {wanted}"
            )
        waiting, known = barrier.waiting, barrier.known
        barrier.waiting, barrier.lanes, barrier.arrived, barrier.known = [], [], 0, None
        self._wave.progress.events += 1
        if not waiting:
            return
        turn = max(each.group.turn for each in waiting)
        values = [each.values for each in waiting if each.values is not None]
        for each in waiting:
            if each.result is not None and each.result.number in self._wave.registers:
                total = _total(each.reduction, np.concatenate(values))
                self._wave.registers[each.result.number][each.group.lanes] = total
            each.group.turn = turn
            if self._wave.memory.races is not None and known is not None:
                self._wave.memory.races.take(known, each.group.lanes)
            self._resume(each.group, each.following)

    def report(self) -> Iterator[str]:
        """Yield a line for each barrier at which threads wait."""
        lanes = self._wave.lanes
        for (block, number), barrier in self._barriers.items():
            if not barrier.waiting:
                continue
            waiting = np.sort(np.concatenate([each.group.lanes for each in barrier.waiting]))
            here = np.concatenate(barrier.lanes)
            living = np.nonzero(lanes.alive & (lanes.block == block))[0]
            missing = np.setdiff1d(living, here)
            wanted = "all living" if barrier.wanted is None else str(barrier.wanted)
            absent = lanes.describe(missing) if len(missing) else "no living thread"
            yield (
                f"barrier {number} ({barrier.text}): {barrier.arrived} of {wanted} threads have arrived, "
                f"{lanes.describe(waiting)} wait, not there: {absent}"
            )


def _total(reduction: str, values: Array) -> object:
    if reduction == "and":
        return values.all()
    return values.any() if reduction == "or" else values.sum()


@dataclass
class _ClusterBarrier:
    arrived: int = 0
    phase: int = 0
    waiting: list[_Waiting] = field(default_factory=list[_Waiting])
    place: str = ""
    known: Array | None = None
    complete: Array | None = None


class ClusterBarriers:
    """The barrier of each cluster: ``barrier.cluster.arrive`` and ``.wait``."""

    def __init__(self, wave: Wave, resume: Resume) -> None:
        self._wave, self._resume = wave, resume
        self._barriers = [_ClusterBarrier() for _ in range(wave.lanes.clusters)]
        self._phase = np.zeros(wave.lanes.count, np.int64)
        self._arrived = np.zeros(wave.lanes.count, bool)

    def take(self, group: Group, block: Block) -> None:
        """Let a group arrive or wait.

        Raises:
            FaultError: A thread arrives twice before it waits, or waits before it arrives: PTX says "only once before the barrier
                completes", which a thread knows from its wait alone, and a wait is for the own arrival, too.
        """
        instruction: Instruction = block.code[0]
        assert block.following is not None
        lanes = self._wave.lanes
        arrives = instruction.has("arrive")
        if (wrong := self._arrived[group.lanes] == arrives).any():
            who = lanes.describe_thread(int(group.lanes[int(wrong.argmax())]))
            what = "arrives twice" if arrives else "waits, and has not arrived,"
            raise FaultError(f"{who} {what} at the barrier of its cluster")
        self._arrived[group.lanes] = arrives
        clusters = lanes.cluster[lanes.block[group.lanes]]
        for cluster in np.unique(clusters):
            part = group.part(clusters == cluster)
            barrier = self._barriers[int(cluster)]
            if arrives:
                barrier.arrived += part.n
                if self._wave.memory.races is not None:
                    relaxed = instruction.has("relaxed")
                    barrier.known = self._wave.memory.races.give(
                        barrier.known, part.lanes, relaxed=relaxed
                    )
                self._phase[part.lanes] = barrier.phase + 1
                self._resume(part, block.following)
            else:
                barrier.waiting.append(_Waiting(part, block.following))
                barrier.place = f"{instruction.text} at {instruction.place}"
            self.release(int(cluster))

    def release_all(self) -> None:
        """Look at each barrier again, after threads have ended."""
        for cluster in range(len(self._barriers)):
            self.release(cluster)

    def release(self, cluster: int) -> None:
        """Let those who wait go on if all living threads of the cluster have arrived."""
        barrier = self._barriers[cluster]
        if barrier.arrived and barrier.arrived >= self._wave.lanes.live_in_cluster(cluster):
            barrier.arrived, barrier.phase = 0, barrier.phase + 1
            barrier.complete, barrier.known = barrier.known, None
            self._wave.progress.events += 1
        waiting, barrier.waiting = barrier.waiting, []
        for each in waiting:
            ready = self._phase[each.group.lanes] <= barrier.phase
            if ready.any():
                passing = each.group.part(ready)
                if self._wave.memory.races is not None and barrier.complete is not None:
                    self._wave.memory.races.take(barrier.complete, passing.lanes)
                self._resume(passing, each.following)
            if not ready.all():
                barrier.waiting.append(_Waiting(each.group.part(~ready), each.following))

    def report(self) -> Iterator[str]:
        """Yield a line for each cluster whose threads wait."""
        lanes = self._wave.lanes
        for cluster, barrier in enumerate(self._barriers):
            if barrier.waiting:
                waiting = np.sort(np.concatenate([each.group.lanes for each in barrier.waiting]))
                wanted = lanes.live_in_cluster(cluster)
                yield (
                    f"the barrier of cluster {cluster} ({barrier.place}): {barrier.arrived} of {wanted} "
                    f"threads have arrived, {lanes.describe(waiting)} wait"
                )
