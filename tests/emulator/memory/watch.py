"""What threads do to shared and global memory, for those who look for races."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic.arrays import U8, Array
from tests.emulator.races.block_ends import BlockEnds
from tests.emulator.races.global_memory import GlobalRaces, Order
from tests.emulator.races.shared import Races
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import Lanes
from tests.emulator.threads.origin import Issuer


class Watch:
    """Who has touched what in a wave of blocks.

    Attributes:
        races: Of shared memory.
        ends: Whether blocks have ended when others touch them.
        global_races: Of global memory.
    """

    def __init__(self, lanes: Lanes, issuer: Issuer, *, hands_over: bool) -> None:
        """Begin with what nobody has touched; ``hands_over`` says whether blocks may read what others write."""
        self.races = Races(lanes, issuer)
        self.ends = BlockEnds(lanes, self.races, issuer)
        self.global_races = GlobalRaces(self.races, lanes.count >> 5, issuer)
        self._hands_over = hands_over

    def reads(self, space: str, address: Array, width: int, group: Group, order: Order) -> None:
        """Take note of loads, ``width`` bytes at each thread's address."""
        if space == "shared":
            self.races.touched.reads(address, width, group)
        elif space == "global" and order:
            self.global_races.flags(address, width, group, order, reads=True, writes=False)
        elif space == "global" and self._hands_over:
            self.global_races.reads(address, width, group)

    def writes(
        self, space: str, address: Array, after: Array, before: Array, group: Group, order: Order
    ) -> None:
        """Take note of stores.

        Args:
            space: Of the addresses.
            address: Of each thread, [threads].
            after: What each writes, as an array of [threads, ...].
            before: The bytes that are there, [threads, width].
            group: The threads.
            order: Of the stores.
        """
        after = np.ascontiguousarray(after).view(U8).reshape(before.shape)
        if space == "shared":
            self.races.touched.writes(address, after, before, group)
        elif order:
            width = before.shape[1]
            self.global_races.flags(address, width, group, order, reads=False, writes=True)
        else:
            self.global_races.writes(address, after, before, group)

    def combines(self, space: str, address: Array, width: int, group: Group, order: Order) -> None:
        """Take note of atomic operations of threads of a warp, ``width`` bytes at each address."""
        if space == "shared":
            self.races.touched.combines(address, width, group)
        elif space == "global" and order:
            self.global_races.flags(address, width, group, order, reads=True, writes=True)

    def loads(
        self, address: Array, width: int, group: Group, mbarrier: int, *, atomic: bool
    ) -> None:
        """Take note of what comes to shared memory, counted by an mbarrier, when its threads have gone on."""
        for warp in np.unique(group.lanes >> 5):
            mine = group.lanes >> 5 == warp
            lane, access = int(group.lanes[mine][0]), "atomic" if atomic else "write"
            self.races.loaded(address[mine], width, lane, mbarrier, access)
