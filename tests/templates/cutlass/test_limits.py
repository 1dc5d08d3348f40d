from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.templates.cutlass.config import GemmConfig, Major, Schedule
from inductor_plugin.templates.cutlass.limits import why_not_buildable

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
SM100 = replace(SM90, arch="sm_100a", schedule="one_sm", cluster=(1, 1, 1))
INT8 = replace(
    FP8, a="s8", b="s8", c="s32", d="s32", accumulator="s32", align_c=4, align_d=4, scale="none"
)


@pytest.mark.parametrize(
    "config", [SM90, SM80, FP8, INT8, GROUPED], ids=lambda config_: config_.name
)
def test_good_configurations_are_buildable(config: GemmConfig) -> None:
    assert why_not_buildable(config) is None


INT8_SM80 = replace(
    INT8, arch="sm_80", schedule="multistage", tile=(128, 128, 64), cluster=(1, 1, 1), stages=3
)


@pytest.mark.parametrize(
    "config",
    [
        *(replace(SM90, cluster=cluster) for cluster in ((8, 1, 1), (1, 8, 1), (2, 4, 1))),
        *(replace(SM90, tile=(64, columns, 64)) for columns in (16, 256)),
        *(replace(SM90, tile=(128, 128, k)) for k in (32, 64, 128)),
        replace(SM90, tile=(256, 128, 64), schedule="cooperative"),
        *(replace(SM100, tile=(rows, 128, 64)) for rows in (64, 128)),
        *(replace(SM100, tile=(128, columns, 64)) for columns in (16, 256)),
        *(
            replace(SM100, schedule="two_sm", tile=(rows, 128, 64), cluster=(2, 1, 1))
            for rows in (128, 256)
        ),
        *(replace(SM80, tile=(64, 64, k), stages=2) for k in (16, 32, 64)),
        *(replace(INT8_SM80, align_a=align) for align in (4, 16)),
        replace(INT8, bias="full"),
        replace(FP8, b="e5m2"),
        replace(GROUPED, schedule="cooperative"),
        replace(FP8, scale="none", grouped=True),
    ],
    ids=lambda config_: config_.name,
)
def test_configurations_at_a_limit_are_buildable(config: GemmConfig) -> None:
    assert why_not_buildable(config) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(SM90, cluster=(1, 3, 1)), "1, 2, 4 or 8 blocks"),
        (replace(SM90, cluster=(1, 1, 2)), "1, 2, 4 or 8 blocks"),
        (replace(SM90, cluster=(1, 16, 1)), "1, 2, 4 or 8 blocks"),
        *((replace(SM90, tile=(64, n, 64)), f"not {n}") for n in (8, 24, 272)),
        *((replace(SM90, tile=(rows, 16, 64)), f"not {rows}") for rows in (32, 320)),
        (replace(SM90, tile=(64, 64, 256)), "64, 128 or 256 bytes of K, not 512"),
        *((replace(SM100, tile=(128, n, 64)), f"not {n}") for n in (8, 24, 272)),
        (replace(SM100, tile=(256, 128, 64)), "64 or 128 rows, not 256"),
        (
            replace(SM100, schedule="two_sm", tile=(64, 128, 64), cluster=(2, 1, 1)),
            "128 or 256 rows, not 64",
        ),
        (replace(SM100, cluster=(16, 1, 1)), "1, 2, 4 or 8 blocks"),
        (replace(INT8, arch="sm_100a", schedule="one_sm"), "int8 kernels are not offered"),
        (replace(SM80, tile=(64, 64, 128), stages=2), "32, 64 or 128 bytes of K, not 256"),
        (replace(SM80, stages=1), "2 or more, not 1"),
        (replace(SM90, align_a=0), "alignment of A is 0 elements"),
        *(
            (replace(INT8_SM80, stages=2, **{align: 2}), "not 2")
            for align in ("align_a", "align_b")
        ),
        (replace(INT8, bias="full", c="f32"), "is s32, not f32"),
        (replace(INT8, bias="column"), "int8 sums stay whole numbers"),
        (replace(FP8, b="bf16", align_b=8), "only fp8 types can be mixed"),
        (replace(FP8, grouped=True), "no bias and no scales"),
        (replace(SM100, grouped=True), "grouped kernels are sm_90a"),
        (replace(INT8, grouped=True), "from 16-bit floats or fp8"),
    ],
)
def test_configurations_beyond_a_limit_say_why(config: GemmConfig, reason: str) -> None:
    assert reason in str(why_not_buildable(config))


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
        (replace(TF32, layout_b="row", schedule="stream_k"), "those of D transposed"),
        (replace(TF32, layout_b="row", bias="column"), "those of D transposed"),
        (replace(SM90, grouped=True, schedule="stream_k"), "pingpong or cooperative"),
        (replace(SM90, grouped=True, layout_a="column"), "must lie together"),
        (replace(SM90, grouped=True, bias="row"), "no bias and no scales"),
        (replace(SM90, grouped=True, align_d=1), "by TMA"),
    ],
)
def test_what_has_no_kernel_says_why(config: GemmConfig, reason: str) -> None:
    assert reason in str(why_not_buildable(config))


def test_rows_that_tma_cannot_write_get_the_other_epilogue() -> None:
    odd = replace(SM90, align_d=1)
    assert why_not_buildable(odd) is None
    assert not odd.tma_epilogue
    assert SM90.tma_epilogue
    assert not replace(SM90, bias="full", align_c=4).tma_epilogue


def test_an_sm80_bias_may_be_more_aligned_than_what_is_written() -> None:
    assert why_not_buildable(replace(SM80, bias="full", align_c=8, align_d=4)) is None
    assert why_not_buildable(replace(SM80, bias="full", align_c=4, align_d=4)) is None


ORDERS: dict[str, tuple[Major, Major]] = {
    "tn": ("row", "column"),
    "nn": ("column", "column"),
    "nt": ("column", "row"),
    "tt": ("row", "row"),
}


@pytest.mark.parametrize(
    ("schedule", "tile", "spilling"),
    [
        ("cooperative", (256, 128, 32), {"nn": 104, "nt": 152, "tt": 144}),
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
    if config.transposed_epilogue and schedule == "stream_k":
        assert "those of D transposed" in str(why_not_buildable(config))
    else:
        assert why_not_buildable(config) == expected


def test_two_stages_of_a_large_sm80_tile_spill() -> None:
    narrow = replace(SM80, stages=2, align_a=1, align_b=1)
    large = replace(narrow, tile=(128, 128, 64))
    for bias in ("none", "row", "full"):
        assert "each thread would spill" in str(why_not_buildable(replace(large, bias=bias)))
        assert why_not_buildable(replace(narrow, bias=bias)) is None
    assert why_not_buildable(replace(large, tile=(128, 64, 64))) is None
    assert why_not_buildable(replace(large, stages=3)) != why_not_buildable(large)


def test_two_stages_copy_single_elements_through_registers() -> None:
    assert why_not_buildable(replace(SM80, align_a=1, align_b=1, stages=2)) is None
