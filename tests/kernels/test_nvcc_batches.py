"""A kernel nvcc cannot compile, in a batch with others: what it costs, and what is remembered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.config import process_environment
from inductor_plugin.kernels.nvcc import NoToolkit, find

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(isinstance(find("", process_environment()), NoToolkit), reason="needs nvcc"),
]


def test_a_broken_kernel_costs_itself_once(
    cache_dir: Path, tmp_path: Path, repository: Path
) -> None:
    log = tmp_path / "log"

    def run(*more: str) -> dict[str, Any]:
        command = [
            sys.executable,
            "-m",
            "tests.support.processes.nvcc",
            str(cache_dir),
            str(log),
            *more,
        ]
        done = subprocess.run(
            command, cwd=repository, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def calls() -> int:
        return len(log.read_text().splitlines())

    first = run()
    assert {name: status for name, (status, _) in first["known"].items()} == {
        "library": "ok",
        "plain": "ok",
        "half": "ok",
        "broken": "compile_failed",
    }
    assert (first["counted"]["compiled"], first["counted"]["quarantined"]) == (2, 1)
    assert calls() == 4  # the batch of three, and each alone
    reason = first["known"]["broken"][1]
    assert 'error: identifier "no_such_name" is undefined' in reason
    assert "ptxas info" not in reason
    assert len(reason.splitlines()) <= 12
    assert set(first["kernels"]) == {"plain", "half"}
    for taken in first["kernels"].values():
        assert 32 < taken["registers"] <= 255
        # Three stages of two tiles of 64 x 32 elements of two bytes, for four warps.
        assert (taken["spills"], taken["shared_bytes"], taken["threads"]) == (0, 24576, 128)

    second = run()
    assert second["hit"]
    assert second["known"] == first["known"]
    assert calls() == 4

    third = run("--forget")
    assert third["known"]["broken"] == first["known"]["broken"]
    assert third["known"]["plain"][0] == "ok"
    assert (third["counted"]["compiled"], third["counted"]["quarantined"]) == (0, 1)
    assert calls() == 4
