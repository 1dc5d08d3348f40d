"""Where a program of AOTInductor has no Python, `fmha` becomes C++ on a CPU, and is warned of on a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.attention.operator import FMHA
from inductor_plugin.config import Config
from inductor_plugin.inductor import packaged
from inductor_plugin.inductor.attention import blocks, lowering, node_tools
from tests.support.warned import forget

SDPA: Any = torch.ops.aten._scaled_dot_product_flash_attention.default


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate a program; calls return who makes them."""
    forget()
    monkeypatch.setattr(packaged, "wanted", lambda: True)
    monkeypatch.setattr(node_tools, "fallback", lambda *_: "operator")
    monkeypatch.setattr(blocks, "fmha", lambda *_: "blocks")


def called(op: Any, device: str) -> Any:
    node = SimpleNamespace(get_device=lambda: torch.device(device))
    return node_tools.called(op, [node], {})


def test_on_a_cpu_it_is_part_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    assert called(FMHA, "cpu") == "blocks"
    assert called(SDPA, "cpu") == "operator"
    assert "inductor-plugin" not in caplog.text


def test_on_a_gpu_it_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert called(FMHA, "cuda") == "operator"
    assert "a program without Python cannot run it" in caplog.text
    caplog.clear()
    assert called(SDPA, "cuda") == "operator"
    assert "a program without Python" not in caplog.text


def test_elsewhere_it_is_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "wanted", lambda: False)
    assert called(FMHA, "cpu") == "operator"


def test_a_call_that_is_not_tuned_is_part_of_the_program_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without max_autotune, for one: Inductor would call the operator, which is Python."""
    calls: list[Any] = []

    def fmha(op: Any, args: Any, kwargs: Any) -> str:
        calls.append((op, args, kwargs))
        return "blocks"

    monkeypatch.setattr(blocks, "fmha", fmha)
    monkeypatch.setattr(lowering, "active_config", lambda: Config.load({}, {}))
    monkeypatch.setattr(lowering, "_tuned_or_none", lambda *_: None)
    untyped: Any = lowering
    here, there = (
        SimpleNamespace(get_device=lambda kind=kind: torch.device(kind)) for kind in ("cpu", "cuda")
    )
    assert untyped._lowering(FMHA)(here, here, here, return_lse=True) == "blocks"
    assert untyped._lowering(FMHA)(there, there, there) is None  # Inductor's call
    assert untyped._lowering(SDPA)(here, here, here) is None
    assert calls == [(FMHA, (here, here, here), {"return_lse": True})]
