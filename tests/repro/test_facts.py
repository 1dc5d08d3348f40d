"""What the script of a record states, of records that are written by hand: no compile is needed for it."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Record
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import dump
from inductor_plugin.repro.call import CallText, NotReproducible, call_of
from inductor_plugin.repro.operand import OperandText
from inductor_plugin.repro.script import script
from tests.support.cache.records import decision, measured, record


def dense(*size: int, dtype: str = "float32", device: str = "cpu", **more: Any) -> Operand:
    stride = tuple(math.prod(size[dim + 1 :]) for dim in range(len(size)))
    return Operand(size, stride, dtype, device, **more)


def known(problem: Problem) -> Record:
    bare = record(measured("fast", 1.0), decision=decision("fast"))
    known = replace(bare, op=problem.op, describe=problem.describe())
    return replace(known, problem=problem.fields())


def facts(kept: Record, environment: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a script assigns before its functions."""
    written = script(kept, environment or {}, "/cache")
    assert written.refused == ""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(written.text).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and not isinstance(node.value, ast.Call)
    }


def operands_of(problem: Problem) -> dict[str, dict[str, Any]]:
    return {operand["name"]: operand for operand in facts(known(problem))["OPERANDS"]}


MM = Problem("mm", (dense(4, 8), dense(8, 2)), dense(4, 2))


def test_a_script_accepts_what_the_type_that_is_written_allows() -> None:
    narrow, scale = dense(32, 32, dtype="float8_e4m3fn"), dense()
    output = replace(narrow, dtype="bfloat16")
    accepted = facts(known(Problem("scaled_mm", (narrow, narrow, scale, scale), output)))[
        "TOLERANCE"
    ]
    assert 0.06 < accepted < 0.07  # 16 units of bfloat16


def test_a_script_accepts_what_sums_of_k_terms_are_off_by() -> None:
    wide = Problem("mm", (dense(4, 64), dense(64, 4096)), dense(4, 4096))
    square = Problem("mm", (dense(4, 64), dense(64, 64)), dense(4, 64))
    accepted = [facts(known(problem))["TOLERANCE"] for problem in (wide, square)]
    assert accepted[0] == accepted[1]


def test_a_script_accepts_the_rounding_of_a_gpu_there_alone() -> None:
    here = facts(known(MM))["TOLERANCE"]
    inputs = tuple(replace(operand, device="cuda") for operand in MM.inputs)
    there = facts(known(replace(MM, inputs=inputs)))["TOLERANCE"]
    assert here < 1e-5
    assert 1e-3 < there < 1e-2  # factors are TF32 there


def test_a_script_runs_as_the_machine_did_and_by_the_same_margin() -> None:
    numerics = {"float32_matmul_precision": "high", "deterministic": True}
    environment = {"device": {"threads": 3}, "numerics": numerics}
    stated = facts(known(MM), environment)
    assert (stated["THREADS"], stated["PRECISION"], stated["DETERMINISTIC"]) == (3, "high", True)
    assert stated["OPTIONS"] == {"never_slower_margin": 1.02}
    assert (stated["WINNER"], stated["CACHE_DIR"]) == ("fast", "/cache")
    undecided = facts(replace(known(MM), decision=None))
    assert (undecided["WINNER"], undecided["OPTIONS"]) == (None, {})
    assert (undecided["THREADS"], undecided["PRECISION"]) == (0, "highest")
    assert undecided["DETERMINISTIC"] is False


def test_a_frozen_weight_freezes_and_an_integer_is_compared_exactly() -> None:
    stated = facts(known(MM))
    assert (stated["FREEZING"], stated["EXACT_INTEGERS"], stated["TIMES_EAGER"]) == (
        False,
        False,
        0,
    )
    a, b = MM.inputs
    assert facts(known(replace(MM, inputs=(a, replace(b, constant=True)))))["FREEZING"]
    whole = Problem("int_mm", (dense(4, 8, dtype="int8"), dense(8, 2, dtype="int8")), MM.output)
    whole = replace(whole, output=dense(4, 2, dtype="int32"))
    assert facts(known(whole))["EXACT_INTEGERS"]


@pytest.mark.parametrize("step", ["relu", "floor"])
def test_factors_of_a_product_with_an_epilogue_are_scaled_to_its_length(step: str) -> None:
    write = Access("full", "float32", 8, (2, 1), 0)
    steps = (Step("product", (), None), Step(step, (0,), None), Step("store", (1,), 0))
    epilogue = Epilogue((4, 2), "float32", steps, (), (write,), 0)
    fused = replace(known(replace(MM, epilogue=f"{step}-1")), epilogue=dump(epilogue, [(4, 2)]))
    stated = facts(fused)
    scales = {operand["name"]: operand.get("scale") for operand in stated["OPERANDS"]}
    assert scales == {"a": None, "b": round(8**-0.5, 6)}
    assert (stated["JUMPS"], stated["TIMES_EAGER"]) == (step == "floor", 2.0)
    assert (stated["TOLERANCE"] == 1e-2) == (step == "floor")


