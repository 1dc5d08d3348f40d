"""Closes a run of the GPU tests with a short table, and writes it as JSON."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "test_gpu.json"

_rows: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile everything anew; the first kernel of a process fixes Triton's folder otherwise."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(inductor_cache / "triton" / "0"))
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()
    torch.cuda.synchronize()  # a test that breaks the device fails itself, not the next one


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test went."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        _rows.append(
            {
                "test": report.nodeid.rpartition("::")[2],
                "outcome": report.outcome,
                "seconds": round(report.duration, 1),
                **dict(report.user_properties),
            }
        )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table and write the file, if anything has run."""
    if not _rows:
        return
    if all(row["outcome"] == "skipped" for row in _rows):
        terminalreporter.write_line(
            f"No CUDA device: {len(_rows)} GPU tests skipped, {RESULTS.name} is not written."
        )
        return
    terminalreporter.section("GPU tests")
    width = max(len(row["test"]) for row in _rows)
    for row in _rows:
        notes = ", ".join(
            f"{name} {value}"
            for name, value in row.items()
            if name not in ("test", "outcome", "seconds")
        )
        line = f"{row['test']:{width}}  {row['outcome']:7}  {row['seconds']:6.1f} s  {notes}"
        terminalreporter.write_line(line)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({**_machine(), "tests": _rows}, indent=1) + "\n")
    terminalreporter.write_line(f"Written to {RESULTS}.")


def _machine() -> dict[str, Any]:
    from inductor_plugin.environment import environment

    return {"written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | environment(
        "cuda:0"
    )
