"""The command that runs a recorded candidate: which one it takes, and its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import Record, open_store
from inductor_plugin.errors import CacheError
from tests.emulator.__main__ import chosen_name, main
from tests.emulator.kernels.recorded import PREFIX
from tests.support.cache.records import decision, measured, record
from tests.support.emulator.products import PROBLEMS, first

SLOW, FAST = f"{PREFIX}slow", f"{PREFIX}fast"


def recorded_mm() -> Record:
    rows = [
        measured("mm"),
        measured(SLOW, 3.0),
        measured(FAST, 2.0),
        measured(f"{PREFIX}failed", None),
    ]
    return record(*rows)


def test_it_is_the_winner_or_the_fastest_or_the_wanted_one() -> None:
    plain = recorded_mm()
    assert chosen_name(plain, "") == FAST
    assert chosen_name(replace(plain, decision=decision("mm")), "") == FAST
    assert chosen_name(replace(plain, decision=decision(SLOW)), "") == SLOW
    assert chosen_name(plain, "slow") == chosen_name(plain, SLOW) == SLOW
    with pytest.raises(CacheError, match=f"no candidate 'fats'; there are .*{FAST}"):
        chosen_name(plain, "fats")
    with pytest.raises(CacheError, match="no CUTLASS candidate; its candidates are: mm"):
        chosen_name(record(measured("mm")), "")


def filled(folder: Path, gpu: str) -> Record:
    """Write a cache with one record of a GPU."""
    problem = PROBLEMS["mm"]
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
