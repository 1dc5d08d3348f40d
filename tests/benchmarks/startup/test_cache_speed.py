"""The benchmark of a large cache: what it measures, and the limits that its committed figures are within."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.repository import RESULTS
from benchmarks.startup import cache_speed
from inductor_plugin.cache import open_store


def test_all_verbs_are_timed_on_records_that_are_whole_and_kernels_that_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_speed, "WRITTEN", 5)
    monkeypatch.setattr(cache_speed, "KERNELS", 4)
    try:
        figures = cache_speed.measure(tmp_path / "cache", 12, 2)
    finally:
        gc.unfreeze()
    assert all(value > 0 for value in figures.values())
    assert {"prune_kernels_s", "ls_all_s", "verify_s"} <= figures.keys()
    assert (figures["records"], figures["candidates"]) == (12, 2)
    for name in ("lookup_cold", "lookup_warm"):
        median_us, most_us = figures[f"{name}_us"], figures[f"{name}_p95_us"]
        assert median_us <= most_us <= figures[f"{name}_max_us"]
    store = open_store(tmp_path / "cache")
    assert store.verify() == []
    assert 0 < len(list(store.iter_kernels())) < 4
    assert 0 < len(list(store.iter_records())) < 12


def test_a_lookup_among_a_million_records_is_within_its_limits() -> None:
    million: dict[str, Any] = json.loads(
        (RESULTS / "cache_speed_million_cpu.json").read_text(encoding="utf-8")
    )
    assert million["records"] == 1_000_000
    assert million["lookup_cold_p95_us"] <= 1000
    assert million["lookup_warm_p95_us"] <= 50
