"""Products with few tiles and a long K: several programs share one tile and split K between them.

Deterministic: each program writes its partial sums to scratch memory, and the last one to arrive adds
them in their order. One counter a tile tells who is last; it is the only atomic operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton_product import PROGRAMS, Product, cdiv, product_of, text_of

SHORTEST_K = 1024
"""Below, a share of K is too short to pay for the partial sums."""
MOST_TILES = 132
"""With as many 128x128 tiles as an H100 has multiprocessors, nothing is gained by more programs."""
_MOST_PARTS = 32


@dataclass(frozen=True)
class Split:
    """One way to divide a product.

    Attributes:
        block_m: Rows of a tile.
        block_n: Columns of a tile.
        block_k: Length of one step.
        parts: Programs that share a tile.
        stages: Steps in flight.
        warps: Warps of a program.
    """

    block_m: int
    block_n: int
    block_k: int
    parts: int
    stages: int
    warps: int

    def tiles(self, product: Product) -> int:
        """Return how many tiles cover the result."""
        return cdiv(product.m, self.block_m) * cdiv(product.n, self.block_n)

    def scratch_bytes(self, product: Product) -> int:
        """Return what the partial sums and the counters take."""
        tiles = self.tiles(product)
        sums = tiles * self.parts * self.block_m * self.block_n
        return 16 * cdiv(4 * (sums + tiles), 16)


class TritonSplitK:
    """Triton kernels for ``mm`` and ``addmm`` with a skinny result and a long K."""

    name = "triton_split_k"
    backend = "TRITON"
    ops = ("mm", "addmm")

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        product = product_of(problem)
        if isinstance(product, str):
            return product
        if product.dynamic & {"m", "n"}:
            return (
                "its scratch memory has a fixed size, the result's size is known only at run time"
            )
        if product.k < SHORTEST_K:
            return f"K must be at least {SHORTEST_K} to be worth splitting, it is {product.k}"
        tiles = cdiv(product.m, 128) * cdiv(product.n, 128)
        if tiles >= MOST_TILES:
            return f"its {tiles} tiles of 128x128 fill a device without splitting K"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        product = product_of(problem)
        if isinstance(product, str):
            return ()
        return [_candidate(product, split) for split in ranked(product)]


def ranked(product: Product) -> list[Split]:
    """Return the divisions for a product, best first: with as many parts as fill the device."""
    return [
        Split(block_m, block_n, block_k, parts, stages, warps)
        for block_m, block_n, block_k, stages, warps in _shapes(product)
        for parts in _parts(product, block_m, block_n, block_k)
    ]


def _parts(product: Product, block_m: int, block_n: int, block_k: int) -> list[int]:
    """Return into how many parts to divide K, the best first: powers of two, two steps at least."""
    tiles = cdiv(product.m, block_m) * cdiv(product.n, block_n)
    fill = max(1, PROGRAMS // tiles)
    full = 1 << (fill.bit_length() - 1)
    most = min(_MOST_PARTS, product.k // (2 * block_k))
    return [one for one in dict.fromkeys((min(full, most), min(full // 2, most))) if one > 1]


def _shapes(product: Product) -> list[tuple[int, int, int, int, int]]:
    """Return (block_m, block_n, block_k, stages, warps), the best first."""
    if product.m <= 16:
        return [(16, 128, 128, 4, 4), (16, 64, 128, 5, 4)]
    if product.m <= 32:
        return [(32, 128, 64, 4, 4), (32, 64, 128, 4, 4)]
    if product.n <= 32:
        return [(128, 32, 64, 4, 4), (64, 32, 128, 4, 4)]
    if product.m <= 64:
        return [(64, 128, 64, 4, 8), (64, 64, 128, 4, 4)]
    return [(128, 128, 64, 4, 8), (64, 128, 64, 4, 8), (64, 64, 128, 4, 4)]


def _candidate(product: Product, split: Split) -> Candidate:
    constants: dict[str, bool | int | str] = {
        "BLOCK_M": split.block_m,
        "BLOCK_N": split.block_n,
        "BLOCK_K": split.block_k,
        "SPLIT_K": split.parts,
        "EVEN_M": product.even("m", split.block_m),
        "EVEN_N": product.even("n", split.block_n),
        "EVEN_K": product.even("k", split.block_k),
    }
    shape = f"{split.block_m}x{split.block_n}x{split.block_k}"
    return Candidate(
        template=TritonSplitK.name,
        name=f"{shape}_p{split.parts}_s{split.stages}_w{split.warps}",
        config={**constants, "num_stages": split.stages, "num_warps": split.warps},
        kernel=TritonSource(
            name="split_k",
            text=text_of(__file__),
            grid="split_k",
            constants=tuple(constants.items()),
            num_stages=split.stages,
            num_warps=split.warps,
            epilogue="addmm" if product.biased else "none",
            alpha=product.alpha,
            beta=product.beta,
            scratch_bytes=split.scratch_bytes(product),
        ),
        description=f"{shape}, K in {split.parts} parts",
    )
