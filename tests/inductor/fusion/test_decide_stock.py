"""What is left to Inductor, which then measures or decides itself."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.scheduler import FusionResult, Scheduler

import inductor_plugin
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.inductor.fusion import decide
from inductor_plugin.worker.jobs import BenchCandidate
from inductor_plugin.worker.turn import Turn
from tests.support.fusion_lab import FUSED, A, B, C, a_lab, activated, fusions, launches, parts
from tests.support.lowering import Arg

__all__ = ["a_lab"]  # the fixture
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


def test_what_stands_before_a_product_is_inductors_to_measure(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def benchmark(*_: Any, **__: Any) -> tuple[float, str]:
        asked.append("benchmarked")
        return 0.001, ""

    def cast(a: Any, b: Any) -> Any:
        return (a.to(torch.bfloat16) @ b,)

    monkeypatch.setattr(Scheduler, "benchmark_fused_nodes", benchmark)
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: None)
    x = Arg((1024, 512), torch.float8_e4m3fn)
    with lab() as opened, inductor_config.patch(prologue_fusion=True):
        opened.lower(cast, x, B)
    assert asked
    assert fusions(opened) == []
    asked.clear()
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: "prologue: as the test says")
    with lab() as opened, inductor_config.patch(prologue_fusion=True):
        opened.lower(cast, x, B)
    assert asked == []


def test_what_inductor_measures_itself_waits_for_the_worker(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that measure on one GPU at once measure each other."""
    meanwhile: list[int] = []

    def benchmark(*_: Any, **__: Any) -> tuple[float, str]:
        meanwhile.append(sum(not task.done.is_set() for task in opened.tasks))
        return 0.001, ""

    def slowly(candidate: BenchCandidate) -> float:
        time.sleep(0.2 if parts(candidate) else 0.0)
        return FUSED(candidate)

    def both(a: Any, b: Any, x: Any, y: Any) -> Any:
        return torch.relu(a @ b), x.to(torch.bfloat16) @ y

    for name in ("benchmark_fused_nodes", "benchmark_codegened_module"):
        monkeypatch.setattr(Scheduler, name, benchmark)
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: None)
    x = Arg((512, 1024), torch.float8_e4m3fn), Arg((1024, 2048))
    with lab(slowly) as opened, inductor_config.patch(prologue_fusion=True):
        opened.lower(both, A, B, *x)
    assert fusions(opened)
    assert meanwhile
    assert set(meanwhile) == {0}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_what_inductor_measures_itself_decides_only_in_a_turn_of_its_own(
    monkeypatch: pytest.MonkeyPatch, when: str, *, alone: bool
) -> None:
    held: list[str] = []
    measured_in: list[int] = []

    @contextmanager
    def turn(uuid: str) -> Generator[Turn]:
        held.append(uuid)
        yield Turn(alone)
        held.pop()

    def measure() -> bool:
        measured_in.append(len(held))
        return True

    def stock() -> Any:
        if when == "later":
            return FusionResult.from_callable(measure)
        return FusionResult.fuse(should_fuse=measure())

    monkeypatch.setattr(decide, "turn", turn)
    monkeypatch.setattr(decide, "uuid_of", lambda name: f"uuid of {name}")
    monkeypatch.setattr(decide, "_not_fused", lambda *_: FusionResult.fuse(should_fuse=False))
    waits: list[None] = []
    session = SimpleNamespace(wait_all=lambda: waits.append(None))
    fusion: Any = SimpleNamespace(
        device=torch.device("cuda:0"), state=SimpleNamespace(session=session)
    )
    result = decide._measured_here(fusion, stock)
    later = result.callable_fn
    assert (later() if later is not None else result.should_fuse) is alone
    assert measured_in == [1]
    assert not held
    assert waits


def test_where_the_plugin_fails_inductor_decides(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("as the test says")

    asked: list[object] = []

    def noting(scheduler: Any, first: Any, second: Any) -> Any:
        asked.append(second)
        return FusionResult.fuse(should_fuse=False)

    monkeypatch.setattr(decide, "guard", broken)
    decide.uninstall()
    monkeypatch.setattr(Scheduler, "speedup_by_fusion", noting)
    try:
        with lab() as opened:
            code = opened.lower(activated, A, B, C)
    finally:
        decide.uninstall()
    assert asked
    assert "inductor-plugin: could not price a fusion; Inductor decides it" in caplog.text
    assert "as the test says" in caplog.text
    assert launches(code)[0] == "extern_kernels.mm"


def test_disabling_puts_inductors_own_back(lab: Callable[..., Any]) -> None:
    inductor_plugin.disable()
    own = Scheduler.speedup_by_fusion
    with lab() as opened:
        opened.lower(activated, A, B, C)
    assert Scheduler.speedup_by_fusion is not own
    inductor_plugin.enable()
    inductor_plugin.disable()
    assert Scheduler.speedup_by_fusion is own
