"""Whether splitting K into separate products pays, and into how many: decompose-K. Pure, no torch.

    [M, K] @ [K, N] ─► S products [M, K/S] @ [K/S, N] in one batch ─► their sum

With few tiles and a long K most multiprocessors would idle; the cost is S partial results in
float32, written, read and summed by a second kernel. `gemm.predict` models both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from inductor_plugin.cost.gemm import TilePrediction, predict
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import Target

MOST = 3
"""Most splits that are measured; Inductor offers up to ten."""

_STEP_BYTES = 128
"""Bytes a tile loads along K at once: the width of a swizzled row in shared memory."""
_TILES = (
    (16, 64), (32, 64), (64, 32), (32, 128), (128, 32), (64, 64), (64, 128), (128, 64),
    (128, 128), (64, 256), (256, 64), (128, 256), (256, 128),
)  # fmt: skip
"""(rows, columns) of the tiles a library has for any product, batched products included."""


@dataclass(frozen=True)
class Cuts:
    """Numbers of parts to split K into.

    Attributes:
        parts: The splits worth measuring, the most promising first; empty where none pays.
        reason: The reason in one sentence.
    """

    parts: tuple[int, ...]
    reason: str


def worthwhile(problem: Problem, offered: Sequence[int]) -> Cuts:
    """Return which of the offered splits are expected to beat the unsplit product, `MOST` of them.

    Args:
        problem: An ``mm``.
        offered: Numbers of parts, in Inductor's order of preference.
    """
    if problem.target is None:
        first = tuple(offered[:MOST])
        return Cuts(first, "the GPU is not known, so Inductor's own order decides")
    shape = _shape_of(problem)
    whole = _fastest(problem.target, shape, 1)
    if isinstance(whole, str):
        return Cuts((), whole)
    times: dict[int, float] = {}
    for parts in offered:
        prediction = _fastest(problem.target, shape, parts)
        if isinstance(prediction, TilePrediction):
            times[parts] = prediction.seconds
    order = sorted(times, key=times.__getitem__)
    return _judged(order, times, whole.seconds)


def _judged(order: Sequence[int], times: dict[int, float], whole_s: float) -> Cuts:
    if not order:
        return Cuts((), "no tile fits a part of K")
    best = order[0]
    reason = (
        f"K in {best} parts is expected to take {times[best] * 1e6:.1f} us, "
        f"the whole product {whole_s * 1e6:.1f} us"
    )
    return Cuts(tuple(parts for parts in order[:MOST] if times[parts] < whole_s), reason)


def _fastest(target: Target, shape: GemmShape, parts: int) -> TilePrediction | str:
    """Return the best tile's prediction for a split, or why no tile fits."""
    predictions = [
        predict(target, shape, replace(tile, split_k=parts)) for tile in _tiles(target, shape)
    ]
    fit = [prediction for prediction in predictions if isinstance(prediction, TilePrediction)]
    if not fit:
        return next(reason for reason in predictions if isinstance(reason, str))
    return min(fit, key=lambda prediction: prediction.seconds)


def _tiles(target: Target, shape: GemmShape) -> Iterable[TileConfig]:
    step = _STEP_BYTES // (4 if shape.compute == "tf32" else 2)
    # From 9.0 on library kernels have a producer warp group.
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
