from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import run_page
from inductor_plugin.tuning.report.page import run


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
