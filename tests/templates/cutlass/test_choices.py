# pyright: reportPrivateUsage=false

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.templates.cutlass import choices as cutlass_choices
from inductor_plugin.templates.cutlass.choices import Choice, choices, family
from inductor_plugin.templates.cutlass.config import Arch, Bias
from inductor_plugin.templates.cutlass.limits import SCHEDULES, why_not_buildable
from inductor_plugin.templates.cutlass.problem import GemmFacts, facts_of

FACTS = GemmFacts(
    m=4096,
    n=4096,
    k=4096,
    batch=1,
    a="bf16",
    b="bf16",
    c="bf16",
    d="bf16",
    layout_a="row",
    layout_b="column",
    align_a=8,
    align_b=8,
    align_c=8,
    align_d=8,
)
FP8 = replace(FACTS, a="e4m3", b="e4m3", align_a=16, align_b=16, scale="rowwise")
INT8 = replace(
    FACTS, a="s8", b="s8", c="s32", d="s32", align_a=16, align_b=16, align_c=4, align_d=4
)


def some(facts: GemmFacts, arch: str = "sm_90a") -> tuple[Choice, ...]:
    offered = choices(facts, arch)
    assert not isinstance(offered, str), offered
    assert offered
    return offered


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        replace(FACTS, m=16),
        replace(FACTS, m=8, n=8, k=8),
        replace(FACTS, batch=64, m=128, n=128),
        replace(FACTS, layout_a="column", layout_b="row", bias="full"),
        replace(FACTS, bias="row"),
    ],
)
def test_choices_are_buildable_few_and_have_names_of_their_own(facts: GemmFacts, arch: str) -> None:
    offers = some(facts, arch)
    assert len(offers) <= cutlass_choices.LIMIT
    assert len({choice.name for choice in offers}) == len(offers)
    assert [why_not_buildable(choice.config) for choice in offers] == [None] * len(offers)
    assert {choice.config.arch for choice in offers} == {family(arch)}
    assert offers == some(facts, arch)


def test_every_architecture_has_kernels_and_a_number_of_multiprocessors() -> None:
    """Without the number, ordering the choices would be a KeyError, as without schedules or tiles."""
    architectures = set(get_args(Arch))
    assert set(cutlass_choices._MULTIPROCESSORS) == architectures
    assert set(SCHEDULES) == architectures
    offered = {
        arch: {schedule for schedule, _, _ in shapes}
        for arch, shapes in cutlass_choices._SHAPES.items()
    }
    assert offered == {arch: set(schedules) for arch, schedules in SCHEDULES.items()}
    offers = [choice for arch in sorted(architectures) for choice in some(FACTS, arch)]
    assert {choice.config.arch for choice in offers} == architectures


def test_a_large_product_starts_with_large_tiles() -> None:
    assert some(FACTS)[0].config.tile[:2] in ((128, 256), (256, 128))


def test_few_rows_start_with_small_tiles() -> None:
    assert some(replace(FACTS, m=16))[0].config.tile[0] == 64


def test_a_long_k_of_few_tiles_is_cut() -> None:
    offers = some(replace(FACTS, m=512, n=1024, k=8192))
    assert any(choice.launch.split_k > 1 for choice in offers[:4])
    assert all(
        choice.config.schedule == "stream_k" for choice in offers if choice.launch.split_k > 1
    )
    assert not any(choice.launch.split_k > 1 for choice in some(FACTS))


def test_a_batch_is_never_cut() -> None:
    for arch in ("sm_80", "sm_90a"):
        offers = some(replace(FACTS, batch=2, m=128, n=128, k=1 << 16), arch)
        assert {choice.launch.split_k for choice in offers} == {1}


def test_sixteen_bit_sums_are_not_cut_on_sm80() -> None:
    small = replace(FACTS, m=128, n=128, k=1 << 16)
    assert {choice.launch.split_k for choice in some(small, "sm_80")} == {1}
    whole = replace(small, d="f32", c="f32", align_d=4, align_c=4)
    assert {choice.launch.split_k for choice in some(whole, "sm_80")} == {1, 4}


