"""Whether cutting K into separate products pays, and into how many: decompose-K. Pure, no torch.

    [M, K] @ [K, N] ─► S products [M, K/S] @ [K/S, N] in one batch ─► their sum

With few tiles and a long K most multiprocessors would idle; the price is S partial results in
float32, written, read and summed by a second kernel. `rank.predict` knows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from inductor_plugin.cost.gemm import TilePrediction, predict
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import Target

MOST = 3
"""Cuts that are measured at most; Inductor offers up to ten."""

_STEP_BYTES = 128
"""What a tile loads along K at once: the width of a swizzled row in shared memory."""
_TILES = (
    (16, 64), (32, 64), (64, 32), (32, 128), (128, 32), (64, 64), (64, 128), (128, 64),
    (128, 128), (64, 256), (256, 64), (128, 256), (256, 128),
)  # fmt: skip
"""(rows, columns) of the tiles a library has for any product, batched ones too."""


@dataclass(frozen=True)
class Cuts:
    """Into how many parts to cut K.

    Attributes:
        parts: The cuts worth measuring, the most promising first; none where no cut pays.
        reason: One sentence for people.
    """

    parts: tuple[int, ...]
    reason: str


def worthwhile(problem: Problem, offered: Sequence[int], limit: int = MOST) -> Cuts:
    """Return which of the offered cuts are expected to beat the whole product.

    Args:
        problem: An ``mm``.
        offered: Numbers of parts, in Inductor's order of preference.
        limit: How many to keep at most.
    """
    if problem.target is None:
        first = tuple(offered[:limit])
        return Cuts(first, "the GPU is not known, so Inductor's own order decides")
    shape = _shape_of(problem)
    whole = _fastest(problem.target, shape, 1)
    if isinstance(whole, str):
        return Cuts((), whole)
    times: dict[int, float] = {}
    for parts in offered:
        found = _fastest(problem.target, shape, parts)
        if isinstance(found, TilePrediction):
            times[parts] = found.seconds
    order = sorted(times, key=times.__getitem__)
    return _judged(order, times, whole.seconds, limit)


def _judged(order: Sequence[int], times: dict[int, float], whole_s: float, limit: int) -> Cuts:
    if not order:
        return Cuts((), "no tile fits a part of K")
    best = order[0]
    said = (
        f"K in {best} parts is expected to take {times[best] * 1e6:.1f} us, "
        f"the whole product {whole_s * 1e6:.1f} us"
    )
    return Cuts(tuple(one for one in order[:limit] if times[one] < whole_s), said)


def _fastest(target: Target, shape: GemmShape, parts: int) -> TilePrediction | str:
    """Return the best tile's prediction for a cut, or why no tile fits."""
    said = [predict(target, shape, replace(one, split_k=parts)) for one in _tiles(target, shape)]
    fit = [one for one in said if isinstance(one, TilePrediction)]
    if not fit:
        return next(one for one in said if isinstance(one, str))
    return min(fit, key=lambda one: one.seconds)


def _tiles(target: Target, shape: GemmShape) -> Iterable[TileConfig]:
    step = _STEP_BYTES // (4 if shape.compute == "tf32" else 2)
    # From 9.0 on libraries have one warp group that loads for the others.
    schedule = "specialized" if target.capability >= (9, 0) else ""
    for m, n in _TILES:
        yield TileConfig(m, n, step, warps=8 if m * n >= 128 * 128 else 4, schedule=schedule)


def _shape_of(problem: Problem) -> GemmShape:
    a, b = problem.inputs
    return GemmShape(
        m=a.size[0],
        n=b.size[1],
        k=a.size[1],
        a=a.dtype,
        b=b.dtype,
        out=problem.output.dtype,
        a_row_major=_row_major(a),
        b_row_major=_row_major(b),
    )


def _row_major(operand: Operand) -> bool:
    return operand.stride[-1] == 1
