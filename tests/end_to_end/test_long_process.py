"""A process that compiles all day, while candidates, workers and files around it fail, keeps nothing but its cache.

The short form takes a minute. The whole, 300 compiles of 30 graphs:
``LONG_PROCESS=300,30 pytest -o faulthandler_timeout=0 tests/end_to_end/test_long_process.py``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import REPOSITORY

COMPILES, GRAPHS = map(int, os.environ.get("LONG_PROCESS", "40,10").split(","))
LIMIT_S = 60 + 10 * COMPILES
ROOM = 0.05
"""Growth that is no leak, from the end of the first third on."""

pytestmark = pytest.mark.slow


def run(folder: Path, *flags: str) -> dict[str, Any]:
    """Compile all day in a process of its own, and return its report."""
    own = folder / ("stock" if flags else "plugin")
    (own / "tmp").mkdir(parents=True)
    words = "--cache-dir", str(own / "cache"), "--compiles", str(COMPILES), "--graphs", str(GRAPHS)
    with (own / "stderr").open("w+b") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.processes.long", *words, *flags],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "TMPDIR": str(own / "tmp"),
                # One for both, so that the second process does not compile the same C++ again.
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TORCHINDUCTOR_VEC_ISA_OK": "1",  # the probe takes 5 s and is not what is tested
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            check=False,
            timeout=LIMIT_S,
        )
        errors.seek(0)
        assert done.returncode == 0, errors.read().decode(errors="replace")[-4000:]
    (own / "report.json").write_bytes(done.stdout)
    return json.loads(done.stdout.decode().splitlines()[-1])


def total(counts: dict[str, int]) -> int:
    return sum(counts.values())


def test_a_day_of_mishaps_leaves_nothing(tmp_path: Path) -> None:
    check(run(tmp_path, "--stock"), run(tmp_path))


def check(stock: dict[str, Any], ours: dict[str, Any]) -> None:
    """Compare what the process held after a third of its compiles, and at the end."""
    assert stock["wrong"] == ours["wrong"] == []
    assert ours["counters"]["failed"] > 0  # else nothing was injected
    assert {"ok", "wrong", "raised"} <= ours["statuses"].keys()
    before, after = ours["stocks"]
    for name in ("descriptors", "threads"):
        assert total(after[name]) <= (1 + ROOM) * total(before[name]), (before[name], after[name])
    for held in (before, after):
        assert held["children"] == 0
        assert held["unfinished"] == []
        kinds = {name.rpartition(".")[2] for name in held["objects"]}
        assert not kinds & {"GraphLowering", "Session", "PendingChoice"}
    assert set(after["temporary"]) <= set(before["temporary"])
    assert after["locks"] <= (1 + ROOM) * max(before["locks"], ours["counters"]["problems"])
    closed = ours["closed"]
    assert closed["children"] == 0
    assert set(closed["threads"]) <= {"MainThread", "tqdm_monitor"}
    assert "socket" not in closed["descriptors"]
    growth = {
        name: [after[name] - before[name] for before, after in (stock["stocks"], ours["stocks"])]
        for name in ("rss_bytes", "inductor")
    }
    for name, (theirs, own) in growth.items():
        assert own - theirs <= ROOM * before[name], f"{name} grows by {own}, by {theirs} without us"