@pytest.mark.parametrize("align", [1, 2, 4])
def test_what_tma_cannot_read_falls_back_to_sm80_kernels(align: int) -> None:
    offers = some(replace(FACTS, align_a=align))
    assert {choice.config.arch for choice in offers} == {"sm_80"}
    assert {choice.config.stages == 2 for choice in offers} == ({True} if align == 1 else {False})


def test_tiles_that_spill_are_not_offered() -> None:
    tiles = [choice.config.tile for choice in some(replace(FACTS, align_b=1))]
    assert max(rows * columns for rows, columns, *_ in tiles) <= 128 * 128


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("bias", ["none", "full"])
def test_products_whose_best_tiles_spill_keep_others(arch: str, bias: Bias) -> None:
    half = replace(FACTS, align_a=1, align_b=1, bias=bias)
    tf32 = replace(
        *(replace(FACTS, a="tf32", b="tf32", c="f32", d="f32", bias=bias),),
        align_a=4,
        align_b=4,
        align_c=4,
        align_d=4,
        layout_a="column",
        layout_b="row",
    )
    for facts in (half, tf32):
        tiles = {choice.config.tile[:2] for choice in some(facts, arch)}
        assert (128, 128) in tiles


def test_what_tma_cannot_write_keeps_hopper_kernels_without_a_bias() -> None:
    odd = replace(FACTS, align_d=1)
    offers = some(odd)
    assert {choice.config.arch for choice in offers} == {"sm_90a"}
    assert not any(choice.config.tma_epilogue for choice in offers)
    assert {choice.config.arch for choice in some(replace(odd, bias="row"))} == {"sm_80"}


def test_eight_bit_inputs_have_choices() -> None:
    assert {choice.config.tile[2] for choice in some(FP8)} == {128}
    assert {choice.config.accumulator for choice in some(INT8)} == {"s32"}
    assert {choice.config.arch for choice in some(INT8, "sm_80")} == {"sm_80"}
    slow = some(replace(FP8, fast_accumulation=False))
    assert all(choice.config.name.endswith("_slow") for choice in slow)


@pytest.mark.parametrize(
    ("facts", "arch", "reason"),
    [
        (FP8, "sm_80", "no CUTLASS kernel for fp8 on sm_80 here: the 2.x kernels are built for"),
        (FP8, "sm_89", "no CUTLASS kernel for fp8 on sm_89 here: the 2.x kernels are built for"),
        (replace(FP8, layout_b="row"), "sm_90a", "K contiguous"),
        (replace(INT8, layout_a="column"), "sm_80", "K contiguous"),
        (replace(FACTS, bias="column"), "sm_80", "no column bias"),
        (replace(FACTS, bias="column", align_a=4), "sm_90a", "no column bias"),
    ],
)
def test_where_there_is_no_kernel_the_reason_is_given(
    facts: GemmFacts, arch: str, reason: str
) -> None:
    assert reason in str(choices(facts, arch))


@pytest.mark.parametrize("facts", [replace(FP8, layout_b="row"), replace(FP8, align_a=8)])
def test_a_refusal_on_hopper_does_not_speak_of_older_kernels(facts: GemmFacts) -> None:
    reason = str(choices(facts, "sm_90a"))
    assert reason.startswith(("e4m3 tensor cores want K", "sm_90a loads A by TMA"))
    assert "sm_80" not in reason
    assert "2.x" not in reason


@pytest.mark.parametrize("bias", ["row", "full"])
@pytest.mark.parametrize(("align_c", "align_d"), [(1, 8), (4, 8), (8, 4), (8, 8)])
def test_an_sm80_kernel_reads_a_bias_no_wider_than_it_lies(
    bias: Bias, align_c: int, align_d: int
) -> None:
    for choice in some(replace(FACTS, bias=bias, align_c=align_c, align_d=align_d), "sm_80"):
        assert choice.config.align_d == min(align_c, align_d)
        assert choice.config.align_c == (min(align_c, align_d) if bias == "full" else 8)


