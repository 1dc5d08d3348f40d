"""Products of a few rows, as decoding makes them: bound by reading B once, as fast as memory can.

One to two rows are multiplied element by element, each thread summing its own part of K until the
end; more rows go through tensor cores, padded to 16 or 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton_product import PROGRAMS, Product, cdiv, product_of, text_of

MAX_ROWS = 32
"""With more rows the padding of a tensor core's tile is no longer free."""
_MAX_VECTOR_ROWS = 2


@dataclass(frozen=True)
class Tile:
    """What one program computes.

    Attributes:
        block_m: Rows.
        block_n: Columns.
        block_k: Length of one step.
        stages: Steps in flight.
        warps: Warps.
        dot: True for tensor cores.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    dot: bool

    def programs(self, product: Product) -> int:
        """Return how many programs a product takes."""
        return cdiv(product.m, self.block_m) * cdiv(product.n, self.block_n)


class TritonDecode:
    """Triton kernels for ``mm`` and ``addmm`` with at most 32 rows."""

    name = "triton_decode"
    backend = "TRITON"
    ops = ("mm", "addmm")

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        product = product_of(problem)
        if isinstance(product, str):
            return product
        if product.m > MAX_ROWS:
            return f"it is for at most {MAX_ROWS} rows, this has {product.m}"
        if product.k < 128 or product.n < 64:
            return f"B[{product.k}, {product.n}] is too small to be worth a kernel of its own"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        product = product_of(problem)
        if isinstance(product, str):
            return ()
        return [_candidate(product, tile) for tile in ranked(product)]


def ranked(product: Product) -> list[Tile]:
    """Return the tiles for a product, best first: those that fill the device, the largest of them."""
    by_k = product.b.stride[0] == 1
    tiles = _dots(product.m, by_k=by_k)
    tiles.sort(key=lambda tile: _vacancy(tile, product))
    if product.m <= _MAX_VECTOR_ROWS:
        vectors = _vectors(product.m, by_k=by_k)
        vectors.sort(key=lambda tile: _vacancy(tile, product))
        tiles = vectors + tiles[:2]
    return [one for one in tiles if one.block_k <= 2 * product.k]


def _vectors(rows: int, *, by_k: bool) -> list[Tile]:
    """Return tiles without tensor cores; a thread's 16 bytes of B lie along its unit stride."""
    shapes = ((16, 256, 4), (8, 512, 4), (4, 1024, 4)) if by_k else ((64, 64, 4), (128, 32, 4))
    return [Tile(rows, n, k, 4, warps, dot=False) for n, k, warps in shapes]


def _dots(rows: int, *, by_k: bool) -> list[Tile]:
    block_m = 16 if rows <= 16 else 32
    shapes = (
        ((64, 128, 4, 4), (32, 256, 4, 4), (32, 128, 5, 4), (16, 256, 4, 2))
        if by_k
        else ((128, 64, 4, 4), (64, 128, 4, 4), (64, 64, 5, 4), (32, 128, 5, 4))
    )
    return [Tile(block_m, n, k, stages, warps, dot=True) for n, k, stages, warps in shapes]


def _vacancy(tile: Tile, product: Product) -> int:
    """Return how many programs are missing to fill the device; with none, the order given stands."""
    return max(0, PROGRAMS - tile.programs(product))


def _candidate(product: Product, tile: Tile) -> Candidate:
    constants: dict[str, bool | int | str] = {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "STAGES": tile.stages,
        "USE_DOT": tile.dot,
        "EVEN_N": product.even("n", tile.block_n),
        "EVEN_K": product.even("k", tile.block_k),
    }
    kind = "dot" if tile.dot else "vector"
    return Candidate(
        template=TritonDecode.name,
        name=f"{kind}_{tile.block_m}x{tile.block_n}x{tile.block_k}_s{tile.stages}_w{tile.warps}",
        config={**constants, "num_warps": tile.warps},
        kernel=TritonSource(
            name="decode",
            text=text_of(__file__),
            grid="tiles",
            constants=tuple(constants.items()),
            num_stages=tile.stages,
            num_warps=tile.warps,
            epilogue="addmm" if product.biased else "none",
            alpha=product.alpha,
            beta=product.beta,
        ),
        description=f"{kind} {tile.block_m}x{tile.block_n}x{tile.block_k}",
    )
