"""The rounds of the overhead benchmark, with processes that are not started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.startup import overhead


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return which processes would have been started, and where timings were changed."""
    order: list[str] = []

    def run(variant: str, state: str, *_: object) -> dict[str, Any]:
        order.append(f"{variant} {state}")
        seconds = 1.02 if variant == "plugin" else 1.0
        return {"compile_s": seconds, "cpu_s": seconds, "profile": f"profile of {state}"}

    def make_library_win(_: Path) -> None:
        order.append("library wins")

    monkeypatch.setattr(overhead, "run", run)
    monkeypatch.setattr(overhead, "make_library_win", make_library_win)
    return order


def arguments(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", *words])


def test_stored_graphs_alone_need_no_timings(
    order: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "overhead.json"
    arguments(monkeypatch, "--states", "hit", "--rounds", "2", "--out", str(out))
    assert overhead.main() == 0
    assert order == ["stock hit", "plugin hit"] * 2 + ["plugin hit", "stock hit"]
    assert json.loads(out.read_text())["summary"]["hit_ratio"] == 1.02


def test_timings_are_changed_between_filling_the_caches_and_the_rounds(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments(monkeypatch, "--states", "lower", "--rounds", "1")
    assert overhead.main() == 0
    assert order == ["stock lower", "plugin lower", "library wins", "stock lower", "plugin lower"]


def test_each_state_has_a_profile(
    order: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments(monkeypatch, "--states", "hit", "--profile")
    assert overhead.main() == 0
    assert capsys.readouterr().out == "hit:\nprofile of hit\n"
    assert order == ["stock hit", "plugin hit", "plugin hit"]
