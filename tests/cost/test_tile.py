# pyright: reportPrivateUsage=false

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.cost.tile import (
    BYTES,
    GemmShape,
    Grid,
    TileConfig,
    grid_of,
    occupancy_of,
    stages_of,
    swizzle_of,
    why_not,
)
from inductor_plugin.problem.target import names, target
from inductor_plugin.templates.cutlass.element import DTYPES

H100, A100, B200 = target("H100"), target("A100"), target("B200")
SHAPE = GemmShape(4096, 4096, 4096)
TILE = TileConfig(128, 256, 64, warps=8, stages=4)


def test_operations_and_bytes_are_those_of_the_product():
    shape = GemmShape(2, 3, 5, batch=7, a="bfloat16", b="int8", out="float32")
    assert shape.operations == 2 * 2 * 3 * 5 * 7
    assert shape.bytes == 7 * (2 * 5 * 2 + 5 * 3 * 1 + 2 * 3 * 4)
    assert shape.compute == "bfloat16"
    assert GemmShape(1, 1, 1, a="float32", b="float32").compute == "tf32"


def test_the_models_know_the_types_that_gpus_and_cutlass_kernels_multiply():
    """A product of another type has no predicted time, so that its kernels are in no order."""
    multiplied = {dtype for name in names() for dtype, _ in target(name).rates}
    assert multiplied >= {"tf32", "bfloat16", "int8"}
    assert multiplied | {*DTYPES.values()} <= BYTES.keys()


def test_schedules_tell_who_loads_and_who_computes():
    assert TILE.threads() == 256
    pingpong = replace(TILE, schedule="KernelTmaWarpSpecializedPingpong")
    assert (pingpong.threads(), pingpong.pingpong, pingpong.specialized) == (384, True, True)
    two = replace(TILE, warps=4, schedule="two_sm")
    assert (two.threads(), two.pingpong, two.specialized) == (256, False, True)


def test_as_many_stages_as_fit():
    # 48 KiB a stage: 227 KiB hold four, 163 KiB three; with 64 KiB beside them three and two.
    free = replace(TILE, stages=0)
    assert (stages_of(H100, SHAPE, free), stages_of(A100, SHAPE, free)) == (4, 3)
    beside = replace(free, epilogue_bytes=64 << 10)
    assert (stages_of(H100, SHAPE, beside), stages_of(A100, SHAPE, beside)) == (3, 2)
    assert stages_of(H100, replace(SHAPE, k=64), free) == 2
    assert stages_of(H100, SHAPE, TILE) == 4


def test_occupancy_is_bound_by_shared_memory_and_sums():
    assert occupancy_of(H100, SHAPE, TILE) == 1
    small = TileConfig(64, 64, 64, warps=4, stages=3)  # 48 KiB and 32 sums a thread
    assert occupancy_of(H100, SHAPE, small) == 4
    assert occupancy_of(A100, SHAPE, small) == 3


@pytest.mark.parametrize(
    ("shape", "change", "reason"),
    [
        (SHAPE, {}, None),
        (replace(SHAPE, a="float64"), {}, "knows no float64"),
        (replace(SHAPE, n=0), {}, "nothing to compute"),
        (SHAPE, {"stages": 5}, "5 stages of 49152 bytes and 0 beside them are 245760 bytes"),
        (SHAPE, {"epilogue_bytes": 35841}, "232449 bytes of shared memory; a block has 232448"),
        (SHAPE, {"epilogue_bytes": 35840}, None),
        (SHAPE, {"stages": 0, "epilogue_bytes": 180 << 10}, "two stages of 49152 bytes"),
        (SHAPE, {"warps": 4}, "each thread would hold 256 sums"),
        (SHAPE, {"schedule": "pingpong"}, "each thread would hold 256 sums"),
        (SHAPE, {"schedule": "cooperative"}, None),
        (SHAPE, {"warps": 64}, "2048 threads with 16 sums each do not fit"),
        (SHAPE, {"split_k": 65}, "K has 64 steps of 64, too few to split into 65"),
        (SHAPE, {"split_k": 64}, None),
        (SHAPE, {"split_k": 2, "stream_k": True}, "either splits K or streams it"),
        (SHAPE, {"cluster": (4, 4)}, "a cluster has 8 blocks at most, not 16"),
    ],
)
def test_what_does_not_fit_says_why(shape: GemmShape, change: dict[str, int], reason: str | None):
    said = why_not(H100, shape, replace(TILE, **change))  # type: ignore[arg-type]
    assert said is None if reason is None else reason in (said or "")


