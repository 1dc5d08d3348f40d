from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.templates.cutlass.config import GemmConfig, Major, Schedule
from inductor_plugin.templates.cutlass.limits import unbuildable

SM90 = GemmConfig(
    "sm_90a", (128, 128, 64), (2, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
GROUPED = replace(SM90, grouped=True)
SM80 = GemmConfig(
    "sm_80", (128, 128, 32), (1, 1, 1), "multistage", "f16", "f16", "f16", "f16", "f32", stages=4
)
TF32 = GemmConfig(
    *("sm_90a", (256, 128, 32), (2, 1, 1), "cooperative", "tf32", "tf32", "f32", "f32", "f32"),
    align_a=4,
    align_b=4,
    align_c=4,
    align_d=4,
)
FP8 = replace(
    SM90, tile=(128, 128, 128), a="e4m3", b="e4m3", align_a=16, align_b=16, scale="rowwise"
)
INT8 = replace(
    FP8, a="s8", b="s8", c="s32", d="s32", accumulator="s32", align_c=4, align_d=4, scale="none"
)


@pytest.mark.parametrize(
    "config", [SM90, SM80, FP8, INT8, GROUPED], ids=lambda config_: config_.name
)
def test_good_configurations_are_buildable(config: GemmConfig) -> None:
    assert unbuildable(config) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(SM90, schedule="multistage"), "sm_90a has no schedule 'multistage'"),
        (replace(SM90, a="s32"), "no tensor core multiplies s32"),
        (replace(SM90, b="f16"), "only fp8 types can be mixed"),
        (replace(SM90, d="f16", c="f16"), "bf16 inputs give bf16, f32, not f16"),
        (replace(SM90, accumulator="s32"), "bf16 is summed in f32"),
        (replace(FP8, arch="sm_80", schedule="multistage"), "not for fp8"),
        (replace(FP8, layout_b="row"), "K contiguous in both inputs"),
        (replace(INT8, layout_a="column"), "K contiguous in both inputs"),
        (replace(SM90, align_a=3), "alignment of A is 3 elements"),
        (replace(SM90, align_b=16), "alignment of B is 16 elements"),
        (replace(SM90, align_b=4), "loads B by TMA, which needs 16 bytes of alignment, not 8"),
        (replace(SM80, align_a=1), "cp.async copies 4, 8 or 16 bytes, not 2"),
        (replace(SM90, c="f32", align_c=4), "without a bias C has D's type"),
        (replace(SM90, scale="tensor"), "scales belong to fp8"),
        (replace(INT8, bias="row"), "int8 sums stay whole numbers"),
        (replace(SM80, bias="column"), "no column bias"),
        (replace(SM80, bias="row", c="f32", align_c=4), "reads its bias as f16"),
        (replace(SM80, bias="full", align_c=4), "reads C as wide as it writes D, 8 elements"),
        (replace(SM90, align_d=1, bias="row"), "rows that are not 16-byte aligned"),
        (replace(SM90, align_d=1, schedule="stream_k"), "rows that are not 16-byte aligned"),
        (replace(FP8, align_d=2), "rows that are not 16-byte aligned"),
        (replace(SM90, tile=(128, 256, 64)), "each thread would hold 256 sums"),
        (replace(FP8, fast_accumulation=False), "each thread would hold 256 sums"),
        (replace(SM90, tile=(96, 128, 64)), "64 or 128 rows, not 96"),
        (replace(SM90, schedule="cooperative", tile=(64, 128, 64)), "128 or 256 rows, not 64"),
        (replace(SM90, tile=(128, 100, 64)), "16, 32 ... 256 columns, not 100"),
        (replace(SM90, tile=(128, 128, 16)), "64, 128 or 256 bytes of K, not 32"),
        (replace(SM90, cluster=(3, 1, 1)), "1, 2, 4 or 8 blocks"),
        (replace(SM90, cluster=(4, 4, 1)), "1, 2, 4 or 8 blocks"),
        (replace(SM80, tile=(32, 32, 32)), "no arrangement of warps"),
        (replace(SM80, cluster=(2, 1, 1)), "sm_80 has no clusters"),
        (replace(SM80, stages=0), "names its stages"),
        (replace(SM80, stages=9), "bytes of shared memory, a block has"),
        (
            replace(
                SM90, arch="sm_100a", schedule="two_sm", tile=(256, 128, 64), cluster=(1, 1, 1)
            ),
            "an even number of blocks",
        ),
        (replace(SM90, grouped=True, schedule="stream_k"), "pingpong or cooperative"),
        (replace(SM90, grouped=True, layout_a="column"), "must lie together"),
        (replace(SM90, grouped=True, bias="row"), "no bias and no scales"),
        (replace(SM90, grouped=True, align_d=1), "by TMA"),
    ],
)
def test_what_has_no_kernel_says_why(config: GemmConfig, reason: str) -> None:
    assert reason in str(unbuildable(config))


def test_rows_that_tma_cannot_write_get_the_other_epilogue() -> None:
    odd = replace(SM90, align_d=1)
    assert unbuildable(odd) is None
    assert not odd.tma_epilogue
    assert SM90.tma_epilogue
    assert not replace(SM90, bias="full", align_c=4).tma_epilogue


def test_an_sm80_bias_may_be_more_aligned_than_what_is_written() -> None:
    assert unbuildable(replace(SM80, bias="full", align_c=8, align_d=4)) is None
    assert unbuildable(replace(SM80, bias="full", align_c=4, align_d=4)) is None


ORDERS: dict[str, tuple[Major, Major]] = {
    "tn": ("row", "column"),
    "nn": ("column", "column"),
    "nt": ("column", "row"),
    "tt": ("row", "row"),
}


@pytest.mark.parametrize(
    ("schedule", "tile", "spilling"),
    [
        ("cooperative", (256, 128, 32), {"nn": 104, "nt": 152, "tt": 100}),
        ("cooperative", (128, 256, 32), {"nt": 152}),
        ("stream_k", (128, 256, 32), {"nt": 264}),
        ("cooperative", (128, 128, 32), {}),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_tf32_kernels_that_spill_are_not_built(
    schedule: Schedule, tile: tuple[int, int, int], spilling: dict[str, int], order: str
) -> None:
    a, b = ORDERS[order]
    config = replace(TF32, schedule=schedule, tile=tile, layout_a=a, layout_b=b)
    expected = f"each thread would spill {spilling[order]} bytes" if order in spilling else None
    assert unbuildable(config) == expected


def test_two_stages_of_a_large_sm80_tile_spill() -> None:
    narrow = replace(SM80, stages=2, align_a=1, align_b=1)
    large = replace(narrow, tile=(128, 128, 64))
    for bias in ("none", "row", "full"):
        assert "each thread would spill" in str(unbuildable(replace(large, bias=bias)))
        assert unbuildable(replace(narrow, bias=bias)) is None
    assert unbuildable(replace(large, tile=(128, 64, 64))) is None
    assert unbuildable(replace(large, stages=3)) != unbuildable(large)


def test_two_stages_copy_single_elements_through_registers() -> None:
    assert unbuildable(replace(SM80, align_a=1, align_b=1, stages=2)) is None
