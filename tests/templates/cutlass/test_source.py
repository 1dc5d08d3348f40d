from __future__ import annotations

import importlib.util
import re
from dataclasses import replace

import pytest

from inductor_plugin.kernels.unit import CppSource, single_unit, unique_symbol
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.epilogue import epilogue
from inductor_plugin.templates.cutlass.source import source

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cutlass_library") is None,
    reason="needs cutlass_library, of the wheel nvidia-cutlass",
)

SM90 = GemmConfig(
    "sm_90a", (128, 256, 64), (2, 1, 1), "cooperative", "bf16", "bf16", "bf16", "bf16", "f32"
)
SM80 = GemmConfig(
    "sm_80", (128, 64, 32), (1, 1, 1), "multistage", "f16", "f16", "f16", "f16", "f32", stages=4
)
FP8 = replace(
    SM90, tile=(128, 128, 128), a="e4m3", b="e5m2", align_a=16, align_b=16, scale="rowwise"
)


def condensed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_a_source_is_the_same_each_time() -> None:
    assert source(SM90) == source(SM90)


@pytest.mark.parametrize("config", [SM90, SM80, FP8], ids=lambda config_: config_.name)
def test_a_source_has_includes_first_and_one_c_function_last(config: GemmConfig) -> None:
    text = source(config)
    lines = text.splitlines()
    included = [number for number, line in enumerate(lines) if line.startswith("#include")]
    assert included == list(range(len(included)))
    # The function, and what a block of it takes.
    assert text.count('extern "C"') == 2
    assert f"int32_t const {config.name}_block[2]" in text
    assert text.index('extern "C"') > text.rindex("inline ")
    assert re.search(rf"\b{config.name}\(", text)
    assert "@" not in text


def test_several_sources_stand_in_one_unit() -> None:
    sources = [
        CppSource(str(n) * 64, source(config), config.name) for n, config in enumerate((SM90, SM80))
    ]
    unit = single_unit(sources)
    assert unit.count('#include "cutlass/cutlass.h"') == 1
    for source_ in sources:
        assert f"int32_t {unique_symbol(source_)}(" in unit
        # The kernel's type keeps its readable name: it is what a profile shows.
        assert f"struct {source_.symbol}_kernel" in unit


def test_cutlass_library_writes_the_type_of_exactly_this_configuration() -> None:
    text = condensed(source(SM90))
    assert "cute::Shape<cute::_128,cute::_256,cute::_64>" in text
    assert "cute::Shape<cute::_2,cute::_1,cute::_1>" in text
    assert "cutlass::gemm::KernelTmaWarpSpecializedCooperative>" in text
    assert "cutlass::gemm::PersistentScheduler" in text
    stream = condensed(source(replace(SM90, schedule="stream_k")))
    assert "cutlass::gemm::StreamKScheduler" in stream
    assert "scheduler.splits=call.split_k" in stream
    assert "scheduler.splits" not in text


def test_an_sm80_kernel_takes_its_operands_in_their_own_order() -> None:
    config = replace(SM80, layout_a="row", layout_b="row", align_a=4, align_b=2)
    text = condensed(source(config))
    assert (
        "DefaultGemmUniversal<"
        "cutlass::half_t,cutlass::layout::RowMajor,cutlass::ComplexTransform::kNone,4," in text
    )
    assert "cutlass::half_t,cutlass::layout::RowMajor,cutlass::ComplexTransform::kNone,2," in text
    assert "cutlass::gemm::GemmShape<128,64,32>,cutlass::gemm::GemmShape<64,32,32>" in text
    turned = condensed(source(replace(config, layout_a="column")))
    assert (
        "DefaultGemmUniversal<"
        "cutlass::half_t,cutlass::layout::ColumnMajor,cutlass::ComplexTransform::kNone,4," in turned
    )


