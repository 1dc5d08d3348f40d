"""CUTLASS kernels for attention on Hopper: forward and backward of the wheel's example, edited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import BACKWARD, FORWARD, Attention
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate, CudaSource
from inductor_plugin.templates.cutlass_attention.config import ELEMENTS, FmhaConfig, Schedule
from inductor_plugin.templates.cutlass_attention.problem import facts_of, kernel_dim
from inductor_plugin.templates.cutlass_attention.source import (
    installed,
    interface,
    source,
    why_not_usable,
)

_FORWARD: dict[int, tuple[tuple[int, Schedule, int], ...]] = {
    32: ((64, "cooperative", 5), (128, "cooperative", 5)),
    64: ((128, "cooperative", 5), (64, "pingpong", 5), (64, "cooperative", 5)),
    128: ((128, "cooperative", 5), (128, "pingpong", 5), (64, "cooperative", 5)),
    256: ((64, "cooperative", 5), (64, "pingpong", 5)),
}
"""Keys of a tile, schedule and stages by head size; a tile has 128 queries. As in the example
(88_hopper_fmha.cu, CUTLASS 4.2)."""

_FORWARD_NARROW: dict[int, tuple[tuple[int, Schedule, int], ...]] = {
    64: ((128, "cooperative", 5), (128, "pingpong", 5)),
    128: ((128, "cooperative", 5), (256, "cooperative", 5), (128, "pingpong", 5)),
    256: ((128, "cooperative", 5), (128, "pingpong", 5)),
}
"""The same for operands of 8 bits."""

_BACKWARD_ROWS: dict[int, tuple[int, ...]] = {32: (64, 128), 64: (64,), 128: (64,)}
"""Queries of a tile by head size; a tile has 128 keys. With heads of 64 a tile of 128 spills 12 bytes a
thread (nvcc 13.0)."""

_QUERIES = 128
"""Queries of a tile of the forward."""

_KEYS = 128
"""Keys of a tile of the backward."""


class CutlassFmha:
    """CUTLASS attention for sm_90a: fp16, bf16, fp8; windows of both alignments, shared heads, any lengths.

    Only the forward takes fp8 (e4m3) operands; it writes bf16 and transposes V first. The backward sums
    dQ in an order that changes from call to call.

    If the wheel is not installed, candidates have no text: their names and targets still identify
    kernels built on another machine.
    """

    name = "cutlass_fmha"
    ops = (FORWARD, BACKWARD)
    backend = "CUTLASS"

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        attention = facts_of(problem)
        return attention if isinstance(attention, str) else why_not_usable()

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        attention = facts_of(problem)
        target = problem.target
        if isinstance(attention, str) or target is None or why_not_usable():
            return ()
        return [_candidate(attention, target, config) for config in configs(attention, target)]


def configs(attention: Attention, target: Target) -> tuple[FmhaConfig, ...]:
    """Return the kernels to try, best first.

    A persistent kernel processes tiles in order, so that causal tiles of unequal length leave
    multiprocessors idle at the end, and it gains nothing from fewer tiles than multiprocessors. Wide
    tiles of keys read each query less often, but compute more scores that a narrow window or a small
    number of keys masks.
    """
    dim, element = kernel_dim(attention), ELEMENTS[attention.dtype]
    if attention.backward:
        return tuple(
            FmhaConfig(backward=True, rows=rows, columns=_KEYS, dim=dim, element=element)
            for rows in _BACKWARD_ROWS[dim]
        )
    tiles = math.ceil(attention.queries / _QUERIES) * attention.batch * attention.heads
    uneven = attention.mask.limited or tiles <= target.multiprocessors
    visible = _visible_keys(attention)

    def cost(config: FmhaConfig) -> tuple[float, bool]:
        computed = math.ceil(visible / config.columns) * config.columns / visible
        per_tile = 1 + 8 / config.columns
        return computed * per_tile, (config.schedule == "pingpong") == uneven

    offered = [
        FmhaConfig(
            backward=False,
            rows=_QUERIES,
            columns=columns,
            dim=dim,
            element=element,
            schedule=schedule,
            stages=stages,
        )
        for columns, schedule, stages in (_FORWARD_NARROW if element == "e4m3" else _FORWARD)[dim]
    ]
    return tuple(sorted(offered, key=cost))


def _visible_keys(attention: Attention) -> int:
    """Return how many keys the queries of a tile see at most."""
    mask = attention.mask
    if mask.left < 0 or mask.right < 0:
        return attention.keys
    return min(attention.keys, mask.left + mask.right + _QUERIES)


def _candidate(attention: Attention, target: Target, config: FmhaConfig) -> Candidate:
    mask = attention.mask
    writes_lse = "lse" in attention.operands
    forward = "cutlass_fmha" if writes_lse else "cutlass_fmha_output"
    op = "cutlass_fmha_backward" if config.backward else forward
    return Candidate(
        template=CutlassFmha.name,
        name=config.name,
        config=config.to_dict(),
        kernel=CudaSource(
            op=f"inductor_plugin::{op}.out",
            symbol=config.name,
            text=_text(config),
            arch=target.arch,
            interface=interface(),
            arguments=(attention.scale, mask.left, mask.right, mask.bottom_right),
            deterministic=not config.backward,
        ),
        description=f"{config.rows}x{config.columns}x{config.dim} {config.schedule}",
    )


@lru_cache(maxsize=64)
def _text(config: FmhaConfig) -> str:
    return source(config) if installed() else ""
