from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import inductor_plugin
from inductor_plugin.cli.again.child import compared, in_turns, register
from inductor_plugin.device import BoundCall


def test_calls_are_timed_in_turns() -> None:
    turns: list[str] = []
    drift: Iterator[int] = count(1)

    def kernel(name: str) -> BoundCall:
        return lambda: turns.append(name)

    calls = {name: kernel(name) for name in ("winner", "library kernel", "rival")}

    def timed(call: BoundCall, calls_a_sample: int) -> float:
        del calls_a_sample
        call()
        # The machine gets slower all the time: in turns, the ratio is not moved by that.
        return next(drift) ** 0.1 * (2.0 if call is calls["library kernel"] else 1.0)

    samples, calls_a_sample = in_turns(calls, 0.0, timed)
    report = compared(samples["winner"], samples["library kernel"])
    assert calls_a_sample == 1
    assert report["rounds"] == 10
    assert report["low"] <= 2.0 <= report["high"]
    assert report["speedup"] == pytest.approx(2.0, rel=0.05)
    assert statistics.median(samples["rival"]) == pytest.approx(report["winner_ms"], rel=0.1)
    firsts = turns[-30::3]
    assert firsts.count("winner") == firsts.count("rival") == 5


def test_a_template_is_found_in_the_folder_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_reader.py").write_text("class Kernel:\n    pass\n")
    registered: list[object] = []
    monkeypatch.setattr(inductor_plugin, "register", registered.append)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    register(["beside_the_reader:Kernel"])
    assert [type(each).__name__ for each in registered] == ["Kernel"]
