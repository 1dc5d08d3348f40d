"""What is known when a phase of an mbarrier is complete.

A wait by parity is over as soon as the earliest phase is that it may be for. What later phases have ordered happens to be there in one schedule, and
is not in another.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic.arrays import Array

_KEPT = 4
"""A thread that waits by parity for an earlier phase than the last two may wait for ever."""


class Phases:
    """What was known when each phase of an mbarrier was complete, of the last few.

    Attributes:
        before: How many were complete when the mbarrier was begun, which has had others before.
        arrivers: Agents that have arrived at the phase that is current.
    """

    def __init__(self) -> None:
        self.before, self.arrivers = 0, set[int]()
        self._count = 0
        self._last: list[Array] = []

    def begin(self) -> None:
        """Begin with phase 0 again."""
        self.before, self._count = self.before + self._count, 0
        self._last.clear()
        self.arrivers.clear()

    def complete(self, gathered: Array) -> None:
        """Take note of what is known when the current phase is complete."""
        self._count += 1
        self._last.append(np.array(gathered))
        del self._last[:-_KEPT]
        self.arrivers.clear()

    def known(self, phase: int) -> Array | None:
        """Return what was known when a phase was complete, or the first that is kept; None if it is before the first of all."""
        if phase < 0 or not self._last:
            return None
        return self._last[max(0, len(self._last) - self._count + phase)]