def test_a_product_of_no_length_has_a_script() -> None:
    empty = Problem("mm", (dense(4, 0), dense(0, 2)), MM.output, epilogue="relu-1")
    write = Access("full", "float32", 8, (2, 1), 0)
    steps = (Step("product", (), None), Step("relu", (0,), None), Step("store", (1,), 0))
    epilogue = Epilogue((4, 2), "float32", steps, (), (write,), 0)
    stated = facts(replace(known(empty), epilogue=dump(epilogue, [(4, 2)])))
    assert {operand["name"]: operand.get("scale") for operand in stated["OPERANDS"]}["b"] == 1.0


def test_an_operand_has_the_storage_that_it_reaches() -> None:
    def elements(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> int:
        text = OperandText(size, stride, offset, "float32", "cpu", constant=False, opaque="")
        return text.fields("a", 1)["elements"]

    assert elements((4, 8), (8, 1)) == 32
    assert elements((4, 8), (16, 1), 3) == 3 + 48 + 8
    assert elements((4, 8), (0, 1)) == 8
    assert elements((4, 0), (8, 1), 3) == 3
    assert elements((), ()) == 1


PACKED = dense(layout="mkldnn", constant=True)
WRITTEN = dense(6, 2)


def test_a_packed_weight_has_the_size_of_what_it_multiplies() -> None:
    x = dense(6, 8)
    linear = Problem("linear_unary", (x, PACKED), WRITTEN, (("attr", "'none'"),))
    assert operands_of(linear)["packed"]["size"] == (2, 8)
    plain = Problem("packed_linear", (x, PACKED, dense(3, 8)), WRITTEN)
    assert operands_of(plain)["packed"]["size"] == (3, 8)  # as the weight beside it
    assert operands_of(plain)["packed"]["stride"] == (8, 1)
    assert operands_of(plain)["weight"]["size"] == (3, 8)


def test_where_the_output_is_unknown_a_bias_says_how_wide_a_packed_weight_is() -> None:
    arguments = (("attr", "'none'"),)
    biased = known(Problem("linear_unary", (dense(6, 8), PACKED, dense(2)), WRITTEN, arguments))
    bare = known(Problem("linear_unary", (dense(6, 8), PACKED), WRITTEN, arguments))
    ranked = {"output": {**bare.problem["output"], "size": 2}}
    stated = facts(replace(biased, problem={**biased.problem, **ranked}))
    assert stated["OPERANDS"][1]["size"] == (2, 8)
    odd = script(replace(bare, problem={**bare.problem, **ranked}), {}, "/cache")
    assert "neither an output's size nor a bias says how wide" in odd.refused


QKV = (dense(2, 4, 24, 16), dense(2, 2, 24, 16), dense(2, 2, 24, 16))
PLAIN = {"operands": "'q,k,v'", "softcap": "0.0", "left": "-1", "right": "-1", "bottom_right": "False", "scale": "0.25"}  # fmt: skip


def attention(inputs: tuple[Operand, ...] = QKV, **changed: str) -> CallText:
    texts = [
        OperandText(o.size, o.stride, 0, o.dtype, o.device, constant=False, opaque="")
        for o in inputs
    ]
    return call_of({"op": "attention", "arguments": [*(PLAIN | changed).items()]}, texts)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["attn_mask=None", "is_causal=False", "scale=0.25", "enable_gqa=True"]),
        ({"right": "0"}, ["is_causal=True"]),
        ({"right": "0", "bottom_right": "True"}, ["is_causal=True"]),  # as many queries as keys
        ({"bottom_right": "True"}, ["is_causal=False"]),
    ],
)
def test_an_attention_is_written_with_its_mask_and_its_scale(
    changed: dict[str, str], words: list[str]
) -> None:
    call = attention(QKV, **changed)
    assert [word for word in words if word not in call.body] == []
    assert (call.names, call.exact, call.gradient) == (("q", "k", "v"), call.body, False)


def test_an_attention_has_heads_of_its_own_and_a_bias() -> None:
    q, k, v = QKV
    alike = attention((q, q, q))
    assert "enable_gqa=False" in alike.body
    biased = attention((q, k, v, dense(24, 24)), operands="'q,k,v,bias'")
    assert "attn_mask=bias" in biased.body


@pytest.mark.parametrize(
    ("more", "gradient"), [("'q,k,v,lse'", True), ("'q,k,v,do'", True), ("'q,k,v,dq'", False)]
)
def test_what_reads_a_gradient_is_one(more: str, gradient: bool) -> None:
    assert attention((*QKV, QKV[0]), operands=more).gradient is gradient


