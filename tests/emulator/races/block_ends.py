"""Whether a block has ended when another one of its cluster arrives at its mbarriers: then their memory may be another block's.

What a warp does there has to lie before the end of a warp of that block, by the order that barriers make (`races`).
"""

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.races.shared import Races, step_known
from tests.emulator.races.touched import RaceError
from tests.emulator.threads.lanes import Lanes
from tests.emulator.threads.origin import Issuer


class BlockEnds:
    """What the warps that have ended knew of others, and who has touched the mbarriers of another block."""

    def __init__(self, lanes: Lanes, races: Races, issuer: Issuer) -> None:
        self._lanes, self._races, self._issuer = lanes, races, issuer
        self._known: dict[int, Array] = {}
        self._touched: dict[tuple[int, int], tuple[int, int]] = {}

    def touches(self, block: int, lane: int) -> None:
        """Take note that a lane touches an mbarrier of a block; of a warp, its last step stands for all before."""
        warp = lane >> 5
        if block != int(self._lanes.block[lane]):
            self._touched[block, warp] = (self._races.step_of(warp), self._issuer.number)

    def leaves(self, lanes: Array) -> None:
        """Take note that threads end: their block is there until the last of them does."""
        for block in np.unique(self._lanes.block[lanes]).tolist():
            mine = lanes[self._lanes.block[lanes] == block]
            self._known[block] = self._races.give(self._known.get(block), mine)

    def check(self) -> None:
        """Check that no warp may have touched a block that has ended; called when all have.

        Raises:
            RaceError: One may have.
        """
        for (block, warp), (step, number) in self._touched.items():
            if step_known(self._known[block], warp) < step:
                place = tuple(self._lanes.position[block].tolist())
                raise RaceError(
                    f"{self._races.named(warp)} touches an mbarrier of block {place}, which may have ended: no barrier and no "
                    f"wait of that block is behind it; it is {self._issuer.line_of(number)}"
                )
