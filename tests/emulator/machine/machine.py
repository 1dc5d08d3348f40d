"""Runs a wave of blocks to its end.

One basic block of one group of lanes is a step; see `groups` for the order. Lanes that branch apart become two groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from tests.emulator.fault import CudaError, DeadlockError, FaultError
from tests.emulator.machine.barriers import ClusterBarriers, NamedBarriers
from tests.emulator.machine.groups import Groups
from tests.emulator.machine.wave import Wave
from tests.emulator.ptx.syntax import Block, Instruction
from tests.emulator.threads.group import Group
from tests.emulator.threads.origin import Origin, short_name
from tests.emulator.threads.warp import check_members

LIMIT_S = 120.0
"""Seconds of this process after which a wave counts as stuck."""
_VAIN_WAITS = 300
"""Failed waits of each group, while nothing else happens, after which a wave counts as stuck."""


class Machine:
    """One wave of blocks.

    Attributes:
        wave: Its state.
        instructions: Instructions run, each once for the group that ran it.
        lane_instructions: Once for each lane.
        visited: Numbers of the basic blocks that ran.
    """

    def __init__(self, wave: Wave, limit_s: float = LIMIT_S) -> None:
        self.wave, self._limit_s = wave, limit_s
        self._groups = Groups(wave.program, wave.lanes, wave.schedule)
        self._named = NamedBarriers(wave, self._groups.place)
        self._clusters = ClusterBarriers(wave, self._groups.place)
        self.instructions = self.lane_instructions = 0
        self.visited: set[int] = set()
        self._vain_waits = 0

    def run(self) -> list[str]:
        """Run all blocks and return what they have left undone, in lines.

        Raises:
            FaultError: A thread did what no GPU allows, or what is not known here; or nobody can go on.
        """
        lanes = self.wave.lanes
        self._groups.place(Group(np.nonzero(lanes.alive)[0], 0), 0)
        deadline = time.process_time() + self._limit_s
        with np.errstate(all="ignore"):
            while lanes.alive.any():
                group = self._groups.next()
                if group is None:
                    if not self._groups.unpark():
                        raise self._deadlock("no thread can go on")
                elif time.process_time() > deadline:
                    self._groups.place(group, group.block)
                    raise self._deadlock(f"not finished within {self._limit_s:g} s of computing")
                else:
                    self._step(group)
        try:
            return self.wave.finish()
        except FaultError as fault:
            if fault.place:
                raise
            raise fault.at(short_name(self.wave.program.function.name)) from fault

    def _step(self, group: Group) -> None:
        """Run the block of a group, and send its lanes on."""
        program = self.wave.program
        number = group.block
        block = program.function.blocks[number]
        self.visited.add(number)
        if program.together[number]:
            whole = self._groups.whole(group)
            if whole is None:
                return
            group = whole
        if block.end == "barrier":
            self._barrier(group, block)
            return
        self.instructions += len(block.code)
        self.lane_instructions += len(block.code) * group.n
        progress = self.wave.progress
        progress.waited_in_vain, events = False, progress.events
        result = self._call(group, number)
        if progress.events != events:
            self._vain_waits = 0
        elif progress.waited_in_vain:
            self._vain_waits += 1
        if progress.waited_in_vain:
            group.turn += 1
        self._advance(group, block, result)
        if self._vain_waits > _VAIN_WAITS * (1 + len(self._groups)):
            raise self._deadlock("every thread waits")

    def _call(self, group: Group, number: int) -> Any:
        program = self.wave.program
        function = program.blocks[number]
        assert function is not None
        try:
            return function(self.wave, self.wave.registers, group)
        except FaultError as fault:
            instruction = self._running(fault.__traceback__)
            if fault.place or instruction is None:
                raise
            raise fault.at(self._place(instruction, group)) from fault
        except Exception as error:  # a mistake of the emulator: it names the instruction, too
            instruction = self._running(error.__traceback__)
            if instruction is None:
                raise
            raise RuntimeError(f"{self._place(instruction, group)}: {error!r}") from error

    def _running(self, traceback: TracebackType | None) -> Instruction | None:
        """Return the instruction in whose Python text an exception was raised."""
        program = self.wave.program
        line = 0
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == program.filename:
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        return program.instructions.get(line)

    def _place(self, instruction: Instruction, group: Group) -> str:
        short = short_name(self.wave.program.function.name)
        return str(Origin(short, instruction, group.lanes, self.wave.lanes))

    def _barrier(self, group: Group, block: Block) -> None:
        instruction = block.code[0]
        assert block.following is not None
        taking = None
        if instruction.guard is not None:
            taking = self.wave.registers[instruction.guard.number][group.s] != instruction.negated
        barriers = self._clusters if instruction.parts[1] == "cluster" else self._named
        try:
            if self.wave.program.together[block.number]:
                check_members(None, self.wave.lanes.alive, group, taking)
            if taking is not None and not taking.all():
                self._groups.place(group.part(~taking), block.following)
                if not taking.any():
                    return
                group = group.part(taking)
            barriers.take(group, block)
        except FaultError as fault:
            raise fault.at(self._place(instruction, group)) from fault

    def _advance(self, group: Group, block: Block, result: Any) -> None:
        """Send lanes where the end of a block leads them."""
        if block.end == "exit":
            self._leave(group)
        elif block.end in ("fall", "jump"):
            target = block.targets[0] if block.end == "jump" else block.following
            assert target is not None
            self._groups.place(group, target)
        elif block.end == "table":
            self._jump(group, block, result)
        else:
            mask = group.all(result)
            if not mask.all() and mask.any():
                assert block.following is not None
                self._groups.place(group.part(~mask), block.following)
                group = group.part(mask)
            if not mask.any():
                assert block.following is not None
                self._groups.place(group, block.following)
            elif block.end == "branch":
                self._groups.place(group, block.targets[0])
            else:
                self._leave(group)

    def _jump(self, group: Group, block: Block, result: Any) -> None:
        places = group.all(result)
        for place in np.unique(places):
            if place >= len(block.targets):
                raise FaultError(
                    f"brx.idx {int(place)} of {len(block.targets)} targets",
                    CudaError.ILLEGAL_INSTRUCTION,
                    self._place(block.code[-1], group),
                )
            self._groups.place(group.part(places == place), block.targets[int(place)])

    def _leave(self, group: Group) -> None:
        """End threads; barriers that counted on them may be complete now."""
        self.wave.progress.events += 1
        if self.wave.memory.watch is not None:
            self.wave.memory.watch.ends.leaves(group.lanes)
        self.wave.lanes.leave(group.lanes)
        self._groups.forget()
        self._named.release_all()
        self._clusters.release_all()

    def _deadlock(self, why: str) -> DeadlockError:
        name = short_name(self.wave.program.function.name)
        lines = "\n".join(f"  {line}" for line in self._waits())
        return DeadlockError(f"{why}\n{lines}", CudaError.LAUNCH_TIMEOUT, name)

    def _waits(self) -> Iterator[str]:
        """Yield a line for each barrier that somebody waits for, and for each group that runs."""
        yield from self._named.report()
        yield from self._clusters.report()
        mbarriers, lanes = self.wave.mbarriers, self.wave.lanes
        for group in self._groups:
            code = self.wave.program.function.blocks[group.block].code
            where = f"{code[0].text} at {code[0].place}" if code else "the end of a block"
            waiting = mbarriers.waiting[group.lanes]
            for address in np.unique(waiting):
                part = group.lanes[waiting == address]
                who = f"{lanes.describe(part)} at {where}"
                if address:
                    yield f"mbarrier at {int(address):#x} ({mbarriers.at(int(address))}): {who} wait"
                elif group.parked:
                    yield f"the rest of their warps: {who} wait"
                else:
                    yield f"no barrier: {who} run"