SHORT = (dense(2, 4, 8, 16), *QKV[1:])


@pytest.mark.parametrize(
    ("inputs", "changed", "said"),
    [
        (QKV, {"softcap": "30.0"}, "neither a window nor a softcap"),
        (QKV, {"left": "0"}, "neither a window nor a softcap"),
        (QKV, {"right": "1"}, "neither a window nor a softcap"),
        (SHORT, {"right": "0", "bottom_right": "True"}, "aligns a causal mask with the first key"),
        (QKV, {"operands": "'q,k,x'"}, "an attention has no operands"),
        (QKV, {"operands": "'q,k,cu_q'"}, "need ends that a record does not keep"),
    ],
)
def test_an_attention_that_torch_does_not_have_is_refused(
    inputs: tuple[Operand, ...], changed: dict[str, str], said: str
) -> None:
    with pytest.raises(NotReproducible, match=said):
        attention(inputs, **changed)


def test_fewer_queries_than_keys_are_masked_from_the_first_key() -> None:
    assert "is_causal=True" in attention(SHORT, right="0").body


def called(op: str, count: int, *, output: str = "float32", **arguments: str) -> CallText:
    operand = OperandText((2, 2), (2, 1), 0, "float32", "cpu", constant=False, opaque="")
    fields = {"op": op, "arguments": [*arguments.items()], "output": {"dtype": output}}
    return call_of(fields, [operand] * count)


def test_a_product_is_written_with_the_type_of_its_result() -> None:
    assert called("mm", 2).body == "torch.mm(a, b)"
    assert called("bmm", 2, out_dtype="torch.float32").body == "torch.bmm(a, b, out_dtype=torch.float32)"  # fmt: skip
    assert called("mm", 2, out_dtype="torch.float32").exact == "torch.mm(a, b)"
    scaled = called("scaled_mm", 4, output="bfloat16")
    assert "scale_b, None, None, torch.bfloat16, False)" in scaled.body
    assert scaled.exact == "(a * scale_a) @ (b * scale_b)"
    biased = called("scaled_mm", 5, output="bfloat16", out_dtype="torch.float16", use_fast_accum="True")  # fmt: skip
    assert "scale_b, bias, None, torch.float16, True)" in biased.body
    assert biased.exact == "(a * scale_a) @ (b * scale_b) + bias"
    assert biased.names == ("a", "b", "scale_a", "scale_b", "bias")


@pytest.mark.parametrize(("op", "count"), [("mm", 1), ("mm", 3), ("scaled_mm", 3), ("addmm", 2)])
def test_a_product_of_too_few_or_too_many_operands_is_refused(op: str, count: int) -> None:
    with pytest.raises(NotReproducible, match=f"it has {count} operands, not"):
        called(op, count)


def test_an_epilogue_that_a_record_does_not_keep_is_no_call() -> None:
    fused = known(replace(MM, epilogue="relu-1"))
    assert "an earlier version wrote the record" in script(fused, {}, "/cache").refused
    unmeasured = replace(fused, candidates={})
    assert "nothing was measured" in script(unmeasured, {}, "/cache").refused


def test_a_type_that_is_no_word_is_none() -> None:
    odd = replace(MM, output=replace(MM.output, dtype="float32)"))
    assert script(known(odd), {}, "/cache").refused == "'float32)' is no dtype"


def test_sizes_that_are_unknown_are_named_with_their_class() -> None:
    stated = facts(known(replace(MM, dynamic=(SizeClass(1, 0, 5, 8, 8), SizeClass(0, 1, 5, 8, 8)))))
    assert stated["DYNAMIC"] == [(1, 0, 5, 8), (0, 1, 5, 8)]
    assert [operand["stands_for"] for operand in stated["OPERANDS"]] == ["4x5..8", "5..8x2"]
    assert [operand["size"] for operand in stated["OPERANDS"]] == [(4, 8), (8, 2)]


@pytest.mark.parametrize(("more", "step"), [("do", "do"), ("lse", None)])
def test_a_gradient_takes_its_operands_and_the_step_alone(more: str, step: str | None) -> None:
    arguments = tuple((PLAIN | {"operands": f"'q,k,v,{more}'"}).items())
    stated = facts(known(Problem("attention_backward", (*QKV, QKV[0]), QKV[0], arguments)))
    assert [operand["name"] for operand in stated["OPERANDS"]] == ["q", "k", "v"]
    assert (stated["GRADIENT"], stated["STEP"] and stated["STEP"]["name"]) == (True, step)
    forward = facts(known(Problem("attention", QKV, QKV[0], tuple(PLAIN.items()))))
    assert (forward["GRADIENT"], forward["STEP"]) == (False, None)
