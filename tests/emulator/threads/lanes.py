"""The threads of a wave of blocks, as lanes of one array.

All blocks of a wave run at once. Lanes are ordered (warp, block, lane of the warp), so that the warps of one role lie
side by side for all blocks, and a slice of an array holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import U32, Array

Extent: TypeAlias = tuple[int, int, int]
"""Sizes along x, y and z."""

SHARED_SHIFT = 24
"""Shared memory of block b begins at address ``b << 24``: one address space for a whole cluster."""
SHARED_MASK = (1 << SHARED_SHIFT) - 1
MOST_WARP_GROUPS = 64


def product(extent: Extent) -> int:
    """Return how many elements an extent has."""
    return extent[0] * extent[1] * extent[2]


def coordinates(number: int, extent: Extent) -> Extent:
    """Return where an element lies, counted along x first."""
    x, y, _ = extent
    return number % x, number // x % y, number // (x * y)


@dataclass(frozen=True)
class Shape:
    """A launch's grid, in blocks; its blocks, in threads; its clusters, in blocks."""

    grid: Extent
    block: Extent
    cluster: Extent = (1, 1, 1)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return product(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return product(self.block)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // 32)

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return product(self.cluster)


class Lanes:
    """Where each lane of a wave lies, and who is alive.

    Attributes:
        shape: The launch.
        count: Lanes, those of incomplete warps included.
        blocks: Blocks of the wave.
        block: Block of each lane, by its place in the wave.
        thread: Number of each lane in its block.
        warp: Number of each lane's warp in the wave.
        warp_group: Number of the four warps to which a lane belongs, in the wave.
        position: x, y and z of each block in the grid, [blocks, 3].
        rank: Place of each block in its cluster.
        cluster: Cluster of each block, by its place in the wave.
        block_at: The block with a (cluster, rank).
        alive: Whether each lane still runs.
        live_in_warp: Living lanes of each warp.
        live_in_warp_group: Of each group of four warps.
        live_in_block: Of each block.
    """

    def __init__(self, shape: Shape, blocks: Sequence[int]) -> None:
        self.shape, self.blocks = shape, len(blocks)
        self.count = shape.warps * len(blocks) * 32
        lane = np.arange(self.count)
        self.warp = lane >> 5
        self.block = self.warp % self.blocks
        self.thread = self.warp // self.blocks * 32 + (lane & 31)
        self.warp_group = self.block * MOST_WARP_GROUPS + (self.thread >> 7)
        self.shared_base = (self.block << SHARED_SHIFT).astype(U32)
        self.position = np.array([coordinates(number, shape.grid) for number in blocks])
        inside = self.position % np.array(shape.cluster)
        x, y, _ = shape.cluster
        self.rank = inside[:, 0] + x * (inside[:, 1] + y * inside[:, 2])
        corners = [tuple(corner) for corner in (self.position // np.array(shape.cluster)).tolist()]
        order = {corner: i for i, corner in enumerate(dict.fromkeys(corners))}
        self.clusters = len(order)
        self.cluster = np.array([order[corner] for corner in corners])
        self.block_at = {
            (order[corner], int(rank)): i
            for i, (corner, rank) in enumerate(zip(corners, self.rank, strict=True))
        }
        self.alive: Array = self.thread < shape.threads
        self.live_in_warp = np.bincount(self.warp[self.alive], minlength=self.count >> 5)
        self.live_in_warp_group = np.bincount(
            self.warp_group[self.alive], minlength=self.blocks * MOST_WARP_GROUPS
        )
        self.live_in_block = np.bincount(self.block[self.alive], minlength=self.blocks)

    def leave(self, lanes: Array) -> None:
        """Take lanes that have ended out of all counts."""
        self.alive[lanes] = False
        np.subtract.at(self.live_in_warp, self.warp[lanes], 1)
        np.subtract.at(self.live_in_warp_group, self.warp_group[lanes], 1)
        np.subtract.at(self.live_in_block, self.block[lanes], 1)

    def live_warps(self, block: int) -> int:
        """Return how many warps of a block have a lane that lives."""
        return int((self.live_in_warp[block :: self.blocks] > 0).sum())

    def live_in_cluster(self, cluster: int) -> int:
        """Return how many lanes of a cluster live."""
        return int(self.live_in_block[self.cluster == cluster].sum())

    def reaches(self, block: Any, other: Any) -> Any:
        """Return whether a block may touch the shared memory of another one, by their numbers: those of its cluster."""
        exists = other < self.blocks
        return exists & (self.cluster[block] == self.cluster[np.where(exists, other, 0)])

    def peers(self, lane: int, mask: int) -> list[int]:
        """Return the blocks of a lane's cluster whose ranks are in a mask of bits."""
        cluster = int(self.cluster[self.block[lane]])
        return [self.block_at[cluster, rank] for rank in range(16) if mask >> rank & 1]

    def describe(self, lanes: Array) -> str:
        """Return the blocks and warps of lanes in words: ``block (0, 1, 0) warps 4-7, block ...``."""
        named: list[str] = []
        for block in np.unique(self.block[lanes])[:4]:
            warps = np.unique(self.thread[lanes[self.block[lanes] == block]] >> 5).tolist()
            position = tuple(int(at) for at in self.position[block])
            named.append(f"block {position} warps {_ranges(warps)}")
        more = len(np.unique(self.block[lanes])) - len(named)
        return ", ".join(named) + (f" and {more} blocks more" if more else "")

    def describe_thread(self, lane: int) -> str:
        """Return the block and the thread of a lane in words."""
        position = tuple(int(at) for at in self.position[self.block[lane]])
        thread = coordinates(int(self.thread[lane]), self.shape.block)
        return f"block {position} thread {thread}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers with neighbours joined: ``0, 4-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
