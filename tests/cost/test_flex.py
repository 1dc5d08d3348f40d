"""Which FlexAttention configurations are offered, against what the compiler made of them.

``flex_kernels.csv`` holds 268 kernels of torch 2.14's templates, compiled by Triton 3.8 for sm_80,
sm_90a and sm_100a: registers, bytes of spill stores and loads of a thread, shared memory of a block.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inductor_plugin.cost.flex import (
    BACKWARD_SUMS_AT_EASE,
    SPILLS_TAKEN,
    FlexCall,
    descriptors,
    plan,
    shared,
    single,
    small_tile,
    spilling,
    unfit,
)
from inductor_plugin.cost.flex_table import EXACT, MORE, SMALL, SPILLS, TMA, Direction, Tile
from inductor_plugin.problem.target import Target, target

GPUS = {80: target("A100"), 90: target("H200"), 100: target("B200")}
H200, A100, L40S = target("H200"), target("A100"), target("L40S")
CALL = FlexCall("forward", 128, 128, "bfloat16", 128, 128)
STOCK = tuple(
    Tile((m, n), stages, warps)
    for m, n, stages, warps in (
        (128, 64, 3, 4),
        (128, 128, 3, 4),
        (128, 128, 2, 8),
        (128, 128, 1, 8),
        (64, 128, 3, 4),
        (64, 64, 3, 4),
        (128, 64, 3, 8),
    )
)
DEFAULT = STOCK[-1]


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel."""

    call: FlexCall
    arch: int
    tile: Tile
    registers: int
    spills: int
    shared: int


