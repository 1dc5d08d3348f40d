"""The facts that all candidates of a call share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.facts import operands
from inductor_plugin.problem import Operand, Problem


def test_a_frozen_bias_is_random_and_a_frozen_weight_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The biases of many models are zero: a kernel that leaves one out must be seen."""
    values = {"c": torch.zeros(48), "b": torch.ones(32, 48)}

    def frozen(node: Any) -> torch.Tensor | None:
        return values.get(node.get_name())

    def named(name: str) -> Any:
        return SimpleNamespace(get_name=lambda: name)

    monkeypatch.setattr(operands, "constant", frozen)
    nodes = [named(name) for name in "cab"]
    unused: Any = None
    call = AutotuneCall("addmm", nodes, unused, {}, (), 1.0, 1.0, unused, unused)
    c = Operand((64, 48), (0, 1), "float32", "cpu", constant=True)
    a = Operand((64, 32), (32, 1), "float32", "cpu")
    b = Operand((32, 48), (48, 1), "float32", "cpu", constant=True)
    d = Operand((64, 48), (48, 1), "float32", "cpu")
    vars(call)["problem"] = Problem("addmm", (c, a, b), d)  # as after its first use
    assert [call.operands.constant(node) is None for node in nodes] == [True, True, False]
