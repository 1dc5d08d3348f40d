"""The order of tiles is checked against what anyone agrees with, not against the model's formulas."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from inductor_plugin.cost.gemm import DRAM_PEAK, TilePrediction, predict, ranked, work_of
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem.target import Target, names, target

H100 = target("H100")
SQUARE = GemmShape(4096, 4096, 4096)
EXACT = GemmShape(12 * 128, 11 * 128, 8192)  # 132 tiles of 128x128, one for each multiprocessor
ONE_MORE = GemmShape(19 * 128, 7 * 128, 8192)
TILES = [
    TileConfig(m, n, 64, warps=8 if m * n >= 128 * 128 else 4)
    for m, n in itertools.product((16, 32, 64, 128, 256), (32, 64, 128, 256))
]


def seconds(shape: GemmShape, config: TileConfig, on: Target = H100) -> float:
    said = predict(on, shape, config)
    assert isinstance(said, TilePrediction), said
    return said.seconds


def best(shape: GemmShape, configs: list[TileConfig], on: Target = H100) -> TileConfig:
    return ranked(on, shape, configs)[0].config


def test_a_large_square_prefers_a_large_tile():
    large, small = TileConfig(128, 256, 64, warps=8), TileConfig(64, 64, 64)
    assert seconds(SQUARE, large) < 0.7 * seconds(SQUARE, small)
    winner = best(SQUARE, TILES)
    assert winner.m * winner.n >= 128 * 128


def test_one_row_prefers_low_tiles_and_a_split_of_k():
    shape = GemmShape(1, 4096, 4096)
    configs = [replace(tile, split_k=split) for tile in TILES for split in (1, 2, 4, 8)]
    winner = best(shape, configs)
    assert winner.m == 16
    whole, split = TileConfig(16, 128, 64), TileConfig(16, 128, 64, split_k=4)
    assert seconds(shape, split) < seconds(shape, whole)  # 32 tiles leave 100 SMs idle
    low, high = TileConfig(16, 128, 64, split_k=4), TileConfig(128, 128, 64, warps=8, split_k=4)
    assert seconds(shape, low) < seconds(shape, high)


def test_k_is_not_split_where_tiles_fill_the_gpu():
    whole, split = TileConfig(128, 256, 64, warps=8), TileConfig(128, 256, 64, warps=8, split_k=4)
    assert seconds(SQUARE, whole) < seconds(SQUARE, split)


def test_few_tiles_and_a_long_k_want_a_split_or_a_stream():
    shape = GemmShape(128, 256, 1 << 16)
    whole = TileConfig(128, 256, 64, warps=8)
    assert seconds(shape, replace(whole, split_k=64)) < 0.2 * seconds(shape, whole)
    assert seconds(shape, replace(whole, stream_k=True)) < 0.2 * seconds(shape, whole)


def test_one_tile_more_than_a_wave_costs_a_wave():
    tile = TileConfig(128, 128, 64, warps=8)
    exact = seconds(EXACT, tile)
    more = seconds(ONE_MORE, tile)
    assert more > 1.6 * exact
    said = predict(H100, ONE_MORE, tile)
    assert isinstance(said, TilePrediction)
    assert (said.tiles, said.waves) == (133, 2)


def test_stream_k_evens_out_an_incomplete_wave():
    tile = TileConfig(128, 128, 64, warps=8)
    assert seconds(ONE_MORE, replace(tile, stream_k=True)) < 0.75 * seconds(ONE_MORE, tile)
    assert seconds(EXACT, tile) < seconds(EXACT, replace(tile, stream_k=True))


def test_padding_is_paid_for():
    tile = TileConfig(128, 256, 64, warps=8)
    fits, padded = GemmShape(16896, 4096, 4096), GemmShape(16896 + 1, 4096 + 1, 4096)
    assert seconds(padded, tile) > 1.03 * seconds(fits, tile)
    narrow = GemmShape(8192, 64, 8192)
    assert best(narrow, TILES).n <= 64


def test_more_stages_hide_more_latency():
    for shape in (SQUARE, GemmShape(1, 8192, 8192)):
        two, four = (TileConfig(128, 256, 32, warps=8, stages=stages) for stages in (2, 4))
        assert seconds(shape, four) < seconds(shape, two)


def test_a_cluster_saves_loads_from_l2():
    tile = TileConfig(128, 128, 64, warps=8)
    alone, shared = (predict(H100, SQUARE, replace(tile, cluster=c)) for c in ((1, 1), (2, 1)))
    assert isinstance(alone, TilePrediction)
    assert isinstance(shared, TilePrediction)
    assert shared.l2_s < 0.8 * alone.l2_s


def test_walking_in_panels_saves_device_memory_where_l2_does_not_hold_the_operands():
    shape = GemmShape(16384, 16384, 16384)
    tile = TileConfig(128, 128, 64, warps=8)
    rows, panels = (predict(H100, shape, replace(tile, group=group)) for group in (1, 8))
    assert isinstance(rows, TilePrediction)
    assert isinstance(panels, TilePrediction)
    assert panels.memory_s < 0.5 * rows.memory_s
    down = predict(H100, shape, replace(tile, group=1, along="m"))
    assert isinstance(down, TilePrediction)
    assert down.memory_s == pytest.approx(rows.memory_s)


def test_tiles_that_a_swizzle_adds_are_computed_and_loaded():
    # The case "sm90 swizzle" of tests/emulator/suite: 6 x 4 tiles in clusters of 2, which a swizzle of 4 makes 8 x 4.
    shape = GemmShape(515, 392, 72)
    tile = TileConfig(128, 128, 64, warps=8, cluster=(2, 1), group=4)
    swizzled = replace(tile, scheduler="sm90")
    plain, added = work_of(shape, tile), work_of(shape, swizzled)
    assert (plain.tiles, added.tiles) == (24, 32)
    assert (plain.steps, added.steps) == (2, 2)
    assert added.loaded * 24 == plain.loaded * 32
    prediction = predict(H100, shape, swizzled)
    assert isinstance(prediction, TilePrediction)
    assert prediction.tiles == 32


def test_a_swizzle_that_adds_half_as_many_tiles_costs_their_time():
    tile = TileConfig(128, 128, 64, warps=8, cluster=(2, 1), scheduler="sm90")
    odd, even = GemmShape(17 * 128, 63 * 128, 4096), GemmShape(32 * 128, 64 * 128, 4096)
    single, grouped = replace(tile, group=1), replace(tile, group=8)
    # 18 x 63 tiles in 9 waves against 32 x 64 in 16.
    assert seconds(odd, grouped) > 1.5 * seconds(odd, single)
    assert seconds(even, grouped) <= seconds(even, single)


def test_few_rows_of_many_columns_are_read_once_by_a_scheduler_that_chooses_the_direction():
    shape = GemmShape(1024, 128256, 4096)
    tile = TileConfig(128, 256, 64, warps=8, cluster=(2, 1), group=1, scheduler="sm90")
    along_n, chosen = (predict(H100, shape, replace(tile, along=each)) for each in ("n", ""))
    assert isinstance(along_n, TilePrediction)
    assert isinstance(chosen, TilePrediction)
    assert chosen.tiles == along_n.tiles
    assert chosen.memory_s < 0.5 * along_n.memory_s
    once_s = shape.bytes / (H100.memory_bandwidth * DRAM_PEAK)
    assert once_s <= chosen.memory_s < 1.1 * once_s


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "float8_e4m3fn"])
def test_no_prediction_is_below_the_roofline(name: str, dtype: str):
    on = target(name)
    checked = 0
    for m, n, k, batch in itertools.product((1, 17, 4096), (64, 4096), (128, 8192), (1, 3)):
        shape = GemmShape(m, n, k, batch, dtype, dtype, "bfloat16")
        rate = on.rate(shape.compute)
        moved_s = shape.bytes / on.memory_bandwidth  # each byte once
        floor = max(shape.operations / rate, moved_s) if rate else moved_s
        for config in TILES:
            for config_ in (config, replace(config, split_k=2), replace(config, stream_k=True)):
                said = predict(on, shape, config_)
                if isinstance(said, TilePrediction):
                    assert said.seconds > floor
                    parts = (said.compute_s, said.l2_s, said.memory_s, said.fill_s)
                    assert said.seconds > max(*parts, said.reduce_s)
                    checked += 1
    no_cores = on.rate("tf32" if dtype == "float32" else dtype) is None
    assert checked == 0 if no_cores else checked > 500


def test_faster_gpus_are_predicted_faster():
    tile = TileConfig(128, 128, 64, warps=8)
    compute = [seconds(SQUARE, tile, target(name)) for name in ("B200", "H100", "A100", "RTX 4090")]
    assert compute == sorted(compute)
    stream = GemmShape(16, 8192, 8192)
    low = TileConfig(16, 64, 128)
    memory = [seconds(stream, low, target(n)) for n in ("B200", "H200", "H100", "A100", "L40S")]
    assert memory == sorted(memory)


def test_half_the_bytes_take_less_time():
    tile = TileConfig(128, 128, 64, warps=8)
    eight = replace(SQUARE, a="float8_e4m3fn", b="float8_e4m3fn")
    assert (
        seconds(eight, tile)
        < seconds(SQUARE, tile)
        < seconds(replace(SQUARE, a="float32", b="float32"), replace(tile, k=32))
    )


def test_what_does_not_fit_is_left_out_and_equals_keep_their_order():
    oversized = TileConfig(256, 256, 64, warps=16, stages=8)
    first, second = TileConfig(128, 128, 64, warps=8), TileConfig(128, 128, 64, warps=8)
    results = ranked(H100, SQUARE, [oversized, first, second, TileConfig(64, 64, 64)])
    assert [result.config for result in results] == [first, second, TileConfig(64, 64, 64)]
    assert results[0].config is first
    assert ranked(H100, SQUARE, []) == []


def test_the_reason_names_the_bound_and_the_waves():
    (ranked_tile,) = ranked(H100, SQUARE, [TileConfig(128, 256, 64, warps=8)])
    assert (
        ranked_tile.reason
        == f"{ranked_tile.predicted_s * 1e6:.1f} us, bound by tensor cores: 512 tiles in 4 waves"
    )
    (row,) = ranked(H100, GemmShape(1, 4096, 4096), [TileConfig(16, 128, 64, split_k=4)])
    assert "bound by memory: 128 tiles in 1 wave, " in row.reason
    assert row.reason.endswith("us to reduce")


def test_blocks_of_a_cluster_share_the_operand_that_they_have_in_common():
    """Those along M share B, 256 wide; those along N share A, 128 high."""
    tile = TileConfig(128, 256, 64, warps=8)
    clusters = [replace(tile, cluster=cluster) for cluster in ((2, 1), (1, 2))]
    along_m, along_n = (predict(H100, SQUARE, each) for each in clusters)
    assert isinstance(along_m, TilePrediction)
    assert isinstance(along_n, TilePrediction)
    steps = 32 * 16 * 64
    assert [work_of(SQUARE, each).loaded for each in clusters] == [
        steps * 64 * 2 * (128 + 256 / 2),
        steps * 64 * 2 * (128 / 2 + 256),
    ]
    assert along_m.l2_s < along_n.l2_s
