"""What is told and started before the first call of a graph is lowered."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.inductor import warmup
from inductor_plugin.worker.devices import lookup
from tests.support.fakes.devices import described

pytestmark = pytest.mark.compat


def product() -> torch.fx.Graph:
    """Return a graph with one matrix product."""
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    a.meta["val"] = torch.ones(2, 2)
    graph.call_function(torch.ops.aten.mm.default, (a, a)).meta["val"] = torch.ones(2, 2)
    return graph


@pytest.mark.parametrize(
    "op", ["mm", "addmm", "_int_mm", "_scaled_mm", "_grouped_mm", "_weight_int4pack_mm"]
)
def test_workers_start_ahead_for_every_product(op: str) -> None:
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    a.meta["val"] = torch.ones(2, 2, device="meta")
    node = graph.call_function(getattr(torch.ops.aten, op).default, (a,))
    assert warmup._tuned_device(node) == [torch.device("meta")]
    other = graph.call_function(torch.ops.aten.relu.default, (a,))
    assert warmup._tuned_device(other) == []


def test_without_a_compiler_one_line_names_doctor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache_dir: Path
) -> None:
    config = Config(cache_dir=cache_dir, policy="cached")
    monkeypatch.setattr(warmup, "compiler_version", lambda: warmup.NO_COMPILER)
    warmup.warm_up(config, torch.fx.Graph())
    assert caplog.records == []
    for _ in range(2):
        warmup.warm_up(config, product())
    (record,) = caplog.records
    assert record.getMessage().startswith("inductor-plugin: there is no C++ compiler")
    assert "`inductor-plugin doctor`" in record.getMessage()


def test_with_a_compiler_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache_dir: Path
) -> None:
    monkeypatch.setattr(warmup, "compiler_version", lambda: "g++ 12")
    warmup.warm_up(Config(cache_dir=cache_dir, policy="cached"), product())
    assert caplog.records == []


def test_no_worker_is_started_for_a_device_that_nobody_describes_rightly(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """An exception here would end the user's compile."""
    asked: list[str] = []

    def facts(device: str) -> dict[str, str]:
        asked.append(device)
        raise ValueError("no driver")

    monkeypatch.setattr(warmup, "_tuned_device", lambda _: [torch.device("xpu:0")])
    config = Config(cache_dir=cache_dir, policy="tune")
    warmup.warm_up(config, product())
    assert asked == []
    with described(name="xpu", facts=facts):
        warmup.warm_up(config, product())
        warmup.warm_up(config, product())
        assert str(lookup.why_not_tuned("xpu:0")).startswith("device 'xpu' (registered as ")
    assert asked == ["xpu:0"]


def test_a_head_start_that_fails_is_left_to_the_first_job(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    escaped: list[object] = []
    asked = threading.Event()

    def fails(_: object) -> None:
        asked.set()
        raise OptionError("there is no such cluster")

    monkeypatch.setattr(threading, "excepthook", escaped.append)
    monkeypatch.setattr(warmup.DeviceContext, "prewarm", fails)
    warmup.warm_up(Config(cache_dir=cache_dir, policy="tune"), product())
    assert asked.wait(10.0)
    for thread in threading.enumerate():
        if thread.name.endswith("(_prewarm)"):
            thread.join(10.0)
    assert escaped == []
