from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import run_page
from inductor_plugin.tuning.report.page import run


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"is_inference": True, "is_backward": False}, "inference"),
        ({"is_inference": False, "is_backward": False}, "forward"),
        ({"is_inference": False, "is_backward": True}, "backward"),
    ],
)
def test_a_graph_is_named_by_what_it_is_for(
    fields: dict[str, bool], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str] = []

    def add(kind: str, *_: object) -> None:
        added.append(kind)

    def page(*_: object) -> SimpleNamespace:
        return SimpleNamespace(add=add)

    monkeypatch.setattr(run, "run_page", page)
    graph: Any = SimpleNamespace(**fields)
    run_page.add(Config(report=str(tmp_path / "out.html")), graph, [], [])
    assert added == [kind]


def test_a_graph_that_the_report_cannot_take_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(*_: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(run, "run_page", raising)
    config = Config(report=str(tmp_path / "out.html"))
    with caplog.at_level(logging.WARNING):
        run_page.add(config, None, [], [])
        run_page.add(config, None, [], [])
    (warning,) = caplog.records
    assert "out.html: RecursionError" in warning.message
