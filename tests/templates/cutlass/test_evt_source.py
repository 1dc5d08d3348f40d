"""The C++ of trees of visitors: leaves, functions, graphs of several outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.evt import Evt, Node, Output, TreeOperand
from inductor_plugin.templates.cutlass.evt_source import checks, evt_epilogue, functions
from inductor_plugin.templates.cutlass.source import source, why_not_generated

CONFIG = GemmConfig(
    "sm_90a", (128, 256, 64), (2, 1, 1), "cooperative", "bf16", "bf16", "bf16", "bf16", "f32"
)
SILU = Evt(
    (
        Node("sums"),
        Node("neg", (0,)),
        Node("exp", (1,)),
        Node("constant", (), 1.0),
        Node("add", (2, 3)),
        Node("truediv", (0, 4)),
    ),
    (),
    (Output(5, "bf16"),),
)
# The sum beside D, then silu of it, times one matrix, plus another.
TWO = Evt(
    (
        Node("sums"),
        Node("operand", (), 0),
        Node("add", (0, 1)),
        Node("operand", (), 1),
        Node("mul", (2, 3)),
        Node("operand", (), 2),
        Node("add", (4, 5)),
    ),
    (TreeOperand("row", "f16"), TreeOperand("source", "bf16"), TreeOperand("full", "f32")),
    (Output(2, "f32"), Output(6, "bf16")),
)


def test_a_value_used_twice_is_one_variable() -> None:
    (function,) = functions(SILU, "f")
    assert function.leaves == (("sums", 0),)
    assert function.body == (
        "float const v1 = -x0;",
        "float const v2 = expf(v1);",
        "float const v4 = v2 + 1.0f;",
        "float const v5 = x0 / v4;",
        "return v5;",
    )
    assert "struct f_value0<cutlass::Array<float, N>>" in function.text


def test_a_tree_lists_its_leaves_first() -> None:
    written = evt_epilogue(CONFIG, SILU)
    fusion = "cutlass::epilogue::fusion"
    name = f"evt_{SILU.digest}_value0"
    assert written.functor == (
        f"{fusion}::Sm90EVT<{fusion}::Sm90Compute<{name}, cutlass::bfloat16_t, float, "
        f"cutlass::FloatRoundStyle::round_to_nearest>, {fusion}::Sm90AccFetch>"
    )
    assert written.thread == "{{}, {}}"
    assert f"struct {name} {{" in written.declarations
    assert "_stages" not in written.declarations


def test_what_an_output_before_it_has_computed_is_taken_from_there() -> None:
    first, last = functions(TWO, "f")
    assert first.leaves == (("sums", 0), ("operand", 0))
    assert last.leaves == (("aux", 0), ("operand", 1), ("operand", 2))
    assert "v2" not in "".join(last.body)


def test_several_outputs_are_a_graph_whose_visitors_follow_what_they_take() -> None:
    written = evt_epilogue(CONFIG, TWO)
    edges = written.functor.split("cute::tuple<")[1].split(">,\n")[0]
    # sums, row, source, full; the first function of sums and row, its store; the last of three.
    assert edges == (
        "cute::seq<>, cute::seq<>, cute::seq<>, cute::seq<>, cute::seq<0, 1>, cute::seq<4>, "
        "cute::seq<5, 2, 3>"
    )
    order = ["Sm90AccFetch", "Sm90RowBroadcast", "Sm90SrcFetch", "Sm90AuxLoad", "Sm90AuxStore"]
    places = [written.functor.index(line) for line in order]
    assert places == sorted(places)
    assert written.functor.rstrip(">").endswith("round_to_nearest")
    # What is stored beside D comes behind what is read.
    assert "static_cast<float*>(call.operands[3].pointer)" in written.thread
    assert "static_cast<float const*>(call.operands[2].pointer)" in written.thread


def test_int8_is_cut_towards_zero_and_others_are_not() -> None:
    for element, cut in (("s8", True), ("e4m3", False), ("f16", False)):
        (function,) = functions(replace(SILU, outputs=(Output(5, element),)), "f")
        assert (function.body[-1] == "return truncf(v5);") == cut


def test_outputs_after_an_int8_one_compute_with_the_whole_value() -> None:
    cut = Evt(
        (Node("sums"), Node("relu", (0,)), Node("exp", (1,))),
        (),
        (Output(1, "s8"), Output(1, "f32"), Output(2, "bf16")),
    )
    narrow, whole, last = functions(cut, "f")
    assert narrow.body[-1] == "return truncf(v1);"
    assert whole.leaves == (("sums", 0),)
    assert "truncf" not in whole.text
    assert last.leaves == (("aux", 1),)


def test_a_constant_takes_the_sums_so_that_there_is_a_leaf() -> None:
    (function,) = functions(Evt((Node("constant", (), 2.0),), (), (Output(0, "f32"),)), "f")
    assert function.leaves == (("sums", 0),)
    assert function.body == ("return 2.0f;",)


def test_each_operand_is_checked_for_what_it_is() -> None:
    text = checks(TWO)
    assert "check_vector(call.operands[0], m, n, false, true, 2)" in text
    assert "check_matrix(call.operands[1], call, 8, 2)" in text
    assert "check_matrix(call.operands[2], call, 4, 4)" in text
    assert "check_matrix(call.operands[3], call, 4, 4)" in text
    assert text.endswith("call.operands[3].batch == 0) return kStride;")


@pytest.mark.skipif(why_not_generated() is not None, reason="needs nvidia-cutlass")
def test_a_kernel_reads_c_only_where_its_epilogue_does() -> None:
    plain, two = source(replace(CONFIG, epilogue=SILU)), source(replace(CONFIG, epilogue=TWO))
    assert _c_and_d(plain) == ["void", "cutlass::bfloat16_t"]
    assert _c_and_d(two) == ["cutlass::bfloat16_t", "cutlass::bfloat16_t"]
    assert "const*>(nullptr), stride_c" in plain
    assert "const*>(call.operands[1].pointer), stride_c" in two
    assert "StrideC stride_c{lead_c" in two
    assert "lead_of(call.operands[1].along_m, m, n, 8)" in two
    for text, slots in ((plain, 0), (two, 4)):
        assert f"one < {slots}; ++one" in text
        assert "@" not in text
    assert f"evt_{TWO.digest}_stages" in two
    assert source(replace(CONFIG)) == source(CONFIG)


def _c_and_d(text: str) -> list[str]:
    """Return the element types of C and D that the epilogue's builder is given."""
    _, _, builder = text.partition("epilogue::collective::CollectiveBuilder<")
    words = builder.split("EpilogueSchedule")[0].replace("\n", " ").split(",")
    return [word.strip() for word in words if "_t" in word or "void" in word][:2]
