"""Inputs with which a compiled graph is run."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_plugin.inductor.guard.operands import real_inputs


def test_inputs_are_as_those_of_the_compile() -> None:
    with FakeTensorMode():
        fakes = [
            torch.empty(3, 5).t(),
            torch.empty(4, 1).expand(4, 7),
            torch.empty(2, 2, dtype=torch.bfloat16),
            torch.empty(2, dtype=torch.float8_e4m3fn),
            torch.empty(3, dtype=torch.bool),
        ]
    inputs = real_inputs([*fakes, 5, 2.5, True])
    assert inputs is not None
    for fake, real in zip(fakes, inputs, strict=False):
        assert (real.size(), real.stride(), real.dtype) == (fake.size(), fake.stride(), fake.dtype)
        assert type(real) is torch.Tensor
    assert inputs[5:] == [5, 2.5, True]
    assert inputs[0].std() > 0


def test_other_inputs_are_not_made_up() -> None:
    assert real_inputs([torch.ones(2), object()]) is None
    assert real_inputs([torch.ones(2, dtype=torch.int64)]) is None  # an index, or a divisor
