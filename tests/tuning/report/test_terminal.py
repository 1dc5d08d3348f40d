"""What was tuned is shown where somebody looks, or where it is asked for."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from inductor_plugin.config import Config
from inductor_plugin.tuning.report.terminal import show


@pytest.mark.parametrize(
    ("table", "measured", "terminal", "shown"),
    [
        ("auto", True, True, True),
        ("auto", False, True, False),
        ("auto", True, False, False),
        ("on", False, False, True),
        ("off", True, True, False),
    ],
)
def test_a_table_is_shown_by_the_option(
    monkeypatch: pytest.MonkeyPatch, table: str, measured: bool, terminal: bool, shown: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)

    def texts() -> Iterator[str]:
        assert shown, "it costs time"
        yield from ("first", "second")

    show(texts(), Config.load({"table": table}, environ={}), measured=measured)
    assert screen.getvalue() == ("first\nsecond\n" if shown else "")
