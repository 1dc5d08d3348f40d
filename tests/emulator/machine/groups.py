"""The groups of a wave: where they are kept, when they merge, and which one runs next.

Groups at the same block merge: that is how lanes that have branched apart come together again. The group with the
least (turn, block) runs; a group loses its turn when it has waited in vain, or after `_STEPS` blocks, since it may wait
for a value in memory. So who waits does not starve those it waits for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.machine.program import Program
from tests.emulator.machine.schedule import Schedule
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import Lanes

_STEPS = 500
_Key: TypeAlias = tuple[int, int]


class Groups:
    """All groups that are not in a barrier."""

    def __init__(self, program: Program, lanes: Lanes, schedule: Schedule) -> None:
        self._program, self._lanes, self._schedule = program, lanes, schedule
        self._groups: dict[_Key, Group] = {}
        self._random = random.Random(schedule.seed)

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def place(self, group: Group, block: int) -> None:
        """Put a group at a block, together with the one that is there."""
        if self._schedule.by_warp:
            units = self._units(block)[group.lanes]
            if (units != units[0]).any():
                for unit in np.unique(units):
                    self.place(group.part(units == unit), block)
                return
        key = self._key(group, block)
        other = self._groups.get(key)
        if other is not None:
            lanes = np.sort(np.concatenate((group.lanes, other.lanes)))
            turn, steps = min(group.turn, other.turn), max(group.steps, other.steps)
            group = Group(lanes, block, turn, steps)
        elif group.block != block and self._program.warp_groups[block]:
            group.cache.pop("whole", None)
        group.block, group.parked = block, False
        self._groups[key] = group

    def next(self) -> Group | None:
        """Take the group that runs next away and return it; None if all are parked."""
        if self._schedule.ahead == "random":
            ready = [group for group in self._groups.values() if not group.parked]
            chosen = self._random.choice(ready) if ready else None
        else:
            chosen, least = None, (0, 0, 0)
            for group in self._groups.values():
                if not group.parked and (chosen is None or self._rank(group) < least):
                    chosen, least = group, self._rank(group)
        if chosen is None:
            return None
        chosen.steps += 1
        if chosen.steps > _STEPS:
            chosen.steps, chosen.turn = 0, chosen.turn + 1
        del self._groups[self._key(chosen, chosen.block)]
        return chosen

    def _rank(self, group: Group) -> tuple[int, int, int]:
        ahead = self._schedule.ahead
        warp = 0 if ahead == "none" else int(group.lanes[0] >> 5)
        return group.turn, -warp if ahead == "last" else warp, group.block

    def _key(self, group: Group, block: int) -> _Key:
        if not self._schedule.by_warp:
            return block, 0
        return block, int(self._units(block)[group.lanes[0]])

    def _units(self, block: int) -> Array:
        return self._lanes.warp_group if self._program.warp_groups[block] else self._lanes.warp

    def whole(self, group: Group) -> Group | None:
        """Return the lanes whose whole warp (or warp group) is here; park the others until it is."""
        if "whole" in group.cache:
            return group
        lanes = self._lanes
        wide = self._program.warp_groups[group.block]
        units, live = (
            (lanes.warp_group, lanes.live_in_warp_group)
            if wide
            else (lanes.warp, lanes.live_in_warp)
        )
        count = np.bincount(units[group.lanes], minlength=len(live))
        incomplete = ((count > 0) & (count != live))[units[group.lanes]]
        if not incomplete.any():
            group.cache["whole"] = True
            return group
        held = group.part(incomplete)
        held.parked = True
        self._groups[self._key(held, group.block)] = held
        if incomplete.all():
            return None
        ready = group.part(~incomplete)
        ready.cache["whole"] = True
        return ready

    def unpark(self) -> bool:
        """Let parked lanes go on without the rest of their warp, since nobody else can; return whether any were."""
        parked = [group for group in self._groups.values() if group.parked]
        if not parked:
            return False
        first = min(parked, key=lambda group: group.block)
        first.parked = False
        first.cache["whole"] = True
        return True

    def forget(self) -> None:
        """Forget which warps are whole, after lanes have ended."""
        for group in self._groups.values():
            group.parked = False
            group.cache.pop("whole", None)
