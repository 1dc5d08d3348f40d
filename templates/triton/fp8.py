"""Products of 8-bit floats with one scale for each row of A and column of B, or for each block.

A block is 128 long in K, and 1 or 128 wide: the pairs `torch._scaled_mm` supports. Scales of a block are
applied to each step's partial product, scales of a row once at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inductor_plugin.cost.tile import GemmShape, ceil_div
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.contract import Contract
from inductor_plugin.problem.layout import judge_problem
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton.order import GROUP_M, LIMIT, TritonTile, ordered
from inductor_plugin.templates.triton.product import (
    TMA_CAPABILITY,
    TMA_CONTRACT,
    too_old,
)
from inductor_plugin.templates.triton.tile_template import TileTemplate, blocks, tile_candidate

BLOCK = 128
"""Length in K of a block with one scale."""
CONTRACT: Mapping[str, Contract] = {
    "a": replace(TMA_CONTRACT["a"], orders=("row",)),
    "b": replace(TMA_CONTRACT["b"], orders=("column",)),
}
"""Tensor cores read 8-bit floats only along K; descriptors can describe both."""
_EIGHT_BIT = ("float8_e4m3fn", "float8_e5m2")
_WRITTEN = ("bfloat16", "float16", "float32")
_ROWS = ((0, 0), (2, 0))
"""The (operand, dimension) that may be dynamic: M, and with it the rows of A's scales."""


@dataclass(frozen=True)
class Scaled:
    """C[m, n] = scaled A[m, k] @ scaled B[k, n] + bias[n].

    Attributes:
        m: Rows of A.
        n: Columns of B.
        k: The dimension that is summed.
        a_rows: Rows of A that share a scale.
        b_columns: Columns of B that share a scale.
        blockwise: True if a scale covers 128 of K, False if all of it.
        fast: True if the caller allows the tensor core's own, less exact sums.
        biased: True if the last input is a bias.
    """

    m: int
    n: int
    k: int
    a_rows: int
    b_columns: int
    blockwise: bool
    fast: bool
    biased: bool


_WIDE = (
    TritonTile(128, 128, BLOCK, 3, 8),
    TritonTile(64, 128, BLOCK, 4, 4),
    TritonTile(128, 256, BLOCK, 3, 8),
    TritonTile(128, 256, BLOCK, 4, 8),
    TritonTile(256, 128, BLOCK, 3, 8),
    TritonTile(128, 128, BLOCK, 4, 8),
    TritonTile(64, 256, BLOCK, 3, 8),
    TritonTile(64, 256, BLOCK, 4, 8),
    TritonTile(64, 64, BLOCK, 4, 4),
    TritonTile(64, 64, BLOCK, 6, 4),
)
_NARROW = (
    TritonTile(128, 128, BLOCK, 3, 8),
    TritonTile(64, 128, BLOCK, 4, 4),
    TritonTile(128, 128, BLOCK, 4, 8),
    TritonTile(64, 64, BLOCK, 4, 4),
    TritonTile(64, 64, BLOCK, 6, 4),
    TritonTile(64, 128, BLOCK, 6, 4),
)
"""If a step's sum is kept separate, a program needs registers for two tiles."""


