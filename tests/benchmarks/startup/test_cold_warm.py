"""What the benchmarks of starting up say of where their figures are from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.harness.sources import PLUGIN, sources_digest
from benchmarks.startup import cold_warm, overhead


@pytest.mark.parametrize("benchmark", [cold_warm, overhead])
def test_results_name_the_sources_that_they_were_measured_with(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    figures = {"lower_ratio": 1.0, "hit_ratio": 1.0}
    nothing = mock.Mock(return_value={})
    for name in ("pair", "run", "make_library_win"):
        monkeypatch.setattr(benchmark, name, nothing, raising=False)
    monkeypatch.setattr(benchmark, "summary", mock.Mock(return_value=figures))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--rounds", "1", "--out", str(out)])
    assert benchmark.main() == 0
    digest = sources_digest((*PLUGIN, "benchmarks/startup"))
    assert json.loads(out.read_text())["machine"]["sources"] == digest
