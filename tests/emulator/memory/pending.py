"""Asynchronous operations that have been issued and not been done."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, Array
from tests.emulator.races.shared import Races
from tests.emulator.threads.group import Group
from tests.emulator.threads.origin import Issuer, Origin, never_waited_for

Work: TypeAlias = Callable[[Array], None]
"""Does an operation for those of its lanes where a mask is true."""
_NAMES = {"copy": "cp.async", "store": "bulk store"}
_ARRIVALS_BITS = 20


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
    """An operation of some lanes: its number, the group it belongs to for each of them, and who has issued it."""

    number: int
    lanes: Array
    groups: Array
    work: Work
    origin: Origin


class PendingGroups:
    """Operations in groups, which each lane commits and waits for: ``cp.async``, bulk stores.

    Attributes:
        what: What they are: ``copy`` or ``store``.
    """

    def __init__(
        self,
        lanes: int,
        what: Literal["copy", "store"],
        issuer: Issuer,
        races: Races | None = None,
        *,
        late: bool,
    ) -> None:
        self.what: Literal["copy", "store"] = what
        self._late, self._issuer, self._races = late, issuer, races
        self._committed: Array = np.zeros(lanes, I64)
        self._arrivals: Array = np.zeros(lanes, I64)
        self._lanes, self._issued = lanes, 0
        self._operations: list[_Operation] = []

    def issue(self, lanes: Array, work: Work) -> None:
        """Do an operation now, or in a late schedule when it is waited for."""
        if not self._late:
            work(np.ones(len(lanes), bool))
            return
        groups = np.array(self._committed[lanes])
        self._operations.append(
            _Operation(self._issued, lanes, groups, work, self._issuer.origin())
        )
        self._issued += 1

    def commit(self, group: Group, guard: Array | None) -> None:
        """End the group of each lane; what follows belongs to the next."""
        self._committed[group.lanes if guard is None else group.lanes[group.all(guard)]] += 1

    def steps(self, lanes: Array) -> Array:
        """Return the step of what each lane issues now, as `Races` counts them: by groups, and arrivals within them."""
        return ((self._committed[lanes] + 1) << _ARRIVALS_BITS) + self._arrivals[lanes]

    def wait(self, group: Group, allowed: int, guard: Array | None) -> None:
        """Do what belongs to all groups of the lanes but the last ``allowed``."""
        waiting = group.lanes if guard is None else group.lanes[group.all(guard)]
        if self._races is not None and len(waiting):
            first = self._committed[waiting] - allowed + 1  # the first group that may be pending
            self._races.waited(self.what, waiting, (first << _ARRIVALS_BITS) - 1)
        if not self._operations:
            return
        mine = np.zeros(self._lanes, bool)
        mine[waiting] = True
        self._do(
            lambda each: mine[each.lanes] & (each.groups < self._committed[each.lanes] - allowed)
        )

    def arrive(self, lanes: Array) -> Callable[[], None]:
        """Return what does all that lanes have issued so far, unless it is done; later operations are none of it."""
        self._arrivals[lanes] += 1
        count = self._issued
        mine = np.zeros(self._lanes, bool)
        mine[lanes] = True
        return lambda: self._do(lambda each: mine[each.lanes] & (each.number < count))

    def _do(self, is_ready: Callable[[_Operation], Array]) -> None:
        """Do the operations, or the lanes of them, that are ready."""
        kept: list[_Operation] = []
        for operation in self._operations:
            ready = is_ready(operation)
            if ready.any():
                operation.origin.run(functools.partial(operation.work, ready))
            if not ready.all():
                kept.append(_rest(operation, ~ready))
        self._operations = kept

    def finish(self) -> list[str]:
        """Do all that nobody has waited for, and return a line about each instruction that has issued some."""
        left = [(operation.origin, len(operation.lanes)) for operation in self._operations]
        self._do(lambda each: np.ones(len(each.lanes), bool))
        return never_waited_for(left, f"{_NAMES[self.what]} operations of {{threads}} threads")


def _rest(operation: _Operation, rest: Array) -> _Operation:
    if rest.all():
        return operation

    def work(mask: Array) -> None:
        whole = np.zeros(len(rest), bool)
        whole[np.nonzero(rest)[0][mask]] = True
        operation.work(whole)

    return replace(operation, lanes=operation.lanes[rest], groups=operation.groups[rest], work=work)


class PendingLoads:
    """Loads and arrivals whose end an mbarrier tells."""

    def __init__(self, progress: Progress, issuer: Issuer, *, late: bool) -> None:
        self._progress, self._issuer, self._late = progress, issuer, late
        self._loads: dict[int, list[tuple[Origin, Callable[[], None]]]] = {}

    def issue(self, mbarrier: int, work: Callable[[], None]) -> None:
        """Do a load now, or in a late schedule when its mbarrier is waited for in vain."""
        if self._late:
            self._loads.setdefault(mbarrier, []).append((self._issuer.origin(), work))
        else:
            work()

    def let_come(self, mbarrier: int) -> None:
        """Do the first of the loads that an mbarrier waits for, if there is any."""
        if waiting := self._loads.get(mbarrier):
            origin, work = waiting.pop(0)
            origin.run(work)
            self._progress.events += 1

    def finish(self) -> list[str]:
        """Return a line for each mbarrier, and each instruction that loads for it, which nobody has waited for."""
        return [
            line
            for mbarrier, waiting in self._loads.items()
            for line in never_waited_for(
                ((origin, 1) for origin, _ in waiting),
                f"operations for the mbarrier at {mbarrier:#x}",
            )
        ]


class PendingSequences:
    """Operations that a GPU does in the order in which a thread issues them, on their own: ``tcgen05.mma``."""

    def __init__(self, issuer: Issuer, *, late: bool) -> None:
        self._issuer, self._late = issuer, late
        self._waiting: dict[int, list[tuple[Origin, Callable[[], None]]]] = {}
        self._done: dict[int, int] = {}

    def issue(self, lane: int, work: Callable[[], None]) -> None:
        """Do an operation now, or in a late schedule when a wait asks for it."""
        if self._late:
            self._waiting.setdefault(lane, []).append((self._issuer.origin(), work))
        else:
            work()

    def so_far(self, lane: int) -> Callable[[], None]:
        """Return what does all that a thread has issued so far, unless it is done."""
        count = self._done.get(lane, 0) + len(self._waiting.get(lane, []))

        def work() -> None:
            while self._done.get(lane, 0) < count:
                self._done[lane] = self._done.get(lane, 0) + 1
                origin, first = self._waiting[lane].pop(0)
                origin.run(first)

        return work

    def finish(self) -> list[str]:
        """Do all that nobody has waited for, and return a line about each instruction that has issued some."""
        left = [(origin, 1) for each in self._waiting.values() for origin, _ in each]
        for lane in list(self._waiting):
            self.so_far(lane)()
        return never_waited_for(left, "operations")
