from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.launch import host_cost

pytestmark = pytest.mark.compat


def test_a_call_site_costs_the_host_less_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the limit on a quiet machine; an operator in Python takes 5 to 8 times the limit."""
    out = tmp_path / "host_cost.json"
    monkeypatch.setattr("sys.argv", ["host_cost", "--rounds", "20", "--out", str(out)])
    assert host_cost.main() == 0
    (result,) = json.loads(out.read_text())["by_torch"].values()
    for name, limit in host_cost.LIMITS.items():
        assert result["figures"][f"operators: {name}"]["of_mm"] > limit  # so the limit tells