def kernels() -> Iterator[Kernel]:
    with (Path(__file__).parent / "flex_kernels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            dim = int(row["head_dim"])
            way: Direction = "forward" if row["direction"] == "forward" else "backward"
            dtype = "bfloat16" if row["products"] == "bfloat16" else "float32"
            exact = row["products"] == "float32"
            blocks = tuple(map(int, row["blocks"].split("x")))
            tile = Tile(blocks, int(row["stages"]), int(row["warps"]), row["tma"] == "1")
            call = FlexCall(way, dim, dim, dtype, 128, 128, exact=exact)
            figures = (int(row[name]) for name in ("registers", "spills", "shared"))
            yield Kernel(call, int(row["arch"]), tile, *figures)


KERNELS = list(kernels())


def name(gpu: Target) -> str:
    return gpu.name


def found(
    way: Direction, dim: int, blocks: tuple[int, ...], warps: int, major: int
) -> list[Kernel]:
    return [
        one
        for one in KERNELS
        if one.call.dtype == "bfloat16"
        and (one.call.direction, one.call.head_dim) == (way, dim)
        and (one.tile.blocks, one.tile.warps, one.tile.tma) == (blocks, warps, False)
        and one.arch // 10 == major
    ]


def test_the_bounds_of_shared_memory_hold_for_every_kernel() -> None:
    assert len(KERNELS) == 268
    for one in KERNELS:
        least, most = shared(one.call, one.tile, GPUS[one.arch])
        assert least <= one.shared <= most, one


def test_the_bounds_are_close_where_the_instructions_are_known() -> None:
    hopper = [k for k in KERNELS if k.arch == 90 and k.call.dtype == "bfloat16"]
    exact = [k for k in hopper if shared(k.call, k.tile, H200)[0] >= k.shared - 1024]
    assert len(exact) > len(hopper) * 3 // 4


def test_the_table_of_spills_is_what_was_compiled() -> None:
    for (major, way, dim, blocks, warps), spills in SPILLS.items():
        assert spills >= SPILLS_TAKEN
        assert min(one.spills for one in found(way, dim, blocks, warps, major)) == spills


def test_nothing_that_fits_and_keeps_its_registers_is_left_out() -> None:
    for one in KERNELS:
        gpu = GPUS[one.arch]
        if one.shared <= gpu.shared_per_block and one.spills < SPILLS_TAKEN:
            assert unfit(one.call, one.tile, gpu) is None
            assert spilling(one.call, one.tile, gpu) is None or one.tile.stages == 2


def test_what_the_plugin_adds_was_compiled_for_hopper_and_hardly_spills() -> None:
    added = [
        (way, dim, tile) for (way, dim, size), tiles in MORE.items() if size == 2 for tile in tiles
    ] + [(way, dim, replace(tile, tma=True)) for (way, dim), tiles in TMA.items() for tile in tiles]
    assert len(added) > 30
    for way, dim, tile in added:
        made = [
            one
            for one in KERNELS
            if one.arch == 90
            and one.tile == tile
            and (one.call.direction, one.call.head_dim) == (way, dim)
            and one.call.dtype == "bfloat16"
        ]
        assert made, (way, dim, tile)
        assert made[0].spills <= 200, (way, dim, tile)


def test_the_default_comes_first_and_what_spills_is_left_out() -> None:
    made = plan(CALL, STOCK, DEFAULT, H200)
    assert made.tiles[0] == DEFAULT
    assert [tile for tile, _ in made.left_out] == [Tile((128, 128), 3, 4)]
    assert "spills 1004 bytes" in made.left_out[0][1]
    assert set(STOCK) - {Tile((128, 128), 3, 4)} < set(made.tiles)
    assert len(set(made.tiles)) == len(made.tiles)


def test_the_default_stays_though_it_spills() -> None:
    call = FlexCall("backward", 256, 256, "bfloat16", 128, 128)
    default = Tile((64, 64, 64, 64), 2, 4)
    other = Tile((64, 64, 64, 64), 2, 8)
    made = plan(call, [other, default], default, H200)
    assert made.tiles[0] == default
    assert [tile for tile, _ in made.left_out] == [other]


def test_what_needs_more_shared_memory_than_there_is_is_left_out() -> None:
    call = replace(CALL, head_dim=256, value_dim=256)
    made = plan(call, STOCK, DEFAULT, L40S)
    reasons = dict(made.left_out)
    assert "147456" not in reasons[Tile((128, 128), 3, 4)]
    assert "a block on L40S has 101376" in reasons[Tile((128, 128), 3, 4)]
    assert all(shared(call, one, L40S)[0] <= L40S.shared_per_block for one in made.tiles)


@pytest.mark.parametrize("gpu", [H200, A100, L40S, target("B200"), target("RTX 4090")], ids=name)
@pytest.mark.parametrize("way", ["forward", "backward", "decode"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_there_is_always_one_that_runs(way: Direction, dtype: str, gpu: Target) -> None:
    for dim in (16, 40, 64, 96, 128, 192, 256):
        for block in (16, 48, 64, 128, 1 << 30):
            for exact in (False, True) if dtype == "float32" else (False,):
                call = FlexCall(way, dim, dim, dtype, block, block, exact=exact)
                blocks = {"forward": (128, 128), "backward": (64, 128, 128, 64), "decode": (64,)}
                huge = Tile(blocks[way], 5, 8)
                made = plan(call, [huge], huge, gpu)
                most = [shared(call, one, gpu)[1] for one in made.tiles]
                assert min(most) <= gpu.shared_per_block
                (alone,) = single(call, huge, gpu).tiles
                assert unfit(call, alone, gpu) is None


def test_a_gpu_with_little_shared_memory_gets_the_smallest() -> None:
    tiny = replace(L40S, name="tiny", shared_per_block=16 << 10)
    made = plan(replace(CALL, head_dim=64, value_dim=64), STOCK, DEFAULT, tiny)
    assert made.tiles[-1] in SMALL["forward"]
    assert "is appended" in made.last_resort
    assert len(made.left_out) >= len(STOCK)


def test_a_last_resort_is_appended_only_where_nothing_is_sure() -> None:
    narrow = replace(CALL, head_dim=64, value_dim=64)
    assert plan(narrow, STOCK, DEFAULT, H200).last_resort == ""
    wide = plan(CALL, STOCK, DEFAULT, H200)
    assert wide.tiles[-1] == Tile((32, 32), 1, 4)
    assert "is appended" in wide.last_resort


def test_tiles_divide_the_masks_blocks() -> None:
    call = replace(CALL, q_block=64, kv_block=64)
    made = plan(call, STOCK, DEFAULT, H200)
    assert all(64 % extent == 0 for one in made.tiles for extent in one.blocks)
    assert "do not divide the mask's, 64x64" in dict(made.left_out)[DEFAULT]
    nothing = plan(replace(CALL, q_block=8, kv_block=8), STOCK, DEFAULT, H200)
    assert nothing.tiles == ()


def test_without_tuning_the_default_is_kept_shrunk_or_replaced() -> None:
    assert single(CALL, DEFAULT, H200).tiles == (DEFAULT,)
    assert single(replace(CALL, q_block=64, kv_block=32), DEFAULT, H200).tiles == (
        Tile((64, 32), 3, 8),
    )
    call = replace(CALL, head_dim=256, value_dim=256)
    made = single(call, Tile((32, 64), 3, 4), L40S)
    assert made.tiles == (Tile((32, 64), 2, 4),)
    assert "147456 bytes" in made.last_resort
    backward = FlexCall("backward", 64, 64, "bfloat16", 64, 64)
    assert single(backward, Tile((64, 128, 128, 64), 3, 8), H200).tiles == (
        Tile((64, 64, 64, 64), 3, 8),
    )


def test_a_list_that_is_not_inductors_gets_nothing_added_but_a_last_resort() -> None:
    made = plan(CALL, STOCK[:2], STOCK[0], H200, more=False)
    assert made.tiles == (STOCK[0], Tile((32, 32), 1, 4))


def test_an_unknown_gpu_keeps_the_list() -> None:
    made = plan(CALL, STOCK, DEFAULT, None, more=False)
    assert set(made.tiles) == {*STOCK, Tile((16, 16), 1, 4)}
    assert made.left_out == ()


def test_descriptors_are_for_hopper_on_and_two_byte_elements() -> None:
    assert all(one.tma for one in descriptors(CALL, H200))
    assert len(descriptors(CALL, H200)) == 3
    assert descriptors(CALL, A100) == ()
    assert descriptors(CALL, None) == ()
    assert descriptors(replace(CALL, dtype="float32"), H200) == ()
    assert descriptors(replace(CALL, head_dim=512), H200) == ()


def test_small_tiles_leave_registers_to_the_score() -> None:
    for dim in (64, 128, 256):
        for way in ("forward", "backward"):
            call = FlexCall(way, dim, dim, "bfloat16", 128, 128)
            tile = small_tile(call, H200)
            made = [k for k in KERNELS if (k.call, k.tile) == (call, tile) and k.arch in (80, 90)]
            assert all(one.registers <= 168 and one.spills == 0 for one in made)
            assert made or dim == 64
    assert BACKWARD_SUMS_AT_EASE == 64


def test_exact_products_are_served_by_tiles_of_their_own() -> None:
    call = FlexCall("forward", 128, 128, "float32", 128, 128, exact=True)
    made = plan(call, [Tile((32, 64), 3, 4)], Tile((32, 64), 3, 4), H200)
    assert set(EXACT["forward", 128]) <= set(made.tiles)
    loose = plan(replace(call, exact=False), [Tile((32, 64), 3, 4)], Tile((32, 64), 3, 4), H200)
    assert not set(EXACT["forward", 128]) & set(loose.tiles)


def test_a_tile_is_written_as_people_write_it() -> None:
    assert str(Tile((128, 64), 3, 4, tma=True)) == "128x64, 3 stages, 4 warps, TMA"
