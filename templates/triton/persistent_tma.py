"""Large products on Hopper and newer: one program a multiprocessor, operands through TMA descriptors.

A program computes tile after tile, and loads the next tile's operands while it writes a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inductor_plugin.problem import Problem
from inductor_plugin.problem.layout import judge_problem
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton.order import GROUP_M, SHARED, TritonTile, ordered, room_of
from inductor_plugin.templates.triton.product import (
    TMA_CAPABILITY,
    TMA_CONTRACT,
    Product,
    too_old,
)
from inductor_plugin.templates.triton.tile_template import ProductTemplate, blocks, tile_candidate

SMALLEST = 33
"""Below, in rows or columns, a tile of 64 is mostly padding."""
SHORTEST_K = 64
"""One step of the shortest tiles."""
_BARRIER_BYTES = 512
"""Barriers of the loads in flight, and messages between specialized warps."""

TILES = (
    TritonTile(128, 256, 64, 3, 8),
    TritonTile(128, 128, 64, 3, 8),
    TritonTile(64, 128, 64, 4, 4),
    TritonTile(256, 128, 64, 3, 8),
    TritonTile(128, 256, 64, 4, 8),
    TritonTile(256, 128, 64, 4, 8),
    TritonTile(128, 128, 64, 4, 8),
    TritonTile(128, 128, 64, 5, 4),
    TritonTile(128, 128, 64, 3, 4, specialize=True),
    TritonTile(128, 128, 128, 3, 8),
    TritonTile(64, 256, 64, 4, 4),
    TritonTile(256, 64, 64, 4, 8),
    TritonTile(128, 64, 64, 4, 4),
    TritonTile(64, 128, 128, 3, 4),
    TritonTile(64, 64, 128, 3, 4),
    TritonTile(64, 64, 128, 5, 4),
)
"""The first three fit every GPU with TMA, and are in a good order for a large product."""


class TritonPersistentTma(ProductTemplate):
    """Triton kernels for products of aligned operands, alone or in a batch."""

    name = "triton_persistent_tma"
    contracts = TMA_CONTRACT

    def why_not(self, product: Product, problem: Problem) -> str | None:
        """Return why no kernel is offered for a product, or None."""
        if min(product.m, product.n) < SMALLEST or product.k < SHORTEST_K:
            shape = f"{product.m}x{product.n}x{product.k}"
            return (
                f"M and N must be at least {SMALLEST} and K at least {SHORTEST_K}, this is {shape}"
            )
        return too_old(problem, TMA_CAPABILITY) or judge_problem(TMA_CONTRACT, problem).refusal

    def kernels(self, product: Product, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try for a product, the most promising first."""
        tiles = tiles_of(product, room_of(problem.target))
        tiles = ordered(problem.target, product.shape, tiles, SHARED)
        return [candidate(product, tile) for tile in tiles]


def tiles_of(product: Product, room: int) -> list[TritonTile]:
    """Return all tiles for a product, flat where shared memory also holds the result's tile.

    Elsewhere the result's tile overwrites the operands, whose next loads then wait.

    Args:
        product: The product.
        room: Bytes of shared memory of a block.
    """
    tiles: list[TritonTile] = []
    for tile in TILES:
        if tile.specialize and product.batched:
            # Triton 3.8 fails on Hopper: its pass mistakes a load of [1, m, k] as [m, k] for half a tile.
            continue
        flat = replace(tile, flat=not tile.specialize, beside=written_bytes(tile))
        fits = tile.specialize or flat.held(product.shape) <= room
        tiles.append(flat if fits else tile)
    return tiles


def written_bytes(tile: TritonTile) -> int:
    """Return the most shared memory that Triton 3.6 to 3.9 takes to write a tile by whole rows.

    An epilogue may read or write float32, whatever the product's own type: 4 bytes an element.
    """
    return 4 * tile.m * tile.n + _BARRIER_BYTES


def candidate(product: Product, tile: TritonTile) -> Candidate:
    """Return the kernel that computes a product by a tile."""
    constants: dict[str, bool | int | str] = {
        "BATCHED": product.batched,
        **blocks(tile),
        "GROUP_M": GROUP_M,
        "FLATTEN": tile.flat,
        "WARP_SPECIALIZE": tile.specialize,
        "A_ROWS": product.a.stride[-1] == 1,
        "B_ROWS": product.b.stride[-1] == 1,
    }
    first = 1 if product.biased else 0
    kind = "_ws" if tile.specialize else "_flat" if tile.flat else ""
    return tile_candidate(
        __file__,
        tile,
        constants,
        name=f"{tile.shape}_s{tile.stages}_w{tile.warps}{kind}",
        description=f"{tile.shape}, warps of their own load" if tile.specialize else tile.shape,
        grid="persistent",
        capability=TMA_CAPABILITY,
        descriptors=(first, first + 1),
        **product.epilogue,
    )
