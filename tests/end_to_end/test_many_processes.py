"""Many processes tune on one cache directory at the same time, and are killed while they do."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from tests.support.processes.killed import Child, kill_many

PROCESSES = 8
KILLS = 5
PROBLEMS, KERNELS, CANDIDATES = 3, 2, 6  # of one `tests.support.processes.tuning.Small`

pytestmark = pytest.mark.slow


def test_eight_processes_share_the_work_and_lose_nothing(cache_dir: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(cache_dir, tmp_path, [0])) for _ in range(PROCESSES)]
        for child in children:
            child.await_ready()
        for child in children:
            child.go()
        reports = [child.report() for child in children]

    assert max(report["error"] for report in reports) < 1e-5
    for report in reports:
        assert report["stats"]["problems"] == PROBLEMS
        assert report["stats"]["candidates"] == CANDIDATES
        assert report["stats"]["failed"] == report["stats"]["quarantined"] == 0
    store = open_store(cache_dir)
    assert store.verify() == []
    assert store.counters().get("corrupt", 0) == 0
    kernels, records = list(store.iter_kernels()), list(store.iter_records())
    assert len(kernels) == KERNELS
    assert sum(report["stats"]["compiled"] for report in reports) == len(kernels)
    assert len(records) == PROBLEMS
    measured = [candidate for record in records for candidate in record.candidates.values()]
    assert len(measured) == CANDIDATES
    # A slow machine with eight processes ends a first look at its 0.25 s, before the fifth sample.
    assert {candidate.status for candidate in measured} == {"ok"}
    assert all(candidate.samples_ms for candidate in measured)
    assert sum(report["stats"]["benchmarked"] for report in reports) == CANDIDATES
    assert [child.left_behind() for child in children] == [[]] * PROCESSES


def test_processes_killed_at_random_moments_break_nothing(cache_dir: Path, tmp_path: Path) -> None:
    toll = kill_many(cache_dir, tmp_path / "children", KILLS, seed=0)
    assert len(toll.kills) == KILLS
    assert toll.damaged == []
    assert toll.left_behind == []
    assert toll.folders_left == []
    assert toll.quarantined == []
    assert toll.final["error"] < 1e-5
    assert toll.final["stats"]["failed"] == 0
