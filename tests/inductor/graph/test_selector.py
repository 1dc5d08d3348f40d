"""What Inductor's own selection measures in the user's process waits for its turn on a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir, select_algorithm
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.errors import DeviceError
from inductor_plugin.inductor.graph import selector
from inductor_plugin.worker.turn import Turn
from tests.support.fakes.devices import described
from tests.support.warned import forget

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


def test_a_device_that_nobody_describes_is_inductors_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget()
    device = torch.device("xpu:0")
    for _ in range(2):
        assert selector.reason_to_step_aside(device).startswith("devices of type 'xpu' are left")
    (record,) = caplog.records
    assert "inductor_plugin.devices (docs/own-device.md)" in record.getMessage()
    with inductor_config.patch(max_autotune=True):
        with described(name="xpu"):
            assert selector.reason_to_step_aside(device) == ""
        assert selector.reason_to_step_aside(torch.device("cpu")) == ""


def test_a_device_that_is_described_wrongly_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    asked: list[str] = []

    def opened(graph: object, config: object) -> Any:
        asked.append("session")
        raise DeviceError("device 'xpu': facts('xpu:0') raised ValueError: no driver")

    stock: Any = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(stock, "__call__", lambda *arguments: "stock")
    monkeypatch.setattr(selector, "active_config", Config)
    monkeypatch.setattr(selector, "session_of", opened)
    fixed: Any = ir.FixedLayout
    layout = fixed(torch.device("xpu:0"), torch.float32, [2], [1])
    ours: Any = selector.PluginSelector()
    with described(name="xpu"), inductor_config.patch(max_autotune=True):
        with V.set_graph_handler(SimpleNamespace()):  # pyright: ignore[reportArgumentType]
            assert [ours("mm", [], [], layout) for _ in range(2)] == ["stock", "stock"]
        assert asked == ["session"]  # the second call is left to Inductor at once
    (record,) = (each for each in caplog.records if each.name.startswith("inductor_plugin"))
    assert "facts('xpu:0') raised ValueError: no driver; mend" in record.getMessage()


@pytest.mark.parametrize(("device", "finished"), [("cuda:0", True), ("npu", False)])
def test_inductors_scheduler_finishes_the_selections_that_it_can_fuse(
    device: str, *, finished: bool
) -> None:
    layout: Any = SimpleNamespace(device=SimpleNamespace(type=device.partition(":")[0]))
    assert selector._is_finished_by_scheduler(["mm"], layout) is finished  # pyright: ignore[reportPrivateUsage]
