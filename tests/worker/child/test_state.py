"""Outputs that were found right are compared once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem.attention import Attention, Mask
from inductor_plugin.worker.child.attention import AttentionVerifier
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.child.state import Accepted, ProblemState

RIGHT = {"": torch.tensor([1.0, 2.0]), "scratch": torch.tensor([3.0])}


def test_a_kernel_that_writes_over_its_output_does_not_change_what_was_accepted() -> None:
    outputs = {name: tensor.clone() for name, tensor in RIGHT.items()}
    accepted = Accepted.of(outputs, CheckResult(0.0))
    outputs[""][0] = 7.0
    assert accepted.is_same(RIGHT)
    assert not accepted.is_same(outputs)


@pytest.mark.parametrize(
    "other",
    [
        {"": RIGHT[""]},
        {**RIGHT, "more": RIGHT[""]},
        {**RIGHT, "": RIGHT[""].double()},
        {**RIGHT, "": RIGHT[""].view(1, 2)},
        {**RIGHT, "scratch": torch.tensor([3.5])},
    ],
    ids=["one missing", "one more", "another type", "another size", "another number"],
)
def test_other_outputs_are_compared(other: dict[str, torch.Tensor]) -> None:
    assert not Accepted.of(RIGHT, CheckResult(0.0)).is_same(other)


def test_outputs_with_nan_are_always_compared() -> None:
    outputs = {"": torch.tensor([float("nan")])}
    assert not Accepted.of(outputs, CheckResult(0.0)).is_same(outputs)


def test_delta_may_be_computed_anew_and_nothing_else() -> None:
    names = ("do", "q", "k", "v", "out", "lse", "delta", "dq", "dv")
    rows: dict[str, Any] = {"size": (1, 2, 8), "stride": (16, 8, 1), "dtype": "float32"}
    full: dict[str, Any] = {"size": (1, 2, 8, 16), "stride": (256, 128, 16, 1), "dtype": "bfloat16"}
    specs = [
        TensorSpec(**(rows if name in ("lse", "delta") else full), device="cpu", seed=seed)
        for seed, name in enumerate(names)
    ]
    facts = Attention(True, 1, 2, 2, 8, 8, 16, 16, 0.25, Mask(), 0.0, names, "bfloat16")
    state = ProblemState(attention=AttentionVerifier(facts, specs, build))
    for spec in specs:
        state.operand(spec)
    state.look(specs)
    state.operand(specs[names.index("delta")]).add_(1.0)
    assert state.first_changed(specs) is None
    state.operand(specs[names.index("lse")]).add_(1.0)
    assert state.first_changed(specs) == names.index("lse")
