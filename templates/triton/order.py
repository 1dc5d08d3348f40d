"""Orders the tiles of a Triton template by the model in `cost.gemm`, and keeps a few.

Triton keeps every step in flight in shared memory, and its warps load what they multiply.

NVIDIA's heuristics (0.1.0.27) are not used for Triton: a query takes 1 to 5 ms, more than all the rest
of a problem's ranking; for an H100 they suggest no 128x256, predict the same time for the first eight
tiles they suggest for 4096x4096x4096, and seven times bfloat16's for 8-bit floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.cost.gemm import ranked
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem.target import KIB, Target

LIMIT = 12
"""Most candidates of all Triton templates for one problem."""
SHARED = LIMIT // 2
"""Most candidates of a template where a second template may serve the same problem."""
ALIKE = 2
"""Most candidates that differ only in stages, warps or parts, which the model separates poorly."""
GROUP_M = 8
"""Rows of tiles that are walked as one panel, so that their columns of B stay in L2."""
LEAST_SHARED_BYTES = 99 * KIB
"""Shared memory of a block on the smallest GPU with these tensor cores: compute capability 8.6, 8.9 and 12.0."""


@dataclass(frozen=True)
class TritonTile:
    """The work of one program at a time.

    Attributes:
        m: Rows.
        n: Columns.
        k: Length of one step.
        stages: Steps in flight.
        warps: Warps that compute.
        parts: Programs that share a tile and divide K.
        specialize: True if separate warps load.
        dot: True for tensor cores.
        flat: True if the next tile is loaded while this one is written.
        beside: Bytes of shared memory besides the steps in flight.
    """

    m: int
    n: int
    k: int
    stages: int
    warps: int
    parts: int = 1
    specialize: bool = False
    dot: bool = True
    flat: bool = False
    beside: int = 0

    @property
    def shape(self) -> str:
        """Its extents: ``128x256x64``."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def config(self) -> TileConfig:
        """The tile as the model sees it."""
        return TileConfig(
            m=self.m,
            n=self.n,
            k=self.k,
            warps=self.warps,
            stages=self.stages,
            schedule="specialized" if self.specialize else "",
            split_k=self.parts,
            group=GROUP_M,
            epilogue_bytes=self.beside,
            zeroed=self.parts > 1,
        )

    def held(self, product: GemmShape) -> int:
        """Return the bytes of shared memory it takes."""
        return self.stages * self.config.stage_bytes(product) + self.beside


def ordered(
    target: Target | None, product: GemmShape, tiles: Sequence[TritonTile], limit: int
) -> list[TritonTile]:
    """Return the most promising tiles that fit into the GPU's shared memory, best first.

    Args:
        target: The GPU; if unknown, the order is kept, without tiles that do not fit on the smallest
            GPU.
        product: The product.
        tiles: All tiles that can be built, in an order that is good without a model.
        limit: How many to return at most.
    """
    if target is None:
        placed = [tile for tile in tiles if tile.held(product) <= room_of(target)]
    else:
        by_config = {tile.config: tile for tile in tiles}
        placed = [by_config[rank.config] for rank in ranked(target, product, by_config)]
    return _varied(placed)[:limit]


def room_of(target: Target | None) -> int:
    """Return the bytes of shared memory of a block; of the smallest GPU if it is unknown."""
    return target.shared_per_block if target else LEAST_SHARED_BYTES


def _varied(tiles: Sequence[TritonTile]) -> list[TritonTile]:
    """Return the tiles, only the first `ALIKE` of each shape."""
    counts: Counter[str] = Counter()
    varied: list[TritonTile] = []
    for tile in tiles:
        counts[tile.shape] += 1
        if counts[tile.shape] <= ALIKE:
            varied.append(tile)
    return varied
