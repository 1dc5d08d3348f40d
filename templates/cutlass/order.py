"""Orders CUTLASS kernels: those that NVIDIA's heuristics suggest, then those of the cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from inductor_plugin.cost.gemm import ranked
from inductor_plugin.cost.nvidia import ordered
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem.target import Target
from inductor_plugin.templates.cutlass.choices import LIMIT, Choice
from inductor_plugin.templates.cutlass.config import Raster
from inductor_plugin.templates.cutlass.element import DTYPES
from inductor_plugin.templates.cutlass.limits import SM80_WARPS
from inductor_plugin.templates.cutlass.problem import GemmFacts

_ALONG: dict[Raster, Literal["", "m", "n"]] = {"heuristic": "", "along_m": "m", "along_n": "n"}


def order(
    target: Target, facts: GemmFacts, choices: Sequence[Choice], limit: int = LIMIT
) -> tuple[Choice, ...]:
    """Return the most promising choices, best first.

    Choices that the model cannot rank or would exclude follow in their order: an estimate must not
    leave a problem without kernels.

    Args:
        target: The GPU.
        facts: The product.
        choices: All choices that can be built, in any order.
        limit: How many to return at most.
    """
    shape = shape_of(facts)
    by_tile: dict[TileConfig, list[Choice]] = {}
    for choice in choices:
        by_tile.setdefault(tile_of(choice), []).append(choice)
    placed, _ = ordered(target, shape, ranked(target, shape, by_tile))
    first = [choice for tile in placed for choice in by_tile[tile.config]]
    rest = [choice for choice in choices if choice not in first]
    return tuple([*first, *rest][:limit])


def shape_of(facts: GemmFacts) -> GemmShape:
    """Return a product for the ranking."""
    # Only the device knows the length of each group; equal lengths are assumed.
    rows = math.ceil(facts.m / facts.batch) if facts.grouped else facts.m
    return GemmShape(
        m=rows,
        n=facts.n,
        k=facts.k,
        batch=facts.batch,
        a=DTYPES[facts.a],
        b=DTYPES[facts.b],
        out=DTYPES[facts.d],
        a_row_major=facts.layout_a == "row",
        b_row_major=facts.layout_b == "row",
    )


def tile_of(choice: Choice) -> TileConfig:
    """Return the tile of a choice for the ranking."""
    config, launch = choice.config, choice.launch
    m, n, k = config.tile
    schedule = "cooperative" if config.schedule == "stream_k" else config.schedule
    along_m, along_n = SM80_WARPS[(m, n)] if config.arch == "sm_80" else (4, 1)
    # The scheduler of groups is another, and that of sm_100 orders the tiles by the swizzle and adds none.
    hopper = config.arch == "sm_90a" and not config.grouped
    consumers = 2 if schedule in ("pingpong", "cooperative") else 1
    tile = TileConfig(
        m=m // 2 if schedule == "two_sm" else m,
        n=n,
        k=k,
        warps=along_m * along_n * consumers,
        stages=config.stages,
        cluster=(config.cluster[0], config.cluster[1]),
        schedule=schedule,
        split_k=launch.split_k,
        stream_k=config.schedule == "stream_k" and launch.split_k == 1,
        group=launch.swizzle,
        along=_ALONG[launch.raster] if hopper else "n",
        scheduler="sm90" if hopper else "",
    )
    return _turned(tile) if config.transposed_epilogue else tile


def _turned(tile: TileConfig) -> TileConfig:
    """Return the tile of a kernel that multiplies the transposed operands: its rows are columns of D."""
    along = {"m": "n", "n": "m"}.get(tile.along, "")
    return replace(tile, m=tile.n, n=tile.m, cluster=tile.cluster[::-1], along=along)
