"""`tune` with several sets of inputs, and the processes that run them afterwards: nothing is left to measure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cli import main
from tests.support.candidates.fast_templates import rivals_offered
from tests.support.pages import CALM
from tests.support.processes import tuned
from tests.support.repository import REPOSITORY

Call = tuple[int, bool]
"""Rows of the inputs, and whether sizes are unknown."""


def later(cache_dir: Path, calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Return what a process of its own did in each call; nothing of Inductor's own caches is of use to it."""
    order = {"options": {"cache_dir": str(cache_dir)}, "calls": list(calls)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.tuned", json.dumps(order)],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            # What was measured beside other work is not due again.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(CALM), os.environ.get("PYTHONPATH")))),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.slow
@pytest.mark.usefixtures("inductor_cache")
def test_each_set_of_inputs_is_known_to_a_later_process(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sizes fixed or unknown, whichever of them comes first, and a size of the same class that is in no set."""
    command = ["tune", f"{tuned.__name__}:some_sets", "--training", "--cache-dir", str(cache_dir)]
    with rivals_offered():
        for more, problems in ([], (2, 4, 6)), (["--dynamic"], (2, 2, 4)):
            assert main([*command, *more]) == 0
            text = capsys.readouterr().out
            for number, so_far in enumerate(problems, start=1):
                assert f"inputs {number} of 3: {so_far} problems so far" in text
            assert f"{problems[-1]} problems, 0 of them known" in text
            assert f"{2 * problems[-1]} candidates measured" in text
            assert (
                len(re.findall(r"^[0-9a-f]{12} +(?:\d+\.\d+x|-) ", text, re.MULTILINE))
                == problems[-1]
            )
    calls = [(rows, dynamic) for dynamic in (False, True) for rows in reversed(tuned.ROWS)]
    calls.append((tuned.ROWS[0] + 9, True))
    for call, did in zip(calls, later(cache_dir, calls), strict=True):
        assert (did["problems"], did["record_hits"], did["benchmarked"]) == (2, 2, 0), call
        assert did["right"]
