from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from typing import Any, get_args

from inductor_plugin.templates.cutlass.config import BITS, GemmConfig, LaunchOptions, full_alignment
from inductor_plugin.templates.cutlass.element import DTYPES, ELEMENTS, Element
from inductor_plugin.templates.cutlass.epilogue import ELEMENT_TYPES
from inductor_plugin.templates.cutlass.evt import LIMITS, Evt, Node, Output

SM90 = GemmConfig(
    "sm_90a", (128, 128, 64), (2, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
SM80 = GemmConfig(
    "sm_80", (128, 128, 32), (1, 1, 1), "multistage", "f16", "f16", "f16", "f16", "f32", stages=4
)
FP8 = replace(
    SM90, tile=(128, 128, 128), a="e4m3", b="e4m3", align_a=16, align_b=16, scale="rowwise"
)
INT8 = replace(
    FP8, a="s8", b="s8", c="s32", d="s32", accumulator="s32", align_c=4, align_d=4, scale="none"
)


def test_the_name_is_readable_and_never_changes() -> None:
    # Records and caches keep names: a change here makes all of them unknown.
    assert SM90.name == "cutlass_sm90_128x128x64_2x1x1_pingpong_bf16_bf16_f32_bf16_tn_align8"
    assert (
        replace(FP8, bias="row", fast_accumulation=False).name
        == "cutlass_sm90_128x128x128_2x1x1_pingpong_e4m3_e4m3_f32_bf16_tn_align16_scale_rowwise"
        "_bias_row_bf16_slow"
    )
    assert (
        replace(SM80, align_a=2, layout_a="column", layout_b="row").name
        == "cutlass_sm80_128x128x32_1x1x1_multistage_f16_f16_f32_f16_nt_align2x8x8_stages4"
    )


RELU = Evt((Node("sums"), Node("relu", (0,))), (), (Output(1, "bf16"),))


def test_every_field_changes_the_name() -> None:
    base = replace(FP8, bias="full")
    other: dict[str, Any] = {
        "arch": "sm_100a",
        "tile": (64, 128, 128),
        "cluster": (1, 2, 1),
        "schedule": "cooperative",
        "a": "e5m2",
        "b": "e5m2",
        "c": "f32",
        "d": "f16",
        "accumulator": "s32",
        "layout_a": "column",
        "layout_b": "row",
        "align_a": 8,
        "align_b": 8,
        "align_c": 4,
        "align_d": 4,
        "bias": "column",
        "scale": "tensor",
        "stages": 3,
        "fast_accumulation": False,
        "grouped": True,
        "epilogue": RELU,
    }
    assert set(other) == {field_.name for field_ in fields(GemmConfig)}
    names = {replace(base, **{key: value}).name for key, value in other.items()}
    assert len(names | {base.name}) == len(other) + 1


def test_how_c_lies_is_no_part_of_a_kernel_that_does_not_read_it_in_full() -> None:
    for bias in ("none", "row", "column"):
        changed = replace(SM90, bias=bias)
        assert replace(changed, align_c=1) == changed
        assert replace(changed, align_c=1).align_c == 8
    full = replace(SM90, bias="full")
    assert replace(full, align_c=1) != full
    assert replace(full, align_c=1).name != full.name


def test_a_name_is_a_c_identifier() -> None:
    for config in (SM90, SM80, FP8, INT8):
        assert re.fullmatch(r"[a-z]\w*", config.name)


def test_a_configuration_is_plain_json() -> None:
    plain = json.loads(json.dumps(SM90.to_dict()))
    assert plain["tile"] == [128, 128, 64]
    assert set(plain) == {field_.name for field_ in fields(GemmConfig)} - {"epilogue"}
    plain = json.loads(json.dumps(replace(SM90, epilogue=RELU).to_dict()))
    assert (plain["epilogue"], plain["epilogue_digest"]) == ("relu(sums)", RELU.digest)


def test_a_full_alignment_is_sixteen_bytes() -> None:
    assert {full_alignment("bf16"), full_alignment("e4m3"), full_alignment("f32")} == {8, 16, 4}
    assert all(bits % 8 == 0 for bits in BITS.values())


def test_every_element_has_a_dtype_a_type_in_cpp_and_where_it_is_narrow_a_limit() -> None:
    elements = {*get_args(Element)}
    assert elements == DTYPES.keys() == BITS.keys() == ELEMENT_TYPES.keys()
    assert {dtype for dtype, element in ELEMENTS.items() if BITS[element] < 16} == LIMITS.keys()


def test_a_launch_is_named_by_what_differs_from_the_plain_one() -> None:
    assert LaunchOptions().name == ""
    assert LaunchOptions(8, "along_n", 4).name == "swizzle8_along_n_split4"
