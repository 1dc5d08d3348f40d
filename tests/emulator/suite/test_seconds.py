"""How long the cases and the emulator's own tests take: an hour on two cores for all cases, half a minute for the tests."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest

from tests.emulator.suite import row as row_module
from tests.support.repository import REPOSITORY
from tests.support.tiers.selection import Case, Durations, read

MOST_OF_CASES_S = 3600.0
MOST_OF_TESTS_S = 60.0
"""Test seconds: two workers take half of it."""
WORKERS = 2
DURATIONS = REPOSITORY / "tests" / "durations.json"
_COLLECT = ("--collect-only", "-q", "-p", "no:cacheprovider", "--tier", "fast")
"""What `make test` runs; with a path it would be all that is there."""


def seconds_of(durations: Durations, ids: list[str]) -> float:
    """Return the recorded seconds of tests by their node ids; those of functions that are not recorded are none."""
    return sum(durations.seconds(Case(node_id)) for node_id in ids)


def test_all_cases_take_an_hour_on_two_cores_at_most() -> None:
    rows = row_module.read().values()
    seconds = math.fsum(row.seconds for row in rows)
    assert 0 < seconds / WORKERS <= MOST_OF_CASES_S
    facts = json.loads(row_module.TABLE.read_text(encoding="utf-8"))["facts"]
    assert facts["seconds of all"] == round(seconds)
    assert facts["seconds of compiling"] == round(math.fsum(row.compile_s for row in rows))


def test_each_case_of_a_function_counts_with_its_own_figure_or_the_mean() -> None:
    durations = Durations(1.0, 0.0, {"tests/a.py": {"test_b": 2.0, "test_b[c]": 9.0}})
    ids = [f"tests/a.py::{name}" for name in ("test_b[a]", "test_b[b]", "test_b[c]", "test_d")]
    assert seconds_of(durations, ids) == 13.0


@pytest.mark.slow
def test_the_emulator_s_part_of_make_test_takes_half_a_minute_on_two_cores_at_most() -> None:
    command = [sys.executable, "-m", "pytest", *_COLLECT]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    ids = re.findall(r"^tests/emulator/.+?\.py::.+$", done.stdout, re.MULTILINE)
    assert len(ids) > 500, done.stdout + done.stderr
    assert 0 < seconds_of(read(DURATIONS), ids) <= MOST_OF_TESTS_S