def test_what_hopper_writes_does_not_depend_on_how_a_row_of_bias_lies() -> None:
    assert some(replace(FACTS, bias="row", align_c=1)) == some(replace(FACTS, bias="row"))


def test_a_problem_is_rejected_for_the_device_it_is_for() -> None:
    def operand(size: tuple[int, int], dtype: str, stride: tuple[int, int]) -> Operand:
        return Operand(size, stride, dtype, "cuda")

    tensor = Operand((1,), (1,), "float32", "cuda")
    problem = Problem(
        "scaled_mm",
        (
            operand((64, 32), "float8_e4m3fn", (32, 1)),
            operand((32, 128), "float8_e4m3fn", (1, 32)),
            tensor,
            tensor,
        ),
        operand((64, 128), "bfloat16", (128, 1)),
    )
    facts = facts_of(problem)
    assert isinstance(facts, GemmFacts)
    assert not isinstance(choices(facts, "sm_90a"), str)
    assert "fp8 on sm_80" in str(choices(facts, "sm_80"))
    assert "not softmax" in str(facts_of(replace(problem, op="softmax")))


def launches(facts: GemmFacts, arch: str, *tile: int, schedule: str = "") -> set[tuple[int, int]]:
    """Return (parts of K, swizzle) of all kernels of a tile."""
    offered = choices(facts, arch, cutlass_choices.ALL)
    assert not isinstance(offered, str), offered
    return {
        (choice.launch.split_k, choice.launch.swizzle)
        for choice in offered
        if choice.config.tile[:2] == tile and schedule in ("", choice.config.schedule)
    }


WHOLE = (1, 1)


@pytest.mark.parametrize(
    ("m", "n", "k", "is_cut"),
    [(6, 9, 4096, True), (5, 11, 4096, False), (6, 9, 4088, False)],
)
def test_on_sm80_a_long_k_is_cut_where_half_of_the_device_idles(
    m: int, n: int, k: int, *, is_cut: bool
) -> None:
    facts = replace(FACTS, m=64 * m, n=64 * n, k=k, d="f32", c="f32", align_d=4, align_c=4)
    assert launches(facts, "sm_80", 64, 64) == ({WHOLE, (4, 1)} if is_cut else {WHOLE})


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [(6, 11, 512, 2), (6, 11, 511, 1), (1, 67, 4096, 1), (6, 11, 2048, 8), (6, 11, 4096, 8)],
)
def test_on_hopper_k_has_as_many_parts_as_are_long_enough(
    m: int, n: int, k: int, parts: int
) -> None:
    facts = replace(FACTS, m=128 * m, n=128 * n, k=k)
    assert launches(facts, "sm_90a", 128, 128, schedule="stream_k") == {WHOLE, (parts, 1)}


def test_a_product_of_many_tiles_is_also_walked_in_panels() -> None:
    many = {WHOLE, (1, 8)}
    for columns, walks in ((1056, {WHOLE}), (1057, many)):
        facts = replace(FACTS, m=128, n=128 * columns)
        assert launches(facts, "sm_90a", 128, 128, schedule="pingpong") == walks


def test_an_sm80_kernel_has_as_many_stages_as_fit() -> None:
    offered = choices(FACTS, "sm_80", cutlass_choices.ALL)
    assert not isinstance(offered, str), offered
    assert {choice.config.tile: choice.config.stages for choice in offered} == {
        (128, 256, 32): 4, (256, 128, 32): 4, (128, 128, 64): 3, (128, 128, 32): 5,
        (128, 64, 64): 4, (128, 64, 32): 5, (64, 128, 64): 4, (64, 128, 32): 5,
        (64, 64, 64): 5, (64, 64, 32): 5,
    }  # fmt: skip


def test_only_fp8_sums_may_be_less_exact() -> None:
    assert some(replace(FACTS, fast_accumulation=False)) == some(FACTS)
