"""Products of a few rows, as in decoding: bound by the memory bandwidth of reading B once.

One to two rows are multiplied element by element, each thread summing its own part of K until the
end; more rows go through tensor cores, padded to 16 or 32.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton.order import SHARED, TritonTile, ordered
from inductor_plugin.templates.triton.product import Product
from inductor_plugin.templates.triton.tile_template import ProductTemplate, blocks, tile_candidate

MAX_ROWS = 32
"""With more rows the padding of a tensor core's tile is no longer free."""
MAX_VECTOR_ROWS = 2
"""With more rows the multiplications take longer than the loads."""
VECTOR_TILES = 2
"""Candidates without tensor cores; the model has no separate figures for them."""


class TritonDecode(ProductTemplate):
    """Triton kernels for products with at most 32 rows, alone or in a batch."""

    name = "triton_decode"

    def why_not(self, product: Product, problem: Problem) -> str | None:  # noqa: ARG002
        """Return why no kernel is offered for a product, or None."""
        if product.m > MAX_ROWS:
            return f"it is for at most {MAX_ROWS} rows, this has {product.m}"
        if product.k < 128 or product.n < 64:
            return f"B[{product.k}, {product.n}] is too small to be worth a kernel of its own"
        return None

    def kernels(self, product: Product, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try for a product, the most promising first."""
        vectors = ordered(problem.target, product.shape, vectors_of(product), VECTOR_TILES)
        dots = ordered(problem.target, product.shape, dots_of(product), SHARED - len(vectors))
        return [candidate(product, tile) for tile in (*vectors, *dots)]


def vectors_of(product: Product) -> list[TritonTile]:
    """Return tiles without tensor cores; a thread's 16 bytes of B are along its unit stride."""
    if product.m > MAX_VECTOR_ROWS:
        return []
    by_k = product.b.stride[-2] == 1
    shapes = ((16, 256, 4), (8, 512, 4), (4, 1024, 4)) if by_k else ((64, 64, 4), (128, 32, 4))
    return [
        TritonTile(product.m, n, k, 4, warps, dot=False)
        for n, k, warps in shapes
        if k <= 2 * product.k
    ]


def dots_of(product: Product) -> list[TritonTile]:
    """Return tiles for tensor cores, long along the unit stride of B."""
    rows = 16 if product.m <= 16 else 32
    shapes = (
        ((64, 128, 4, 4), (32, 256, 4, 4), (32, 128, 5, 4), (16, 256, 4, 2), (64, 256, 3, 4),
         (128, 128, 4, 4))
        if product.b.stride[-2] == 1
        else ((128, 64, 4, 4), (64, 128, 4, 4), (64, 64, 5, 4), (32, 128, 5, 4), (128, 128, 3, 4),
              (256, 64, 4, 8))
    )  # fmt: skip
    return [
        TritonTile(rows, n, k, stages, warps)
        for n, k, stages, warps in shapes
        if k <= 2 * product.k
    ]


def candidate(product: Product, tile: TritonTile) -> Candidate:
    """Return the kernel that computes a product by a tile."""
    constants: dict[str, bool | int | str] = {
        "BATCHED": product.batched,
        **blocks(tile),
        "STAGES": tile.stages,
        "USE_DOT": tile.dot,
        "EVEN_N": product.even("n", tile.n),
        "EVEN_K": product.even("k", tile.k),
    }
    kind = "dot" if tile.dot else "vector"
    return tile_candidate(
        __file__,
        tile,
        constants,
        name=f"{kind}_{tile.shape}_s{tile.stages}_w{tile.warps}",
        description=f"{kind} {tile.shape}",
        grid="tiles",
        **product.epilogue,
    )
