from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cli import demo, doctor, run
from inductor_plugin.errors import WorkerDiedError
from inductor_plugin.tuning.counters import Stats

RUN = demo.Run("2.14.1", 1.0, 2.0, 0.0, 1e-3, Stats(problems=1))
REPORT = demo.DemoReport("m:f", "cpu", "/cache", RUN, RUN, ())


def call(verb: str, *, as_json: bool = False, cache_dir: str | None = None, **more: Any) -> int:
    """Run a verb with the arguments that every verb has."""
    (listed,) = (command for command in run.VERBS if command.name == verb)
    return listed.run(argparse.Namespace(json=as_json, cache_dir=cache_dir, **more))


def test_the_demos_model_is_an_argument():
    (listed,) = (verb for verb in run.VERBS if verb.name == "demo")
    parser = argparse.ArgumentParser()
    listed.add_arguments(parser)
    assert parser.parse_args(["--model", "mine:model"]).model == "mine:model"
    assert parser.parse_args([]).model is None


def test_the_demo_ends_with_the_cache_and_what_to_type_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[Any] = []

    def run_demo(model: str | None, cache_dir: Path | None, say: Any) -> demo.DemoReport:
        asked.extend((model, cache_dir))
        return REPORT

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert call("demo", model="m:f", cache_dir="/cache") == 0
    assert asked == ["m:f", Path("/cache")]
    assert "Cache: /cache\nNext:  inductor-plugin ls --cache-dir /cache" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [True, False])
def test_the_demo_ends_non_zero_with_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
):
    report = demo.DemoReport(
        "m:f", "cpu", "/cache", RUN, RUN, ("the second process has compiled = 1",)
    )

    def run_demo(*_: Any, **__: Any) -> demo.DemoReport:
        return report

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert call("demo", model=None, as_json=as_json) == 1
    captured = capsys.readouterr()
    assert "the second process has compiled = 1" in (captured.out if as_json else captured.err)


def test_the_demos_json_is_all_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run_demo(model: str | None, cache_dir: Path | None, say: Any) -> demo.DemoReport:
        say("a line for people")
        return REPORT

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert call("demo", model=None, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["first"]["stats"]["problems"] == 1


def test_a_process_that_died_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run_demo(*_: Any, **__: Any) -> demo.DemoReport:
        raise WorkerDiedError("a process of the demo ended with status 9")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert call("demo", model=None) == 1
    assert capsys.readouterr().err == (
        "inductor-plugin demo: a process of the demo ended with status 9\n"
    )


@pytest.mark.parametrize(("state", "status"), [("ok", 0), ("off", 0), ("broken", 1)])
def test_the_doctor_ends_non_zero_when_something_is_broken(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: doctor.State,
    status: int,
):
    finding = doctor.Finding("nvcc", state, "what was found", "what to do")

    def examine(cache_dir: Path | None) -> list[doctor.Finding]:
        return [finding]

    monkeypatch.setattr(doctor, "examine", examine)
    assert call("doctor") == status
    assert "-> what to do" in capsys.readouterr().out
    assert call("doctor", as_json=True) == status
    assert json.loads(capsys.readouterr().out) == [finding.to_dict()]
