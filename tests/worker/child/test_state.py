"""Outputs that were found right are compared once."""

from __future__ import annotations

import pytest
import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.worker.child.state import Accepted

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
