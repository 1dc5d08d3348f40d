"""A decision that fails leaves the library kernel, not the compile, and a race that fails to start leaves the others theirs."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from inductor_plugin.inductor.graph.unstarted import Unstarted
from tests.support.candidates.providers import offered
from tests.support.compile import fresh

__all__ = ["fresh"]  # the fixture


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


def test_an_error_at_one_race_keeps_none_behind_it_from_its_own() -> None:
    unstarted, started = Unstarted(), list[str]()

    def starts(name: str) -> Callable[[], None]:
        def start() -> None:
            if name == "second":
                raise OSError("the disk is full")
            started.append(name)

        return start

    def settle(_ticket: object) -> None: ...

    for name in ("first", "second", "third"):
        selection = SimpleNamespace(settle=settle)
        ticket: Any = SimpleNamespace(planned=False, lookup=None, selection=selection)
        unstarted.add(ticket, starts(name))
    with pytest.raises(OSError, match="the disk is full"):
        unstarted.start_all()
    assert started == ["first"]
    unstarted.start_all()
    assert started == ["first", "third"]