@pytest.mark.parametrize(
    ("change", "stride_a", "stride_b"),
    [
        ({}, "{lead_a,cute::_1{},batch_a}", "{lead_b,cute::_1{},batch_b}"),
        ({"layout_a": "column"}, "{cute::_1{},lead_a,batch_a}", "{lead_b,cute::_1{},batch_b}"),
        ({"layout_b": "row"}, "{lead_a,cute::_1{},batch_a}", "{cute::_1{},lead_b,batch_b}"),
    ],
)
def test_strides_follow_the_orders(change: dict[str, str], stride_a: str, stride_b: str) -> None:
    text = condensed(source(replace(SM90, **change)))  # pyright: ignore[reportArgumentType]
    assert f"stride_a{stride_a};" in text
    assert f"stride_b{stride_b};" in text


def test_fast_accumulation_is_a_schedule() -> None:
    assert "KernelTmaWarpSpecializedCooperativeFP8FastAccum" in source(FP8)
    assert "FP8FastAccum" not in source(replace(FP8, fast_accumulation=False))
    assert "FP8FastAccum" not in source(SM90)


def test_hoppers_tf32_of_row_major_operands_has_the_epilogue_of_a_transposed_d() -> None:
    """In the emulator the others write D transposed, and beyond its end."""
    tf32 = replace(SM90, tile=(128, 128, 32), a="tf32", b="tf32", c="f32", d="f32", align_d=4)
    rows = replace(tf32, align_a=4, align_b=4, align_c=4, layout_b="row")
    assert "cutlass::gemm::EpilogueTransposed" in source(rows)
    assert "cutlass::gemm::EpilogueTransposed" in source(replace(rows, bias="full"))
    for other in (replace(rows, layout_b="column"), replace(rows, layout_a="column")):
        assert "EpilogueTransposed" not in source(other)
    assert "EpilogueTransposed" not in source(replace(SM90, layout_b="row"))


def test_c_is_void_unless_it_is_read() -> None:
    assert "void,cutlass::layout::RowMajor,0," in condensed(source(SM90))
    assert "void,cutlass::layout::RowMajor" in condensed(source(replace(SM90, bias="row")))
    full = condensed(source(replace(SM90, bias="full")))
    assert "void,cutlass::layout::RowMajor" not in full


def test_epilogues_list_leaves_first() -> None:
    plain = epilogue(SM90)
    assert (plain.functor, plain.thread) == ("", "{float(call.alpha), float(0)}")
    row = epilogue(replace(SM90, bias="row"))
    assert "Sm90RowBroadcast" in row.functor
    assert "Sm90ColBroadcast" not in row.functor
    assert row.thread.startswith("{{{call.beta}}, {static_cast<cutlass::bfloat16_t const*>(call.c)")
    column = epilogue(replace(SM90, bias="column"))
    assert "Sm90ColBroadcast" in column.functor
    scales = epilogue(FP8)
    # scale_a has one number a row, which is a column of D; scale_b one a column.
    assert scales.functor.index("Sm90ColBroadcast") < scales.functor.index("Sm90RowBroadcast")
    assert scales.thread.index("call.scale_a") < scales.thread.index("call.scale_b")
    tensor = epilogue(replace(FP8, scale="tensor", bias="full"))
    assert "Sm90SrcFetch<cutlass::bfloat16_t>" in tensor.functor
    assert "{{call.alpha, 1.0f, 1.0f}, {nullptr, " in tensor.thread


def test_two_blocks_of_a_tile_write_half_of_it_each() -> None:
    config = replace(SM90, arch="sm_100a", schedule="two_sm", tile=(256, 128, 64), bias="row")
    assert "cute::Shape<cute::Int<128>, cute::Int<128>, cute::Int<64>>" in epilogue(config).functor


def test_what_has_no_kernel_has_no_source() -> None:
    with pytest.raises(ValueError, match=r"cannot be built: .*TMA"):
        source(replace(SM90, align_a=1))
