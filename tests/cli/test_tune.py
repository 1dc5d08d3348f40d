"""What `tune` prints, and what it refuses before it compiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.aot import tune as tune_module
from inductor_plugin.aot.tune import TunedProblem, TuneReport
from inductor_plugin.cli import main
from inductor_plugin.tuning.counters import Stats
from tests.support.cli.schemas import follow

FASTER = TunedProblem("a" * 64, "mm(4x8, 8x2)", "cpp-1", "mm-2", 1.5, known=False, provisional=True)
STAYS = TunedProblem("b" * 64, "mm(1x8, 8x2)", "mm-2", "mm-2", 1.0, True, False, 2.21)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep what is to be tuned, instead of tuning it."""
    kept: list[Any] = []

    def tune(request: Any, say: Any) -> TuneReport:
        kept.append(request)
        say("inputs 1 of 1: 2 problems so far")
        lost = 3 if request.model == "m:lost" else 0
        problems = (FASTER, STAYS) if request.model == "m:f" else ()
        return TuneReport("m:f", "cpu", 1, True, 3.0, problems, Stats(benchmarked=2), lost)

    monkeypatch.setattr(tune_module, "tune", tune)
    return kept


def test_what_was_gained_is_a_table(
    requests: list[Any], cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = tmp_path / "pins.json"
    command = ["tune", "m:f", "--training", "--dynamic", "--pins", str(pins)]
    assert main([*command, "--cache-dir", str(cache_dir)]) == 0
    (request,) = requests
    assert (request.training, request.dynamic, request.pin_file) == (True, True, pins)
    assert request.options["cache_dir"] == str(cache_dir)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"new cache at {cache_dir}", "inputs 1 of 1: 2 problems so far"]
    assert lines[2].split() == ["KEY", "GAIN", "RUNS", "PROBLEM"]
    assert lines[3].split()[:3] == ["a" * 12, "1.50x", "cpp-1"]
    assert lines[3].endswith("mm(4x8, 8x2) (provisional)")
    assert lines[4].split()[:3] == ["b" * 12, "1.00x", "mm-2"]
    assert lines[5].startswith("2 problems, 1 of them known; 1 run a kernel that is faster")
    assert "tune again on a quiet machine, or with a larger budget" in lines[6]
    assert "TORCHINDUCTOR_FREEZING=1" in lines[7]
    assert lines[-1].endswith(f"inductor-plugin check {pins}")


def test_nothing_to_tune_is_said(
    requests: list[Any], cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "m:empty", "--cache-dir", str(cache_dir)]) == 0
    assert len(requests) == 1
    assert "nothing was tuned" in capsys.readouterr().out


def test_results_that_are_lost_are_said_after_the_report(
    requests: list[Any], cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "m:lost", "--cache-dir", str(cache_dir)]) == 2
    said = capsys.readouterr()
    assert len(requests) == 1
    assert "Cache:" in said.out
    assert "3 results are lost" in said.err


def test_json_is_all_that_is_printed(
    requests: list[Any], cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "m:f", "--json", "--cache-dir", str(cache_dir)]) == 0
    report = json.loads(capsys.readouterr().out)
    follow("tune", report)
    factors = [(p["speedup"], p["rejected_speedup"]) for p in report["problems"]]
    assert factors == [(1.5, None), (1.0, 2.21)]
    assert requests[0].options["progress"] == "off"


def test_a_file_that_is_there_is_refused_before_minutes_of_tuning(
    requests: list[Any], cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = tmp_path / "pins.json"
    pins.write_text("{}")
    assert main(["tune", "m:f", "--pins", str(pins), "--cache-dir", str(cache_dir)]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert requests == []
