"""Lanes that share a program counter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import Array


class Group:
    """Lanes at one basic block; they run it together.

    Attributes:
        lanes: Their numbers, in order.
        n: How many they are.
        s: What selects their values in an array of all lanes: a slice if they are neighbours.
        block: Number of the block.
        turn: How often they have waited in vain: who has waited less runs first.
        steps: Blocks they have run in this turn.
        parked: Whether they wait for the rest of their warp.
        cache: What has been computed about this set of lanes.
    """

    __slots__ = ("block", "cache", "lanes", "n", "parked", "s", "steps", "turn")

    def __init__(self, lanes: Array, block: int, turn: int = 0, steps: int = 0) -> None:
        self.lanes, self.n, self.block, self.turn, self.steps = (
            lanes,
            len(lanes),
            block,
            turn,
            steps,
        )
        first, last = int(lanes[0]), int(lanes[-1])
        self.s: slice | Array = slice(first, last + 1) if last - first + 1 == self.n else lanes
        self.parked = False
        self.cache: dict[str, Any] = {}

    def part(self, mask: Array) -> Group:
        """Return the lanes where a mask is true, at the same block."""
        return Group(self.lanes[mask], self.block, self.turn, self.steps)

    def all(self, values: Any) -> Array:
        """Return a value for each lane, if there is one for all."""
        if type(values) is np.ndarray and values.shape == (self.n,):
            return values  # the usual case: broadcast_to was a quarter of a profile
        return np.broadcast_to(values, (self.n,))

    def at(self, values: Any, place: int) -> int:
        """Return the whole number that one lane has."""
        return int(self.all(values)[place])

    def active(self, guard: Array | None) -> Iterator[int]:
        """Yield the places of the lanes that take part in an instruction."""
        if guard is None:
            yield from range(self.n)
        else:
            yield from (int(place) for place in np.nonzero(self.all(guard))[0])

    def first_of_warps(self, guard: Array | None) -> Iterator[int]:
        """Yield the places of the first lane of each warp, as `active`."""
        warps = self.lanes >> 5
        for place in np.nonzero(np.r_[True, warps[1:] != warps[:-1]])[0]:
            if guard is None or self.all(guard)[place]:
                yield int(place)
