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
    why_not,
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


def kernels_like(
    way: Direction, dim: int, blocks: tuple[int, ...], warps: int, major: int
) -> list[Kernel]:
    return [
        kernel
        for kernel in KERNELS
        if kernel.call.dtype == "bfloat16"
        and (kernel.call.direction, kernel.call.head_dim) == (way, dim)
        and (kernel.tile.blocks, kernel.tile.warps, kernel.tile.tma) == (blocks, warps, False)
        and kernel.arch // 10 == major
    ]


def test_the_bounds_of_shared_memory_hold_for_every_kernel() -> None:
    assert len(KERNELS) == 268
    for kernel in KERNELS:
        least, most = shared(kernel.call, kernel.tile, GPUS[kernel.arch])
        assert least <= kernel.shared <= most, kernel


def test_the_bounds_are_close_where_the_instructions_are_known() -> None:
    hopper = [k for k in KERNELS if k.arch == 90 and k.call.dtype == "bfloat16"]
    exact = [k for k in hopper if shared(k.call, k.tile, H200)[0] >= k.shared - 1024]
    assert len(exact) > len(hopper) * 3 // 4


def test_the_table_of_spills_is_what_was_compiled() -> None:
    for (major, way, dim, blocks, warps), spills in SPILLS.items():
        assert spills >= SPILLS_TAKEN
        assert (
            min(kernel.spills for kernel in kernels_like(way, dim, blocks, warps, major)) == spills
        )


def test_nothing_that_fits_and_keeps_its_registers_is_left_out() -> None:
    for kernel in KERNELS:
        gpu = GPUS[kernel.arch]
        if kernel.shared <= gpu.shared_per_block and kernel.spills < SPILLS_TAKEN:
            assert why_not(kernel.call, kernel.tile, gpu) is None
            assert spilling(kernel.call, kernel.tile, gpu) is None or kernel.tile.stages == 2


def test_what_the_plugin_adds_was_compiled_for_hopper_and_hardly_spills() -> None:
    added = [
        (way, dim, tile) for (way, dim, size), tiles in MORE.items() if size == 2 for tile in tiles
    ] + [(way, dim, replace(tile, tma=True)) for (way, dim), tiles in TMA.items() for tile in tiles]
    assert len(added) > 30
    for way, dim, tile in added:
        created = [
            kernel
            for kernel in KERNELS
            if kernel.arch == 90
            and kernel.tile == tile
            and (kernel.call.direction, kernel.call.head_dim) == (way, dim)
            and kernel.call.dtype == "bfloat16"
        ]
        assert created, (way, dim, tile)
        assert created[0].spills <= 200, (way, dim, tile)


def test_the_default_comes_first_and_what_spills_is_left_out() -> None:
    planned = plan(CALL, STOCK, DEFAULT, H200)
    assert planned.tiles[0] == DEFAULT
    assert [tile for tile, _ in planned.left_out] == [Tile((128, 128), 3, 4)]
    assert "spills 1004 bytes" in planned.left_out[0][1]
    assert set(STOCK) - {Tile((128, 128), 3, 4)} < set(planned.tiles)
    assert len(set(planned.tiles)) == len(planned.tiles)


def test_the_default_stays_though_it_spills() -> None:
    call = FlexCall("backward", 256, 256, "bfloat16", 128, 128)
    default = Tile((64, 64, 64, 64), 2, 4)
    other = Tile((64, 64, 64, 64), 2, 8)
    planned = plan(call, [other, default], default, H200)
    assert planned.tiles[0] == default
    assert [tile for tile, _ in planned.left_out] == [other]


def test_what_needs_more_shared_memory_than_there_is_is_left_out() -> None:
    call = replace(CALL, head_dim=256, value_dim=256)
    planned = plan(call, STOCK, DEFAULT, L40S)
    reasons = dict(planned.left_out)
    assert "147456" not in reasons[Tile((128, 128), 3, 4)]
    assert "a block on L40S has 101376" in reasons[Tile((128, 128), 3, 4)]
    assert all(shared(call, tile, L40S)[0] <= L40S.shared_per_block for tile in planned.tiles)


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
                planned = plan(call, [huge], huge, gpu)
                most = [shared(call, tile, gpu)[1] for tile in planned.tiles]
                assert min(most) <= gpu.shared_per_block
                (alone,) = single(call, huge, gpu).tiles
                assert why_not(call, alone, gpu) is None


