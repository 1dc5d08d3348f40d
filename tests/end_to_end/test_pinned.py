"""A model is recorded once and replayed in other processes, with empty caches: the same decisions and bits, nothing measured."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from filelock import FileLock
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError

import inductor_plugin
from inductor_plugin.tuning.pins.document import read_file
from tests.support.candidates.fast_templates import rivals_offered
from tests.support.lowering import Lab, library_last
from tests.support.repository import REPOSITORY

SPENT = ("benchmarked", "compiled", "benchmark_s")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def compiled(model: nn.Module, cache_dir: Path, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(
        model, backend="inductor_plugin", options={"cache_dir": str(cache_dir), **options}
    )


def places(file: Path) -> set[str]:
    return set(read_file(file).pins)


def test_a_gradient_is_recorded_that_is_computed_later_or_never(
    cache_dir: Path, tmp_path: Path
) -> None:
    model, x = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8)), torch.randn(16, 24)
    whole, half = tmp_path / "whole.json", tmp_path / "half.json"
    with rivals_offered():
        with inductor_plugin.record(whole):
            compiled(model, cache_dir)(x).sum().backward()
        with inductor_plugin.record(half):
            out = compiled(model, cache_dir)(x)
    out.sum().backward()
    assert places(half) == places(whole)
    assert {pin.op for pin in read_file(half).pins.values()} == {"addmm", "mm"}


def test_a_graph_in_inductors_caches_is_recorded_as_well(cache_dir: Path, tmp_path: Path) -> None:
    model, x = nn.Linear(24, 40), torch.randn(16, 24)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    with rivals_offered():
        with inductor_plugin.record(first):
            compiled(model, cache_dir)(x).sum().backward()
        # Measured decisions may be provisional, and such a graph is not stored; pinned ones are not.
        options: dict[str, Any] = {"policy": "pinned", "pin_file": str(first), "strict": True}
        counters.clear()
        for _ in range(2):
            compiled(model, cache_dir, **options)(x).sum().backward()
        assert any("hit" in name for name in {**counters["inductor"], **counters["aot_autograd"]})
        with inductor_plugin.record(second):
            compiled(model, cache_dir, **options)(x).sum().backward()
    assert places(first) == places(second) != set()


def test_strict_names_the_template_that_is_gone_and_without_it_the_library_runs(
    cache_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, x, file = nn.Linear(24, 40), torch.randn(16, 24), tmp_path / "pins.json"
    with rivals_offered(), torch.no_grad(), Lab(library_last, cache_dir).open():
        with inductor_plugin.record(file):
            compiled(model, cache_dir)(x)
        content = json.loads(file.read_text())
        (pin,) = content["environments"][0]["pins"]
        pin["winner"], pin["template"] = "rivals.addmm-0123456789ab", "rivals"
        file.write_text(json.dumps(content))
    options: dict[str, Any] = {"policy": "pinned", "pin_file": str(file)}
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, cache_dir, **options)(x), model(x))
        assert "template 'rivals' is not registered" in caplog.text
        with pytest.raises(InductorError, match="template 'rivals' is not registered"):
            compiled(model, cache_dir, strict=True, **options)(x)
    changed = pytest.raises(InductorError, match="'rivals' does not offer it any more")
    with rivals_offered(), torch.no_grad(), changed:
        compiled(model, cache_dir, strict=True, **options)(x)


def process(
    tmp_path: Path, mode: str, model: str, file: Path, number: int, *flags: str
) -> dict[str, Any]:
    """Run the program of `tests.support.processes.pinned` with caches of its own."""
    folder = tmp_path / f"{mode}{number}"
    program = ("tests.support.processes.pinned", mode, model, str(file), str(folder / "cache"))
    said: dict[str, Any] = json.loads(run(folder, *program, *flags).splitlines()[-1])
    return said


def run(folder: Path, *words: str, status: int = 0) -> str:
    """Run a module of Python with Inductor's caches in a folder; return what it has printed."""
    variables = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "RIVALS_FACTOR": str(1 + 2**-20),  # eight times the resolution of float32
    }
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout


OPS = {
    "gpt2": {"mm", "addmm", "attention", "attention_backward", "packed_linear"},
    "demo": {"mm"},
}
"""Operators of each model that have a pin, among others."""


@dataclass(frozen=True)
class Recorded:
    """What a process has recorded, and what it said: shared by the cases, whichever of pytest's workers runs them."""

    file: Path
    said: Mapping[str, Any]


@pytest.fixture
def recorded(model: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    file, said = shared / f"pinned-{model}.json", shared / f"pinned-{model}-said.json"
    with FileLock(f"{file}.lock"):
        if not said.exists():
            said.write_text(json.dumps(process(tmp_path, "record", model, file, 0)))
    return Recorded(file, json.loads(said.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "number"),
    [*itertools.product(OPS, range(10)), ("gpt2-large", 0), ("gpt2-large", 1)],
)
def test_a_model_is_replayed_by_ten_other_processes(
    model: str, number: int, recorded: Recorded, tmp_path: Path
) -> None:
    """GPT-2: a training step, and an inference with frozen weights; of two layers of the usual width in two processes."""
    text = recorded.file.read_text()
    replayed = process(tmp_path, "replay", model, recorded.file, number)
    assert replayed["decisions"] == recorded.said["decisions"]
    assert replayed["outputs"] == recorded.said["outputs"]
    assert replayed["rivals"] == recorded.said["rivals"] > 0
    assert [replayed["stats"][name] for name in SPENT] == [0, 0, 0]
    assert recorded.file.read_text() == text


@pytest.mark.slow
@pytest.mark.parametrize("model", OPS)
def test_where_a_template_is_gone_the_library_runs_and_check_names_it(
    model: str, recorded: Recorded, tmp_path: Path
) -> None:
    file = recorded.file
    pins = read_file(file).pins.values()
    assert {pin.op for pin in pins} >= OPS[model]
    assert recorded.said["stats"]["benchmarked"] > 0
    without = process(tmp_path, "replay", model, file, 10, "--without-template")
    assert (without["rivals"], without["stats"]["benchmarked"]) == (0, 0)
    assert without["error"] < 1e-4
    same = recorded.said["outputs"].items() & without["outputs"].items()
    assert len(same) < len(without["outputs"])  # bits show who has computed them
    # `check` names the template in a process that has not registered it, and nothing of it in one that has.
    (empty := tmp_path / "empty").mkdir()
    check = ("inductor_plugin.cli", "check", str(file), "--cache-dir", str(empty))
    stale = json.loads(run(tmp_path, *check, "--json", status=1))["stale"]
    gone = {row["digest"]: row["reason"] for row in stale}
    rivals = {pin.digest for pin in pins if pin.template == "rivals"}
    assert rivals
    assert gone == dict.fromkeys(rivals, "template 'rivals' is not registered")
    registering = ("--templates", "tests.support.candidates.fast_templates:offer_rivals")
    assert json.loads(run(tmp_path, *check, *registering, "--json"))["stale"] == []