class TritonFp8(TileTemplate[Scaled]):
    """Triton kernels for ``scaled_mm`` with row-wise or block-wise scales."""

    name = "triton_fp8"
    ops = ("scaled_mm",)
    contracts = CONTRACT

    def read(self, problem: Problem) -> Scaled | str:
        """Return the product of a problem, or why there is none for these kernels."""
        return scaled_of(problem)

    def why_not(self, product: Scaled, problem: Problem) -> str | None:  # noqa: ARG002
        """Return why no kernel is offered for a product, or None."""
        return too_old(problem, TMA_CAPABILITY)

    def kernels(self, product: Scaled, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try for a product, the most promising first."""
        a, b = problem.inputs[:2]
        shape = GemmShape(
            product.m, product.n, product.k, 1, a.dtype, b.dtype, problem.output.dtype,
            b_row_major=False,
        )  # fmt: skip
        tiles = ordered(problem.target, shape, tiles_of(product), LIMIT)
        return [candidate(product, tile) for tile in tiles]


def scaled_of(problem: Problem) -> Scaled | str:
    """Return the product a ``scaled_mm`` computes, or why there is none for these kernels."""
    reason = _why_not(problem)
    if reason is not None:
        return reason
    a, b, a_scale, b_scale = problem.inputs[:4]
    m, k, n = a.size[0], a.size[1], b.size[1]
    granularity = _granularity(m, n, k, a_scale, b_scale)
    if granularity is None:
        return f"no row-wise or block-wise scales have the sizes {a_scale.size} and {b_scale.size}"
    a_rows, b_columns, blockwise = granularity
    dynamic = {(extent.operand, extent.dim) for extent in problem.dynamic}
    if a_rows == 1 and len(dynamic) == 1:
        return "how many rows of A share a scale is known only at run time"
    return Scaled(
        m=m,
        n=n,
        k=k,
        a_rows=a_rows,
        b_columns=b_columns,
        blockwise=blockwise,
        fast=dict(problem.arguments).get("use_fast_accum") == "True",
        biased=len(problem.inputs) == 5,
    )


def tiles_of(scaled: Scaled) -> tuple[TritonTile, ...]:
    """Return all tiles for a product."""
    return _WIDE if scaled.fast and not scaled.blockwise else _NARROW


def _granularity(
    m: int, n: int, k: int, a_scale: Operand, b_scale: Operand
) -> tuple[int, int, bool] | None:
    """Return (rows of A, columns of B that share a scale, whether K is in blocks).

    A matrix of one row or column has no block scales: 1 is tried before 128.
    """
    blocks = ceil_div(k, BLOCK)
    if a_scale.size == (m, 1) and b_scale.size == (1, n):
        return 1, 1, False
    rows = next((s for s in (1, BLOCK) if a_scale.size == (ceil_div(m, s), blocks)), None)
    columns = next((s for s in (1, BLOCK) if b_scale.size == (blocks, ceil_div(n, s))), None)
    if rows is None or columns is None or rows == columns == BLOCK:
        return None
    return rows, columns, True


def _why_not(problem: Problem) -> str | None:
    if any(operand.device != "cuda" for operand in (*problem.inputs, problem.output)):
        return "its operands are not all on a CUDA device"
    if len(problem.inputs) not in (4, 5):
        return f"it takes two matrices, two scales and a bias, not {len(problem.inputs)} inputs"
    a, b, a_scale, b_scale = problem.inputs[:4]
    pair = (a.dtype, b.dtype)
    eight_bit = set(pair) <= set(_EIGHT_BIT) and pair != ("float8_e5m2", "float8_e5m2")
    scales = (a_scale.dtype, b_scale.dtype)
    reasons = {
        f"no tensor core multiplies {a.dtype} by {b.dtype} as 8-bit floats": not eight_bit,
        f"scales must be float32, they are {scales[0]} and {scales[1]}": (
            scales != ("float32", "float32")
        ),
        f"it writes {', '.join(_WRITTEN)}; this asks for {problem.output.dtype}": (
            problem.output.dtype not in _WRITTEN
        ),
        "K or N is known only at run time": any(
            (extent.operand, extent.dim) not in _ROWS for extent in problem.dynamic
        ),
        f"{a.shape} by {b.shape} is too small for a tile": (b.size[1] < 64 or a.size[1] < BLOCK),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return reason or judge_problem(CONTRACT, problem).refusal


def candidate(scaled: Scaled, tile: TritonTile) -> Candidate:
    """Return the kernel that computes a product by a tile."""
    constants: dict[str, bool | int | str] = {
        **blocks(tile),
        "GROUP_M": GROUP_M,
        "A_ROWS_PER_SCALE": scaled.a_rows,
        "B_COLUMNS_PER_SCALE": scaled.b_columns,
        "BLOCKWISE": scaled.blockwise,
        "FAST_ACCUM": scaled.fast,
    }
    kind = "block" if scaled.blockwise else "row"
    return tile_candidate(
        __file__,
        tile,
        constants,
        name=f"{kind}_{tile.shape}_s{tile.stages}_w{tile.warps}",
        description=f"{tile.shape}, scales by {kind}",
        grid="persistent",
        epilogue="bias" if scaled.biased else "none",
        capability=TMA_CAPABILITY,
        descriptors=(0, 1),
    )
