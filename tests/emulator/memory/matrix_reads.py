"""What ``wgmma`` instructions that are not waited for read from shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.threads.group import Group


@dataclass(frozen=True)
class _Read:
    """One operand: the first lane of its warp group, its group of wgmmas, how to read it again, what was there."""

    lane: int
    number: int
    again: Callable[[], Array]
    was: Array


class MatrixReads:
    """Operands that must not change before the product that reads them is waited for; late schedules check it."""

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._committed: dict[int, int] = {}
        self._reads: list[_Read] = []

    def issue(self, lane: int, again: Callable[[], Array], was: Array) -> None:
        """Take note of an operand."""
        if self._late:
            self._reads.append(_Read(lane, self._committed.get(lane, 0), again, was))

    def commit(self, group: Group, threads: Array) -> None:
        """End the group of wgmmas; ``threads`` are the lanes' numbers in their blocks."""
        if self._late:
            for lane in group.lanes[threads % 128 == 0].tolist():
                self._committed[lane] = self._committed.get(lane, 0) + 1

    def wait(self, group: Group, allowed: int) -> None:
        """Check the operands of all groups but the last ``allowed``.

        Raises:
            FaultError: One was overwritten.
        """
        if not self._reads:
            return
        mine, kept = set(group.lanes.tolist()), list[_Read]()
        for read in self._reads:
            if read.lane not in mine or read.number >= self._committed.get(read.lane, 0) - allowed:
                kept.append(read)
            elif not np.array_equal(read.again(), read.was, equal_nan=True):
                raise FaultError(
                    "shared memory that a wgmma reads was overwritten before this wait for it"
                )
        self._reads = kept