def test_older_gpus_have_no_clusters_and_no_eight_bit_floats():
    tile = replace(TILE, stages=3)
    assert why_not(A100, SHAPE, tile) is None
    assert why_not(A100, SHAPE, replace(tile, cluster=(2, 1))) == "A100 has no clusters"
    eight = replace(SHAPE, a="float8_e4m3fn", b="float8_e4m3fn")
    assert why_not(A100, eight, tile) == "A100 has no tensor cores for float8_e4m3fn"
    assert why_not(H100, eight, tile) is None


def test_sums_of_blackwell_take_no_registers():
    wide = TileConfig(128, 256, 64, warps=4, stages=4)
    assert why_not(B200, SHAPE, wide) is None
    assert why_not(H100, SHAPE, wide) is not None


def test_threads_and_sums_are_those_of_the_targets_warps():
    wide = replace(H100, warp_size=64)
    assert TILE.threads(64) == 512
    tile = TileConfig(256, 256, 64, warps=8, stages=2)
    assert "256 sums" in str(why_not(H100, SHAPE, tile))
    assert "512 threads with 128 sums each" in str(why_not(wide, SHAPE, tile))


@pytest.mark.parametrize(
    ("tiles", "most", "swizzle"),
    [
        ((6, 6), 8, 8),
        ((6, 6), 7, 4),
        ((5, 40), 8, 4),
        ((40, 3), 4, 4),
        ((40, 3), 3, 2),
        ((2, 40), 8, 2),
        ((1, 40), 8, 1),
        ((40, 40), 1, 1),
    ],
)
def test_a_swizzle_is_no_larger_than_the_grid_allows(
    tiles: tuple[int, int], most: int, swizzle: int
) -> None:
    """``get_log_swizzle_size`` by hand: 8 from six tiles on, 4 from three, 2 from two."""
    assert swizzle_of(*tiles, most) == swizzle


@pytest.mark.parametrize(
    ("tiles", "cluster", "most", "grid"),
    [
        ((5, 4), (2, 1), 4, (8, 4)),  # the emulator has counted these 32 tiles
        ((5, 4), (2, 1), 8, (8, 4)),  # four columns allow no more than 4
        ((5, 5), (1, 1), 8, (8, 8)),
        ((6, 6), (1, 1), 8, (8, 8)),
        ((17, 63), (2, 1), 8, (32, 64)),
        ((32, 32), (2, 1), 8, (32, 32)),
        ((3, 3), (1, 2), 2, (4, 4)),
        ((5, 5), (1, 1), 3, (6, 6)),
        ((1, 40), (1, 1), 8, (1, 40)),
        ((1, 40), (2, 1), 8, (4, 40)),  # the cluster's second row counts as a row
        ((5, 5), (2, 1), 1, (6, 5)),
    ],
)
def test_hoppers_scheduler_adds_tiles_until_swizzle_and_cluster_divide_them(
    tiles: tuple[int, int], cluster: tuple[int, int], most: int, grid: tuple[int, int]
) -> None:
    """``PersistentTileSchedulerSm90Params::initialize`` by hand; other schedulers add no more than a cluster needs."""
    shape = GemmShape(tiles[0] * 128 - 1, tiles[1] * 256 - 1, 64)
    config = replace(TILE, cluster=cluster, group=most)
    added = grid_of(shape, replace(config, scheduler="sm90"))
    assert (added.rows, added.columns) == grid
    plain = grid_of(shape, config)
    assert plain.rows == -(-tiles[0] // cluster[0]) * cluster[0]
    assert plain.columns == -(-tiles[1] // cluster[1]) * cluster[1]


@pytest.mark.parametrize(
    ("tiles", "cluster", "most", "grid"),
    [
        ((8, 1002), (1, 1), 1, Grid(8, 1002, "m", 1)),
        ((1002, 8), (1, 1), 1, Grid(1002, 8, "n", 1)),
        ((8, 8), (2, 1), 2, Grid(8, 8, "n", 4)),
        ((4, 9), (2, 1), 8, Grid(8, 12, "m", 4)),
        ((9, 4), (1, 2), 8, Grid(12, 8, "n", 4)),
        ((5, 6), (1, 1), 4, Grid(8, 8, "n", 4)),  # equal with the tiles that are added
    ],
)
def test_hoppers_scheduler_walks_along_the_side_with_fewer_tiles(
    tiles: tuple[int, int], cluster: tuple[int, int], most: int, grid: Grid
) -> None:
    """``get_rasterization_order`` by hand; a panel is as wide as the swizzle in clusters."""
    shape = GemmShape(tiles[0] * 128, tiles[1] * 256, 64)
    config = replace(TILE, cluster=cluster, group=most, along="", scheduler="sm90")
    assert grid_of(shape, config) == grid
    assert grid_of(shape, replace(config, along="m")).along == "m"
    assert grid_of(shape, replace(config, scheduler="", along="n")).width == most
