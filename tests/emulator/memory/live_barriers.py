"""Where mbarriers lie that are in use: their 64 bits are opaque (PTX ISA, "mbarrier"), and no other operation may write them."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.threads.lanes import SHARED_SHIFT

_SHIFT = 3


class LiveBarriers:
    """A mark for each 8 bytes of the shared memory of all blocks."""

    def __init__(self, blocks: int) -> None:
        self._marks: Array = np.zeros(blocks << SHARED_SHIFT >> _SHIFT, bool)
        self._any = False

    def begin(self, address: int) -> None:
        """Mark an mbarrier that was initialised."""
        self._marks[address >> _SHIFT] = self._any = True

    def end(self, address: int) -> None:
        """Take the mark of an mbarrier away that was invalidated."""
        self._marks[address >> _SHIFT] = False

    def check(self, width: int, index: Array) -> None:
        """Check words of ``width`` bytes that are to be written, by their number.

        Raises:
            FaultError: An mbarrier lies there.
        """
        if not self._any:
            return
        for offset in range(0, width, 1 << _SHIFT):
            places = (index * width + offset) >> _SHIFT
            hit = self._marks[places]
            if hit.any():
                address = int(places[hit.argmax()]) << _SHIFT
                raise FaultError(
                    f"what is written to shared memory hits the mbarrier at {address:#x}, which is in use"
                )