def test_a_gpu_with_little_shared_memory_gets_the_smallest() -> None:
    tiny = replace(L40S, name="tiny", shared_per_block=16 << 10)
    planned = plan(replace(CALL, head_dim=64, value_dim=64), STOCK, DEFAULT, tiny)
    assert planned.tiles[-1] in SMALL["forward"]
    assert "is appended" in planned.last_resort
    assert len(planned.left_out) >= len(STOCK)


def test_a_last_resort_is_appended_only_where_nothing_is_sure() -> None:
    narrow = replace(CALL, head_dim=64, value_dim=64)
    assert plan(narrow, STOCK, DEFAULT, H200).last_resort == ""
    wide = plan(CALL, STOCK, DEFAULT, H200)
    assert wide.tiles[-1] == Tile((32, 32), 1, 4)
    assert "is appended" in wide.last_resort


def test_tiles_divide_the_masks_blocks() -> None:
    call = replace(CALL, q_block=64, kv_block=64)
    planned = plan(call, STOCK, DEFAULT, H200)
    assert all(64 % extent == 0 for tile in planned.tiles for extent in tile.blocks)
    assert "do not divide the mask's, 64x64" in dict(planned.left_out)[DEFAULT]
    nothing = plan(replace(CALL, q_block=8, kv_block=8), STOCK, DEFAULT, H200)
    assert nothing.tiles == ()


def test_without_tuning_the_default_is_kept_shrunk_or_replaced() -> None:
    assert single(CALL, DEFAULT, H200).tiles == (DEFAULT,)
    assert single(replace(CALL, q_block=64, kv_block=32), DEFAULT, H200).tiles == (
        Tile((64, 32), 3, 8),
    )
    call = replace(CALL, head_dim=256, value_dim=256)
    planned = single(call, Tile((32, 64), 3, 4), L40S)
    assert planned.tiles == (Tile((32, 64), 2, 4),)
    assert "147456 bytes" in planned.last_resort
    backward = FlexCall("backward", 64, 64, "bfloat16", 64, 64)
    assert single(backward, Tile((64, 128, 128, 64), 3, 8), H200).tiles == (
        Tile((64, 64, 64, 64), 3, 8),
    )


def test_a_list_that_is_not_inductors_gets_nothing_added_but_a_last_resort() -> None:
    planned = plan(CALL, STOCK[:2], STOCK[0], H200, more=False)
    assert planned.tiles == (STOCK[0], Tile((32, 32), 1, 4))


def test_an_unknown_gpu_keeps_the_list() -> None:
    planned = plan(CALL, STOCK, DEFAULT, None, more=False)
    assert set(planned.tiles) == {*STOCK, Tile((16, 16), 1, 4)}
    assert planned.left_out == ()


def test_descriptors_are_for_hopper_on_and_two_byte_elements() -> None:
    assert all(descriptor.tma for descriptor in descriptors(CALL, H200))
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
            created = [
                k for k in KERNELS if (k.call, k.tile) == (call, tile) and k.arch in (80, 90)
            ]
            assert all(kernel.registers <= 168 and kernel.spills == 0 for kernel in created)
            assert created or dim == 64
    assert BACKWARD_SUMS_AT_EASE == 64


def test_exact_products_are_served_by_tiles_of_their_own() -> None:
    call = FlexCall("forward", 128, 128, "float32", 128, 128, exact=True)
    planned = plan(call, [Tile((32, 64), 3, 4)], Tile((32, 64), 3, 4), H200)
    assert set(EXACT["forward", 128]) <= set(planned.tiles)
    loose = plan(replace(call, exact=False), [Tile((32, 64), 3, 4)], Tile((32, 64), 3, 4), H200)
    assert not set(EXACT["forward", 128]) & set(loose.tiles)


def test_a_tile_is_written_as_people_write_it() -> None:
    assert str(Tile((128, 64), 3, 4, tma=True)) == "128x64, 3 stages, 4 warps, TMA"
