"""A decision that fails leaves the library kernel, not the compile."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from tests.support.candidates.providers import offered


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def test_a_decision_that_raises_leaves_the_library_kernel(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: object) -> NoReturn:
        raise TypeError("unsupported operand type(s) for /: 'float' and 'str'")

    monkeypatch.setattr("inductor_plugin.tuning.selection.decide", raises)
    options: dict[str, Any] = {"cache_dir": str(cache_dir), "policy": "cached"}
    a, b = torch.randn(64, 32), torch.randn(32, 48)
    with offered("good"):
        compiled = torch.compile(torch.mm, backend="inductor_plugin", options=options)
        assert torch.allclose(compiled(a, b), a @ b, atol=1e-4)
    messages = [r.message for r in caplog.records if "nothing could be decided" in r.message]
    assert len(messages) == 1
    assert messages[0].startswith("inductor-plugin: ")
    assert "mm" in messages[0]
