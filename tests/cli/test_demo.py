from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cli import demo, demo_child
from inductor_plugin.errors import OptionError, WorkerDiedError, WorkerError, WorkerTimeoutError
from inductor_plugin.tuning.counters import Stats
from tests.support.cli.schemas import follow

USERS_MODEL = """
import torch
from torch import nn

def two_layers():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))
    return layers.eval(), (torch.randn(64, 128),)
"""

FIRST = demo.Run(
    torch="2.14.1",
    compile_s=30.0,
    process_s=35.0,
    error=1e-6,
    tolerance=1e-3,
    stats=Stats(problems=5, record_misses=5, compiled=5, benchmarked=10),
)
SECOND = dataclasses.replace(FIRST, stats=Stats(problems=5, record_hits=5))


def with_stats(run: demo.Run, **counters: int) -> demo.Run:
    return dataclasses.replace(run, stats=dataclasses.replace(run.stats, **counters))


def test_a_second_process_without_work_is_what_was_promised():
    assert demo.judge(FIRST, SECOND) == ()


@pytest.mark.parametrize("counter", ["compiled", "benchmarked", "record_misses"])
def test_work_in_the_second_process_is_a_problem(counter: str):
    (problem,) = demo.judge(FIRST, with_stats(SECOND, **{counter: 2}))
    assert problem == f"the second process has {counter} = 2, expected 0"


@pytest.mark.parametrize(("again", "problems"), [(1, 0), (2, 0), (3, 1)])
def test_what_was_measured_beside_other_work_may_be_measured_again(again: int, problems: int):
    first = dataclasses.replace(FIRST, provisional=2)
    second = with_stats(SECOND, record_misses=again, benchmarked=2 * again)
    assert len(demo.judge(first, second)) == problems


def test_a_model_without_anything_to_tune_is_a_problem():
    (problem,) = demo.judge(with_stats(FIRST, problems=0), SECOND)
    assert "nothing was tuned" in problem


@pytest.mark.parametrize("error", [0.1, float("nan")])
def test_numbers_off_eager_are_a_problem(error: float):
    (problem,) = demo.judge(dataclasses.replace(FIRST, error=error), SECOND)
    assert "the first process is off eager" in problem


def test_a_report_is_plain_json():
    report = demo.DemoReport("m:f", "cpu", "/cache", FIRST, SECOND, ("the second is off",))
    said = json.loads(json.dumps(report.to_dict()))
    follow("demo", said)
    assert said["second"]["stats"]["record_hits"] == 5


def test_the_demos_own_cache_is_emptied_and_nothing_beside_it(cache_home: Path):
    beside = cache_home / "records"
    inside = cache_home / ".demo-cache/records"
    for folder in (beside, inside):
        folder.mkdir(parents=True)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise subprocess.TimeoutExpired("demo", 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", fail)
        with pytest.raises(WorkerTimeoutError, match="more than 5 s; try a smaller model"):
            demo.run_demo(say=lambda text: None, timeout_s=5)
    assert beside.exists()
    assert not inside.exists()


def test_a_named_cache_is_not_emptied_and_a_failing_process_is_reported(
    cache_dir: Path, capfd: pytest.CaptureFixture[str]
):
    (cache_dir / "records").mkdir(parents=True)
    with pytest.raises(OptionError, match="the reason is above"):
        demo.run_demo("nowhere:model", cache_dir, say=lambda text: None)
    assert (cache_dir / "records").exists()
    error = capfd.readouterr().err
    assert "inductor-plugin demo: model 'nowhere:model': no module 'nowhere' in " in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_the_second_process_compiles_and_measures_nothing(
    cache_dir: Path, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "users_model.py").write_text(USERS_MODEL, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(repository))))
    lines: list[str] = []
    report = demo.run_demo("users_model:two_layers", cache_dir, say=lines.append)
    assert report.problems == ()
    assert report.first.stats.benchmarked > 0
    if not report.first.provisional:
        assert report.second.stats.record_hits == report.first.stats.problems
        assert any("0 candidates measured" in line for line in lines)


def test_a_number_that_is_none_in_any_output_is_the_error():
    largest = demo_child._largest  # pyright: ignore[reportPrivateUsage]
    assert math.isnan(largest([0.0, math.nan, 1.0]))
    assert (largest([0.0, 2.0]), largest([])) == (2.0, 0.0)


def test_an_error_that_is_no_number_is_null_in_json():
    broken = dataclasses.replace(SECOND, error=math.nan)
    report = demo.DemoReport("m:f", "cpu", "/cache", FIRST, broken, demo.judge(FIRST, broken))
    assert len(report.problems) == 1
    plain = report.to_dict()
    assert (plain["first"]["error"], plain["second"]["error"]) == (FIRST.error, None)
    json.dumps(plain, allow_nan=False)


@pytest.mark.parametrize(
    ("status", "error"), [(1, WorkerDiedError), (2, OptionError), (-9, WorkerDiedError)]
)
def test_a_process_that_fails_is_no_run(
    status: int,
    error: type[WorkerError | OptionError],
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def run(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, status, stdout="{}")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(error, match="the reason is above"):
        demo.run_demo("m:f", cache_dir, say=lambda text: None)


def test_the_processes_share_the_plugins_cache_and_not_inductors(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    commands: list[tuple[str, ...]] = []
    folders: list[Path] = []
    answers = iter((FIRST, SECOND))

    def run(
        command: tuple[str, ...], env: dict[str, str], **_: Any
    ) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folders.append(Path(env["TORCHINDUCTOR_CACHE_DIR"]))
        assert folders[-1].is_dir()
        assert env["TORCHINDUCTOR_FREEZING"] == "1"  # else a CPU has nothing to choose from
        plain = dataclasses.asdict(next(answers))
        del plain["process_s"]
        return subprocess.CompletedProcess(command, 0, stdout=f"a table\n{json.dumps(plain)}\n")

    monkeypatch.setattr(demo.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(subprocess, "run", run)
    lines: list[str] = []
    report = demo.run_demo("m:f", cache_dir, say=lines.append)
    assert (report.problems, report.device) == ((), "cpu")
    assert (report.first.stats, report.second.stats) == (FIRST.stats, SECOND.stats)
    assert [command[-2:] for command in commands] == [("--table", "on"), ("--table", "off")]
    assert all(str(cache_dir) in command for command in commands)
    assert folders[0] != folders[1]
    assert "5 problems, 5 of them known: 0 kernels compiled, 0 candidates measured" in lines[-1]
