"""Asynchronous operations that have been issued and not been done."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.memory.races import Races
from tests.emulator.threads.group import Group

Work: TypeAlias = Callable[[Array], None]
"""Does an operation for those of its lanes where a mask is true."""
_NAMES = {"copy": "cp.async", "store": "bulk store"}


@dataclass
class Progress:
    """Whether anything happens that others may wait for.

    Attributes:
        events: Stores, arrivals and the like so far.
        waited_in_vain: Whether a wait of the block that has just run has failed.
    """

    events: int = 0
    waited_in_vain: bool = False


@dataclass(frozen=True)
class _Operation:
    """An operation of some lanes, and the group it belongs to for each of them."""

    lanes: Array
    groups: Array
    work: Work


class PendingGroups:
    """Operations in groups, which each lane commits and waits for: ``cp.async``, bulk stores.

    Attributes:
        what: What they are: ``copy`` or ``store``.
    """

    def __init__(
        self, lanes: int, what: Literal["copy", "store"], races: Races | None = None, *, late: bool
    ) -> None:
        self.what: Literal["copy", "store"] = what
        self._late, self._races = late, races
        self._committed: Array = np.zeros(lanes, np.int64)
        self._lanes = lanes
        self._operations: list[_Operation] = []

    def issue(self, lanes: Array, work: Work) -> None:
        """Do an operation now, or in a late schedule when it is waited for."""
        if self._late:
            self._operations.append(_Operation(lanes, self._committed[lanes].copy(), work))
        else:
            work(np.ones(len(lanes), bool))

    def commit(self, group: Group, guard: Array | None) -> None:
        """End the group of each lane; what follows belongs to the next."""
        self._committed[group.lanes if guard is None else group.lanes[group.all(guard)]] += 1

    def committed(self, lanes: Array) -> Array:
        """Return how many groups each lane has committed."""
        return np.array(self._committed[lanes])

    def wait(self, group: Group, allowed: int, guard: Array | None) -> None:
        """Do what belongs to all groups of the lanes but the last ``allowed``."""
        if self._races is not None:
            waiting = group.lanes if guard is None else group.lanes[group.all(guard)]
            if len(waiting):
                self._races.waited(self.what, waiting, self._committed[waiting] - allowed)
        if not self._operations:
            return
        mine = np.zeros(self._lanes, bool)
        mine[group.lanes if guard is None else group.lanes[group.all(guard)]] = True
        kept: list[_Operation] = []
        for operation in self._operations:
            lanes, groups = operation.lanes, operation.groups
            ready = mine[lanes] & (groups < self._committed[lanes] - allowed)
            if ready.any():
                operation.work(ready)
            if not ready.all():
                kept.append(_rest(operation, ~ready))
        self._operations = kept

    def finish(self) -> list[str]:
        """Do all that nobody has waited for, and return a line about it, if there was any."""
        left, self._operations = self._operations, []
        for operation in left:
            operation.work(np.ones(len(operation.lanes), bool))
        threads = sum(len(operation.lanes) for operation in left)
        line = (
            f"{len(left)} {_NAMES[self.what]} operations of {threads} threads were never waited for"
        )
        return [line] if left else []


def _rest(operation: _Operation, rest: Array) -> _Operation:
    if rest.all():
        return operation

    def work(mask: Array) -> None:
        whole = np.zeros(len(rest), bool)
        whole[np.nonzero(rest)[0][mask]] = True
        operation.work(whole)

    return _Operation(operation.lanes[rest], operation.groups[rest], work)


class PendingLoads:
    """Loads whose end an mbarrier tells."""

    def __init__(self, progress: Progress, *, late: bool) -> None:
        self._progress, self._late = progress, late
        self._loads: dict[int, list[Callable[[], None]]] = {}

    def issue(self, mbarrier: int, work: Callable[[], None]) -> None:
        """Do a load now, or in a late schedule when its mbarrier is waited for in vain."""
        if self._late:
            self._loads.setdefault(mbarrier, []).append(work)
        else:
            work()

    def let_come(self, mbarrier: int) -> None:
        """Do the first of the loads that an mbarrier waits for, if there is any."""
        if waiting := self._loads.get(mbarrier):
            waiting.pop(0)()
            self._progress.events += 1

    def finish(self) -> list[str]:
        """Return a line for each mbarrier whose loads nobody has waited for."""
        return [
            f"{len(waiting)} loads for the mbarrier at {mbarrier:#x} were never waited for"
            for mbarrier, waiting in self._loads.items()
            if waiting
        ]


class PendingSequences:
    """Operations that a GPU does in the order in which a thread issues them, on their own: ``tcgen05.mma``."""

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._done: dict[int, int] = {}

    def issue(self, lane: int, work: Callable[[], None]) -> None:
        """Do an operation now, or in a late schedule when a wait asks for it."""
        if self._late:
            self._waiting.setdefault(lane, []).append(work)
        else:
            work()

    def so_far(self, lane: int) -> Callable[[], None]:
        """Return what does all that a thread has issued so far, unless it is done."""
        count = self._done.get(lane, 0) + len(self._waiting.get(lane, []))

        def work() -> None:
            while self._done.get(lane, 0) < count:
                self._done[lane] = self._done.get(lane, 0) + 1
                self._waiting[lane].pop(0)()

        return work

    def finish(self) -> list[str]:
        """Do all that nobody has waited for, and return a line about it, if there was any."""
        left = sum(len(waiting) for waiting in self._waiting.values())
        for lane in list(self._waiting):
            self.so_far(lane)()
        return [f"{left} tcgen05.mma operations were never waited for"] if left else []
