from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.description import described


def operand(*size: int, dtype: str = "float32", **fields: Any) -> Operand:
    stride, inner = [0] * len(size), 1
    for dim in reversed(range(len(size))):
        stride[dim], inner = inner, inner * size[dim]
    return replace(Operand(size, tuple(stride), dtype, "cpu"), **fields)


def attention(dtype: str = "float32", **changed: str) -> Problem:
    arguments = {
        "operands": "'q,k,v'",
        "left": "-1",
        "right": "-1",
        "bottom_right": "False",
        "softcap": "0.0",
        "scale": str(32**-0.5),
    }
    tensor = operand(1, 2, 64, 32, dtype=dtype)
    return Problem(
        "attention", (tensor, tensor, tensor), tensor, tuple({**arguments, **changed}.items())
    )


SHAPE = "attention(1x2x64x32, 1x2x64x32, 1x2x64x32)"
PROBLEMS = [
    (attention(), f"{SHAPE} fp32"),
    (attention("bfloat16"), f"{SHAPE} bf16"),
    (attention(right="0"), f"{SHAPE} fp32 causal"),
    (attention(right="0", bottom_right="True"), f"{SHAPE} fp32 causal bottom-right"),
    (attention(left="8", right="0"), f"{SHAPE} fp32 window=8,0"),
    (attention(left="0", right="0"), f"{SHAPE} fp32 window=0,0"),
    (attention(right="5"), f"{SHAPE} fp32 window=-1,5"),
    (attention(softcap="30.0", scale="0.5"), f"{SHAPE} fp32 softcap=30.0 scale=0.5"),
    (
        Problem("mm", (operand(4, 8), operand(8, 16)), operand(4, 16)),
        "mm(4x8, 8x16) fp32",
    ),
    (
        Problem("mm", (operand(4, 8, offset=16), operand(8, 16, stride=(1, 8))), operand(4, 16)),
        "mm(4x8+16, 8x16.T) fp32",
    ),
    (
        Problem("mm", (operand(4, 8, stride=(99, 1)), operand(8, 16)), operand(4, 16)),
        "mm(4x8/99,1, 8x16) fp32",
    ),
    (
        Problem(
            "addmm",
            (operand(16), operand(4, 8, dtype="float16"), operand(8, 16, dtype="float16")),
            operand(4, 16, dtype="float16"),
            (("alpha", "0.5"), ("beta", "1")),
            epilogue="add.relu-0123456789ab",
        ),
        "addmm(16, 4x8, 8x16) fp32, fp16 -> fp16 alpha=0.5 + add.relu",
    ),
    (
        Problem(
            "linear_unary",
            (operand(3000, 64), operand(layout="mkldnn"), operand(32)),
            operand(3000, 32),
            (("attr", "'relu'"), ("batch_size", "3000"), ("scalars", "[]"), ("algorithm", "''")),
            dynamic=(SizeClass(0, 0, 2049, 4096, 3000),),
        ),
        "linear_unary(2049..4096x64, packed, 32) fp32 relu",
    ),
    (
        Problem(
            "bmm",
            (
                replace(operand(8, 20, 64, stride=(1280, 64, 1)), symbolic=(0,)),
                replace(operand(8, 64, 20, stride=(1280, 1, 64)), symbolic=(0,)),
            ),
            operand(8, 20, 20),
            dynamic=(SizeClass(0, 1, 17, 32, 20), SizeClass(1, 2, 17, 32, 20)),
        ),
        "bmm(8x17..32x64, 8x64x17..32.T) fp32",
    ),
    (
        Problem(
            "mm",
            (operand(20, 20, stride=(4096, 1)), operand(20, 16)),
            operand(20, 16),
            dynamic=(SizeClass(0, 0, 17, 32, 20), SizeClass(0, 1, 17, 32, 20)),
        ),
        "mm(17..32x17..32/4096,1, 20x16) fp32",
    ),
]


@pytest.mark.parametrize(("problem", "text"), PROBLEMS)
def test_what_tells_problems_apart_is_in_their_text(problem: Problem, text: str) -> None:
    assert described(problem.fields(), "never") == text


def test_different_problems_have_different_texts() -> None:
    assert len({described(problem.fields(), "") for problem, _ in PROBLEMS}) == len(PROBLEMS)


@pytest.mark.parametrize(
    "fields", [{}, {"inputs": []}, {"inputs": 1}, {"op": "mm", "inputs": ["x"], "output": {}}]
)
def test_fields_that_cannot_be_read_leave_the_record_s_own_text(fields: dict[str, Any]) -> None:
    assert described(fields, "mm(1x2, 2x3)") == "mm(1x2, 2x3)"


def test_a_depth_beyond_floating_point_leaves_the_record_s_own_text() -> None:
    fields = attention().fields()
    fields["inputs"][0]["size"][-1] = 10**400
    assert described(fields, SHAPE) == SHAPE


def test_where_a_mask_ends_counts_only_if_there_is_one() -> None:
    without = described(attention(bottom_right="True").fields(), "")
    assert without == described(attention().fields(), "")


@pytest.mark.parametrize(
    ("stride", "text"),
    [(["rank0", "1"], "4x8"), (["1", "rank0"], "4x8.T"), (["0", "1"], "4x8/0,1")],
)
def test_strides_of_a_version_that_kept_their_order_alone_are_told_apart(
    stride: list[str], text: str
) -> None:
    problem = Problem("mm", (operand(4, 8), operand(8, 16)), operand(4, 16))
    fields: Any = json.loads(json.dumps(problem.fields()))
    fields["inputs"][0]["stride"] = stride
    assert described(fields, "never") == f"mm({text}, 8x16) fp32"
