"""Large products on Hopper and newer: one program a multiprocessor, operands through TMA descriptors.

A program goes from tile to tile, and loads the next tile's operands while it writes the last one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton_product import (
    MULTIPROCESSORS,
    Product,
    cdiv,
    product_of,
    text_of,
    unfit_for_tma,
)

SMALLEST = 64
"""Below, in any dimension, a tile is mostly padding."""


@dataclass(frozen=True)
class Tile:
    """What one program computes at a time.

    Attributes:
        block_m: Rows.
        block_n: Columns.
        block_k: Length of one step.
        stages: Steps in flight.
        warps: Warps that multiply.
        specialize: True for warps of their own that only load.
        rate: Share of a multiprocessor's peak the tile can reach, as its operands' reuse allows.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    specialize: bool
    rate: float

    def cost(self, product: Product) -> float:
        """Return how long all rounds of tiles take, in units that compare tiles of one product."""
        tiles = cdiv(product.m, self.block_m) * cdiv(product.n, self.block_n)
        return cdiv(tiles, MULTIPROCESSORS) * self.block_m * self.block_n / self.rate


TILES = (
    Tile(128, 256, 64, 3, 8, specialize=False, rate=1.0),
    Tile(256, 128, 64, 3, 8, specialize=False, rate=1.0),
    Tile(128, 128, 64, 4, 8, specialize=False, rate=0.9),
    Tile(128, 128, 64, 3, 4, specialize=True, rate=0.9),
    Tile(64, 256, 64, 4, 4, specialize=False, rate=0.85),
    Tile(64, 128, 64, 5, 4, specialize=False, rate=0.75),
    Tile(64, 64, 128, 4, 4, specialize=False, rate=0.5),
)
_KEPT = 5


class TritonPersistentTma:
    """Triton kernels for ``mm`` and ``addmm`` of aligned operands."""

    name = "triton_persistent_tma"
    backend = "TRITON"
    ops = ("mm", "addmm")

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        product = product_of(problem)
        if isinstance(product, str):
            return product
        if min(product.m, product.n, product.k) < SMALLEST:
            shape = f"{product.m}x{product.n}x{product.k}"
            return f"each dimension must be at least {SMALLEST}, this is {shape}"
        return unfit_for_tma("A", product.a, 2) or unfit_for_tma("B", product.b, 2)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        product = product_of(problem)
        if isinstance(product, str):
            return ()
        return [_candidate(product, tile) for tile in ranked(product)]


def ranked(product: Product) -> list[Tile]:
    """Return the tiles for a product, best first."""
    return sorted(TILES, key=lambda tile: tile.cost(product))[:_KEPT]


def _candidate(product: Product, tile: Tile) -> Candidate:
    constants: dict[str, bool | int | str] = {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": 8,
        "WARP_SPECIALIZE": tile.specialize,
        "A_ROWS": product.a.stride[1] == 1,
        "B_ROWS": product.b.stride[1] == 1,
    }
    first = 1 if product.biased else 0
    shape = f"{tile.block_m}x{tile.block_n}x{tile.block_k}"
    kind = "_ws" if tile.specialize else ""
    return Candidate(
        template=TritonPersistentTma.name,
        name=f"{shape}_s{tile.stages}_w{tile.warps}{kind}",
        config={**constants, "num_stages": tile.stages, "num_warps": tile.warps},
        kernel=TritonSource(
            name="persistent_tma",
            text=text_of(__file__),
            grid="persistent",
            constants=tuple(constants.items()),
            num_stages=tile.stages,
            num_warps=tile.warps,
            epilogue="addmm" if product.biased else "none",
            alpha=product.alpha,
            beta=product.beta,
            capability=(9, 0),
            descriptors=(first, first + 1),
        ),
        description=f"{shape}, warps of their own load" if tile.specialize else shape,
    )
