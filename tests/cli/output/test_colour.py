"""What verbs print has no colour, whatever it is printed on: only the progress bar has (`tests/tuning/report/test_progress.py`)."""

from __future__ import annotations

import sys

import pytest

from inductor_plugin.cache import Store
from tests.support.cli.command import key, run


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("verb", ["stats", "ls", "show", "explain", "verify"])
def test_a_verb_writes_no_escape_sequence(
    verb: str,
    terminal: bool,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    run(store, verb, *([key()] if verb in ("show", "explain") else []))
    said = capsys.readouterr()
    assert said.out
    assert "\x1b" not in said.out + said.err
