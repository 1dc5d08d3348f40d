"""What Inductor's own selection measures in the user's process waits for its turn on a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

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
        assert str(selector.why_not_taken(device)).startswith("devices of type 'xpu' are left")
    (record,) = caplog.records
    assert "inductor_plugin.devices (docs/own-device.md)" in record.getMessage()
    with inductor_config.patch(max_autotune=True):
        with described(name="xpu"):
            assert selector.why_not_taken(device) is None
        assert selector.why_not_taken(torch.device("cpu")) is None


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


@pytest.mark.parametrize(
    ("settings", "keywords", "reason"),
    [
        ({}, {}, ""),
        ({"max_autotune": False}, {}, "max_autotune is off"),
        ({"max_autotune": False, "max_autotune_gemm": True}, {}, ""),
        ({"deterministic": True}, {}, "deterministic allows no timing"),
        ({}, {"best_config_future": object()}, "best_config_future is set"),
        ({}, {"is_collective": True}, "is_collective is set"),
        ({}, {"is_collective": False, "best_config_future": None}, ""),
        ({}, {"min_speedup_threshold": 1.1}, "min_speedup_threshold is set"),
        ({}, {"min_speedup_threshold": 1.0}, ""),
        ({"pipeline_max_autotune_gemm": True}, {}, ""),  # of GPUs
    ],
)
def test_inductor_decides_where_it_is_asked_for_something_else(
    settings: dict[str, Any], keywords: dict[str, Any], reason: str
) -> None:
    known = {name: value for name, value in settings.items() if hasattr(inductor_config, name)}
    with inductor_config.patch({"max_autotune": True, "max_autotune_gemm": False, **known}):
        why = selector.why_not_taken(torch.device("cpu"), keywords)
    if len(known) == len(settings):
        assert reason in (why or "")
        assert bool(reason) is (why is not None)


class SelectionSession:
    """A graph's session that submits calls to nobody."""

    def __init__(self, *, left: int = 2) -> None:
        self.submitted: list[Any] = []
        self.alone: list[Any] = []
        self._left = left

    def call(self, name: str, choices: Any, *_: Any) -> Any:
        return SimpleNamespace(op=name, problem="problem", choices=[*choices])

    def with_templates(self, _call: Any, choices: list[Any]) -> Any:
        return [*choices, choice("ours")][: self._left], {"a template": "of templates"}

    def submit(self, call: Any, choices: Any, rejected: Any) -> str:
        self.submitted.append(([each.name for each in choices], rejected))
        return f"pending {call.op}"

    def record_only_choice(self, _call: Any, choices: Any, rejected: Any) -> None:
        self.alone.append(([each.name for each in choices], rejected))


def choice(name: str, **facts: Any) -> Any:
    return SimpleNamespace(name=name, output_node=lambda: f"node of {name}", **facts)


@pytest.fixture(name="selected")
def a_selection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that selects among choices, and what it returns."""
    stock: Any = select_algorithm.AlgorithmSelectorCache
    inductors = lambda _self, _name, choices, *_: ("stock", [each.name for each in choices])  # noqa: E731
    monkeypatch.setattr(stock, "__call__", inductors)
    monkeypatch.setattr(selector, "active_config", Config)
    monkeypatch.setattr(selector, "why_not_measurable", lambda _: None)
    monkeypatch.setattr(selector, "promising", lambda choices, _: (choices, {}))
    monkeypatch.setattr(selector, "_node", lambda _session, pending, *_: pending)
    monkeypatch.setattr(selector.compat, "selected", lambda node, *_: node)
    monkeypatch.setattr(selector, "untimed", lambda choices: choices[:1])

    def selected(session: Any, *choices: Any, name: str = "mm", reproducible: bool = False) -> Any:
        monkeypatch.setattr(selector, "session_of", lambda *_: session)
        monkeypatch.setattr(selector, "is_reproducible", lambda _: reproducible)
        fixed: Any = ir.FixedLayout
        layout = fixed(torch.device("cpu"), torch.float32, [2], [1])
        ours: Any = selector.PluginSelector()
        with (
            inductor_config.patch(max_autotune=True),
            V.set_graph_handler(SimpleNamespace()),  # pyright: ignore[reportArgumentType]
        ):
            return ours(name, [*choices], [], layout)

    return selected


def test_all_that_is_left_of_a_call_is_submitted_with_what_is_not(selected: Any) -> None:
    session = SelectionSession(left=3)
    refused = choice("b", rejected={"cudnn": "of the choice"})
    assert selected(session, choice("a"), refused) == "pending mm"
    reasons = {"cudnn": "of the choice", "a template": "of templates"}
    assert session.submitted == [(["a", "b", "ours"], reasons)]
    assert session.alone == []


def test_a_single_kernel_runs_and_is_recorded(selected: Any) -> None:
    session = SelectionSession(left=1)
    assert selected(session, choice("a")) == "node of a"
    assert session.submitted == []
    assert session.alone == [(["a"], {"a template": "of templates"})]


def test_what_fails_here_is_selected_by_inductor_as_it_would_have_been(
    selected: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = None
    both = choice("a"), choice("b")
    assert selected(broken, *both) == ("stock", ["a", "b"])
    assert selected(broken, *both, reproducible=True) == ("stock", ["a"])
    assert "could not tune mm" in caplog.text
    with pytest.raises(AttributeError):  # the lowering of attention has another way out
        selected(broken, *both, name="attention")


def test_what_is_measured_by_inductor_alone_is_not_measured_where_others_repeat_it(
    selected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        selector, "why_not_measurable", lambda each: "foreign" if each.name == "b" else None
    )
    both = choice("a"), choice("b")
    assert selected(SelectionSession(), *both) == ("stock", ["a", "b"])
    assert selected(SelectionSession(), *both, reproducible=True) == ("stock", ["a"])
    assert selected(SelectionSession(), choice("a")) == "pending mm"


def test_a_prologue_is_fused_into_any_kernel_that_takes_it() -> None:
    triton: Any = select_algorithm.TritonTemplateCaller
    first, second = object.__new__(triton), object.__new__(triton)
    first.allowed_prologue_inps, second.allowed_prologue_inps = {"a"}, {"a", "b"}
    library = SimpleNamespace(allowed_prologue_inps={"c"})
    assert {*selector._prologues([first, library, second])} == {"a", "b"}
