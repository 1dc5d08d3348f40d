"""What Inductor's own selection measures in the user's process waits for its turn on a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._inductor import ir, select_algorithm

from inductor_plugin.inductor.graph import selector
from inductor_plugin.worker.turn import Turn

pytestmark = pytest.mark.compat


@pytest.mark.parametrize(
    ("device", "scope", "turns"),
    [("cuda:1", True, ["uuid of cuda:1"]), ("cuda:1", False, []), ("cpu", True, [])],
)
@pytest.mark.parametrize("where", ["benchmark_in_current_process", "benchmark_in_sub_process"])
def test_inductor_s_own_selection_takes_a_turn_on_a_gpu_in_the_plugin_s_scope(
    monkeypatch: pytest.MonkeyPatch, where: str, device: str, turns: list[str], *, scope: bool
) -> None:
    held: list[str] = []
    during: list[list[str]] = []

    @contextmanager
    def turn(uuid: str) -> Generator[Turn]:
        held.append(uuid)
        yield Turn()
        held.pop()

    def measured(cls: Any, choices: Any, **_: Any) -> dict[str, float]:
        during.append(list(held))
        return dict.fromkeys(choices, 1.0)

    stock: Any = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(stock, where, classmethod(measured))
    monkeypatch.setattr(selector, "turn", turn)
    monkeypatch.setattr(selector, "uuid_of", lambda name: f"uuid of {name}")
    monkeypatch.setattr(selector, "active_config", lambda: object() if scope else None)
    fixed: Any = ir.FixedLayout  # its sizes are sympy's, as a rule
    layout = fixed(torch.device(device), torch.float32, [2], [1])
    ours: Any = selector.PluginSelector
    assert getattr(ours, where)(["mm"], input_nodes=[], layout=layout) == {"mm": 1.0}
    assert during == [turns]
    assert not held
