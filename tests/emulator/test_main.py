"""The command that runs a recorded candidate: which one it takes, and its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import Record, open_store
from inductor_plugin.errors import KernelError
from inductor_plugin.problem import Problem
from tests.emulator.__main__ import main
from tests.emulator.recorded import products
from tests.emulator.recorded.products import PREFIX
from tests.support.cache.records import measured, record
from tests.support.emulator.products import PROBLEMS, first, operand
from tests.support.emulator.recording import record_of
from tests.support.lowering import Arg


def torch_mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def filled(folder: Path, gpu: str, problem: Problem = PROBLEMS["mm"]) -> Record:
    """Write a cache with one record of a GPU."""
    store = open_store(folder)
    facts = {"device": {"type": "cuda", "name": gpu}, "software": {}, "numerics": {}}
    written = replace(
        record(measured(first(problem)), measured("mm")),
        environment=store.put_environment(facts),
        problem=problem.fields(),
    )
    store.put_record(written)
    return written


def test_a_gpu_that_is_not_emulated_is_an_error_that_names_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = filled(tmp_path / "cache", "NVIDIA GeForce RTX 4090")
    assert main([written.digest, "--cache-dir", str(tmp_path / "cache")]) == 2
    assert "RTX 4090 is not emulated; name another with --gpu: H100" in capsys.readouterr().err
    assert main(["nothing", "--cache-dir", str(tmp_path / "cache")]) == 2
    assert "nothing in" in capsys.readouterr().err


def test_a_call_that_takes_hours_is_refused_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = operand(8192, 8192)
    large = Problem("mm", (size, size), size)
    written = filled(tmp_path / "cache", "NVIDIA H100 80GB HBM3", large)
    words = [written.digest, "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 2
    assert "takes about 6.1 hours in the emulator; choose a smaller call" in capsys.readouterr().err

    def run(*call: object) -> None:
        raise KernelError("it was asked for")

    monkeypatch.setattr(products, "run", run)
    assert main([*words, "--anyway"]) == 1
    assert "wrong: it was asked for" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_a_record_of_the_plugin_whose_winner_is_a_triton_kernel_is_run_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operands = Arg((70, 136)), Arg((136, 72))
    written = record_of(tmp_path / "cache", torch_mm, *operands, fastest="triton_persistent_tma")
    words = [written.digest, "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "triton_persistent_tma A_ROWS=True" in shown
    assert "on H100, eager" in shown
    assert "note:" not in shown
    assert "right: 0." in shown
    assert "tensor operations" in shown
    assert main([*words, "--candidate", "triton_mm", "--schedule", "late"]) == 0
    assert "triton_mm ACC_TYPE=" in capsys.readouterr().out


@pytest.mark.slow
def test_a_recorded_winner_is_run_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = filled(tmp_path / "cache", "NVIDIA H100 80GB HBM3")
    assert main([written.digest, "--cache-dir", str(tmp_path / "cache")]) == 0
    shown = capsys.readouterr().out
    assert f"{first(PROBLEMS['mm']).removeprefix(PREFIX)}"[:20] in shown
    assert "right: 0." in shown
    assert "tensor operations" in shown
