"""The GPU benchmark of attention: what is counted, which numbers are right, what each arm computes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.attention import __main__, arm
from benchmarks.attention.shapes import SHAPES, shape_of
from benchmarks.harness.attention import FULL, LAST_CAUSAL, Shape, ends_of, error_of, operands
from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference

SMALL = Shape("small", 2, 4, 2, 40, 40, 16)
ROUNDED = {False: 1e-4, True: 1e-2}
"""Largest error on a CPU: of float32, and of what is read in 8 bits and written in bfloat16."""


def test_names_are_unique_and_every_kind_is_there() -> None:
    names = [shape.name for shape in SHAPES]
    assert len(names) == len(set(names))
    kinds = {name.split()[0] for name in names}
    assert {"prefill", "long", "window", "cross", "decode", "varlen"} <= kinds
    assert {shape.dim for shape in SHAPES} == {64, 128, 256}
    assert len(__main__.todo()) == sum(1 + shape.backward for shape in SHAPES)


def test_an_unknown_attention_lists_the_known() -> None:
    with pytest.raises(LookupError, match="known are prefill"):
        shape_of("nothing")


@pytest.mark.parametrize(
    ("shape", "pairs"),
    [
        (replace(SMALL, mask=FULL), 2 * 40 * 40),
        (SMALL, 2 * 40 * 40 // 2),
        (replace(SMALL, mask=Mask(9, 0)), 2 * 40 * 10),
        (replace(SMALL, mask=Mask(99, 0)), 2 * 40 * 40 // 2),
        (replace(SMALL, lengths=(10, 20), mask=FULL), 500),
    ],
)
def test_scores_that_are_counted(shape: Shape, pairs: int) -> None:
    assert shape.scores() == pairs * shape.heads
    assert shape.flops(backward=False) == 4 * 16 * pairs * 4
    assert shape.flops(backward=True) == 10 * 16 * pairs * 4


@pytest.mark.parametrize("lengths", [(), (33, 40)])
def test_right_numbers_are_right_and_a_wrong_head_is_not(lengths: tuple[int, ...]) -> None:
    shape = replace(SMALL, lengths=lengths)
    q, k, v, do = operands(shape, "cpu")
    ends: dict[str, Any] = {}
    if lengths:
        ends = dict.fromkeys(("cu_q", "cu_k"), ends_of(shape, "cpu"))
    out, _ = reference.forward(q, k, v, mask=shape.mask, **ends)
    grads = reference.backward(do, q, k, v, mask=shape.mask, **ends)
    gradients = [grads.dq, grads.dk, grads.dv]
    arguments = (q, k, v, do)
    assert error_of(shape, arguments, out, gradients) < 1e-5
    for wrong in (0, 1, 2):
        damaged = [gradient.clone() for gradient in gradients]
        damaged[wrong].select(1, -1).mul_(1.2)
        assert error_of(shape, arguments, out, damaged) > shape.accepted
    broken = out.clone()
    broken.view(-1)[7] = float("nan")
    assert error_of(shape, arguments, broken) == float("inf")


PLAIN = [shape for shape in SHAPES if shape.plain or shape.queries == 1]


@pytest.mark.parametrize("shape", PLAIN[::3], ids=lambda shape_: shape_.name)
def test_forced_operators_compute_what_is_named(shape: Shape) -> None:
    small = replace(arm.dried(shape), dim=16)
    tensors = operands(small, "cpu")
    out = arm.attention("flash", small, "cpu")(*tensors[:3])
    assert error_of(small, tensors, out) < ROUNDED[shape.narrow]


# Called without torch.compile it says that it is slow, which does not matter here.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_window_by_flex_attention_is_the_same_window() -> None:
    small = replace(SMALL, queries=128, keys=128, mask=Mask(20, 0), dim=32)
    tensors = operands(small, "cpu")
    out = arm.attention("stock", small, "cpu")(*tensors[:3])
    assert error_of(small, tensors, out) < 1e-4


def test_an_arm_that_cannot_say_it_says_so() -> None:
    with pytest.raises(NotImplementedError, match="cudnn cannot say it"):
        arm.attention("cudnn", replace(SMALL, mask=Mask(3, 0)), "cpu")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape_: shape_.name)
def test_the_plugin_computes_what_is_named(shape: Shape) -> None:
    small = replace(arm.dried(shape), dim=16)
    if small.mask.left > 0:
        small = replace(small, mask=Mask(10, 0))
    tensors = operands(small, "cpu")
    out = arm.attention("ours", small, "cpu")(*tensors[:3])
    assert error_of(small, tensors, out) < ROUNDED[shape.narrow]


def test_gains_leave_out_wrong_arms(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "product": "one forward",
        "flops": 2e9,
        "accepted": 0.05,
        "arms": {
            "flash": {"median_ms": 2.0, "error": 0.001},
            "efficient": {"failed": "no GQA"},
            "cudnn": {"median_ms": 0.1, "error": 0.4},
            "stock": {"median_ms": 3.0, "error": 0.001},
            "ours": {"median_ms": 1.0, "error": 0.001},
        },
    }
    assert __main__.gain(row, __main__.LIBRARIES) == 2.0
    assert __main__.gain(row, ("stock",)) == 3.0
    assert __main__.gain(row, ("efficient",)) is None
    __main__.show([row])
    shown = capsys.readouterr().out
    assert "one forward: efficient: no GQA" in shown
    assert "one forward: cudnn: wrong by 0.4" in shown


def test_decoding_sees_the_last_key() -> None:
    decode = next(shape for shape in SHAPES if shape.name.startswith("decode"))
    assert decode.mask == LAST_CAUSAL
    assert not decode.backward
