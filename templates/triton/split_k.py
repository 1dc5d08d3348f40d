"""Products with few tiles and a long K: several programs share one tile and split K between them.

Deterministic: each program writes its partial sums to scratch memory, and the last one to arrive adds
them in their order. A counter for each tile determines the last program; it is the only atomic operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.cost.tile import ceil_div
from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton.order import SHARED, TritonTile, ordered
from inductor_plugin.templates.triton.product import Product
from inductor_plugin.templates.triton.tile_template import ProductTemplate, blocks, tile_candidate

SHORTEST_K = 1024
"""Below, a share of K is too short to pay for the partial sums."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H100; with as many tiles of 128x128, more programs gain nothing."""
PARTS = (4, 8, 2, 16, 32)
"""Numbers of parts of K, in the order for an unknown GPU."""


class TritonSplitK(ProductTemplate):
    """Triton kernels for products with a skinny result and a long K, alone or in a batch."""

    name = "triton_split_k"

    def why_not(self, product: Product, problem: Problem) -> str | None:
        """Return why no kernel is offered for a product, or None."""
        if product.dynamic & {"b", "m", "n"}:
            return (
                "its scratch memory has a fixed size, the result's size is known only at run time"
            )
        if product.k < SHORTEST_K:
            return f"K must be at least {SHORTEST_K} to be worth splitting, it is {product.k}"
        tiles = product.batch * ceil_div(product.m, 128) * ceil_div(product.n, 128)
        if tiles >= most_tiles(problem):
            return f"its {tiles} tiles of 128x128 fill a device without splitting K"
        return None

    def kernels(self, product: Product, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try for a product, the most promising first."""
        tiles = ordered(problem.target, product.shape, tiles_of(product), SHARED)
        return [candidate(product, tile) for tile in tiles]


def most_tiles(problem: Problem) -> int:
    """Return from how many tiles on no multiprocessor is idle."""
    return problem.target.multiprocessors if problem.target else MULTIPROCESSORS


def tiles_of(product: Product) -> list[TritonTile]:
    """Return all ways to divide a product, each part of K at least two steps long."""
    return [
        TritonTile(m, n, k, stages, warps, parts)
        for parts in PARTS
        for m, n, k, stages, warps in _shapes(product)
        if 2 * k * parts <= product.k
    ]


def scratch_bytes(product: Product, tile: TritonTile) -> int:
    """Return the bytes of the partial sums and the counters."""
    tiles = product.batch * ceil_div(product.m, tile.m) * ceil_div(product.n, tile.n)
    sums = tiles * tile.parts * tile.m * tile.n
    return 16 * ceil_div(4 * (sums + tiles), 16)


def _shapes(product: Product) -> list[tuple[int, int, int, int, int]]:
    """Return (m, n, k, stages, warps) of tiles, the best first."""
    if product.m <= 16:
        return [(16, 128, 128, 2, 4), (16, 64, 128, 4, 4), (16, 128, 128, 4, 4)]
    if product.m <= 32:
        return [(32, 128, 64, 4, 4), (32, 64, 128, 4, 4)]
    if product.n <= 32:
        return [(128, 32, 64, 4, 4), (64, 32, 128, 4, 4)]
    if product.m <= 64:
        return [(64, 128, 64, 4, 8), (64, 64, 128, 3, 4), (64, 64, 128, 4, 4)]
    return [(128, 128, 64, 3, 8), (64, 128, 64, 4, 8), (64, 64, 128, 3, 4), (128, 128, 64, 4, 8)]


def candidate(product: Product, tile: TritonTile) -> Candidate:
    """Return the kernel that computes a product by a tile."""
    constants: dict[str, bool | int | str] = {
        "BATCHED": product.batched,
        **blocks(tile),
        "SPLIT_K": tile.parts,
        "EVEN_M": product.even("m", tile.m),
        "EVEN_N": product.even("n", tile.n),
        "EVEN_K": product.even("k", tile.k),
    }
    return tile_candidate(
        __file__,
        tile,
        constants,
        name=f"{tile.shape}_p{tile.parts}_s{tile.stages}_w{tile.warps}",
        description=f"{tile.shape}, K in {tile.parts} parts",
        grid="split_k",
        scratch_bytes=scratch_bytes(product, tile),
        **product.epilogue,
    )
