"""Products with 4-bit weights and a scale and a zero for each group: `aten._weight_int4pack_mm`.

The weight is int32 words B[n/8, k/(16*t), 32, t/2], t being 2, 4 or 8, as
`aten._convert_weight_to_int4pack` makes them for CUDA (aten/src/ATen/native/cuda/int4mm.cu); a value is
(nibble - 8) * scale + zero, with scales and zeros [k/group, n, 2].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inductor_plugin.cost.tile import GemmShape
from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import Contract
from inductor_plugin.problem.layout import judge_problem
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton.order import LIMIT, TritonTile, ordered
from inductor_plugin.templates.triton.tile_template import TileTemplate, blocks, tile_candidate

GROUPS = (32, 64, 128, 256)
"""Lengths of a group that the operator supports."""
MAX_ROWS = 64
"""With more rows unpacking is repeated for each tile of rows."""
_SHAPES = ((64, 128, 4, 4), (32, 256, 3, 4), (32, 128, 4, 4), (16, 256, 4, 4))
"""(n, k, stages, warps) of tiles."""
CONTRACT: Mapping[str, Contract] = {
    "b": Contract("B", ("dense",)),
    "scales": Contract("the scales", ("dense",)),
}
"""The position of a packed word is computed from the sizes."""
_PACKED = "int8"
"""Dtype of the weight in the model: its smallest. All tiles read equally much of it."""


@dataclass(frozen=True)
class Weighted:
    """C[m, n] = A[m, k] @ unpacked B[k, n].

    Attributes:
        m: Rows of A.
        n: Columns of B.
        k: The dimension that is summed.
        words: Adjacent words that one lane of a tensor core reads: 1, 2 or 4.
        group: Values of a column that share a scale.
    """

    m: int
    n: int
    k: int
    words: int
    group: int


class TritonInt4(TileTemplate[Weighted]):
    """Triton kernels for ``weight_int4pack_mm`` with at most 64 rows."""

    name = "triton_int4"
    ops = ("weight_int4pack_mm",)
    contracts = CONTRACT

    def read(self, problem: Problem) -> Weighted | str:
        """Return the product of a problem, or why there is none for these kernels."""
        return weighted_of(problem)

    def kernels(self, product: Weighted, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try for a product, the most promising first."""
        shape = GemmShape(product.m, product.n, product.k, b=_PACKED)
        tiles = ordered(problem.target, shape, tiles_of(product), LIMIT)
        return [candidate(product, tile) for tile in tiles]


def weighted_of(problem: Problem) -> Weighted | str:
    """Return the product a ``weight_int4pack_mm`` computes, or why there is none for these kernels."""
    a, b, scales = problem.inputs
    group = dict(problem.arguments).get("group", "")
    if not group.isdigit() or int(group) not in GROUPS:
        return f"a group is {', '.join(map(str, GROUPS))} long, this one {group}"
    m, k = a.size
    n, words = b.size[0] * 8, b.size[3]
    reasons = {
        "its operands are not all on a CUDA device": (
            any(operand.device != "cuda" for operand in (*problem.inputs, problem.output))
        ),
        f"A and the scales must be bfloat16, they are {a.dtype} and {scales.dtype}": (
            (a.dtype, scales.dtype, problem.output.dtype) != ("bfloat16",) * 3
        ),
        f"B must be int32, it is {b.dtype}": b.dtype != "int32",
        f"it is for at most {MAX_ROWS} rows, this has {m}": not 0 < m <= MAX_ROWS,
        f"B[{b.shape}] does not hold {k} rows": b.size[1:] != (k // (32 * words), 32, words),
        f"the scales {scales.shape} are not one pair a group": scales.size
        != (k // int(group), n, 2),
        "K or N is known only at run time": any(
            (extent.operand, extent.dim) != (0, 0) for extent in problem.dynamic
        ),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    reason = reason or judge_problem(CONTRACT, problem).refusal
    return reason or Weighted(m, n, k, words, int(group))


def tiles_of(weighted: Weighted) -> list[TritonTile]:
    """Return all tiles for a product."""
    rows = 16 if weighted.m <= 16 else 32 if weighted.m <= 32 else 64
    return [TritonTile(rows, n, k, stages, warps) for n, k, stages, warps in _SHAPES]


def candidate(weighted: Weighted, tile: TritonTile) -> Candidate:
    """Return the kernel that computes a product by a tile."""
    constants: dict[str, bool | int | str] = {
        **blocks(tile),
        "STAGES": tile.stages,
        "WORDS": weighted.words,
        "GROUP": weighted.group,
        "EVEN_K": weighted.k % tile.k == 0,
    }
    return tile_candidate(
        __file__,
        tile,
        constants,
        name=f"{tile.shape}_s{tile.stages}_w{tile.warps}",
        description=f"{tile.shape}, groups of {weighted.group}",
        grid="tiles",
    )
