"""The order in which the tiles of a Triton template are tried: what the model in `rank` says; only a few.

Triton holds every step that is in flight in shared memory, and its warps load what they multiply.

NVIDIA's heuristics (0.1.0.27) are not asked about Triton: an answer takes 1 to 5 ms, more than all
the rest of a problem's ranking; they name no 128x256 for an H100, expect one time of the first eight
tiles they name for 4096x4096x4096, and seven times bfloat16's for 8-bit floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.cost.gemm import ranked
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem.target import KIB, Target

LIMIT = 12
"""Candidates that all Triton templates together offer for one problem."""
SHARED = LIMIT // 2
"""Candidates of one template where a second one may serve the same problem."""
ALIKE = 2
"""Candidates that differ in stages, warps or parts only: the model cannot tell them apart well."""
GROUP_M = 8
"""Rows of tiles that are walked as one panel, so that they find their columns of B in L2."""
LEAST_SHARED_BYTES = 99 * KIB
"""What a block has on the smallest GPU with these tensor cores: compute capability 8.6, 8.9 and 12.0."""


@dataclass(frozen=True)
class TritonTile:
    """What one program computes at a time.

    Attributes:
        m: Rows.
        n: Columns.
        k: Length of one step.
        stages: Steps in flight.
        warps: Warps that compute.
        parts: Programs that share a tile and divide K.
        specialize: True for warps of their own that only load.
        dot: True for tensor cores.
        flat: True if the next tile's loads go on while this one is written.
        beside: Bytes of shared memory beside the steps in flight.
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
        """Its extents as people write them."""
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
    """Return the most promising tiles, best first; none that the GPU's shared memory cannot hold.

    Args:
        target: The GPU; where it is not known the order given stands, and what fits on the smallest
            one is kept.
        product: What is computed.
        tiles: What can be built, in an order that is good without a model.
        limit: How many to return at most.
    """
    if target is None:
        placed = [one for one in tiles if one.held(product) <= room_of(target)]
    else:
        by_config = {one.config: one for one in tiles}
        placed = [by_config[one.config] for one in ranked(target, product, by_config)]
    return _varied(placed)[:limit]


def room_of(target: Target | None) -> int:
    """Return the bytes of shared memory that a block has on a GPU, known or not."""
    return target.shared_per_block if target else LEAST_SHARED_BYTES


def _varied(tiles: Sequence[TritonTile]) -> list[TritonTile]:
    """Return the tiles without those that have two of their shape before them."""
    seen: Counter[str] = Counter()
    kept: list[TritonTile] = []
    for one in tiles:
        seen[one.shape] += 1
        if seen[one.shape] <= ALIKE:
            kept.append(one)
    return kept
