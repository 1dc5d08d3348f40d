"""How long the cases and the emulator's own tests take: an hour on two cores for all cases, half a minute for the tests."""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.emulator.suite import row as row_module
from tests.support.repository import REPOSITORY

MOST_OF_CASES_S = 3600.0
MOST_OF_TESTS_S = 30.0
WORKERS = 2
TURNS_S = 0.165
"""Ten million turns of a loop on the machine that the limits are for, an AMD EPYC; a slower one may take longer."""
_ALL = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "faulthandler_timeout=1200")
_COLLECT = (*_ALL, "--collect-only")


def turns_s() -> float:
    """Return the seconds of a CPU that ten million turns of a loop take here, of three tries the fastest."""

    def turn() -> float:
        begin, total = time.process_time(), 0
        for number in range(10**7):
            total += number
        return time.process_time() - begin

    return min(turn() for _ in range(3))


def spent_s(*words: str) -> tuple[float, str]:
    """Return the seconds of a CPU that pytest takes, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.stdout + done.stderr


def test_all_cases_take_an_hour_on_two_cores_at_most() -> None:
    rows = row_module.read().values()
    seconds = math.fsum(row.seconds for row in rows)
    assert 0 < seconds / WORKERS <= MOST_OF_CASES_S
    facts = json.loads(row_module.TABLE.read_text(encoding="utf-8"))["facts"]
    assert facts["seconds of all"] == round(seconds)
    assert facts["seconds of compiling"] == round(math.fsum(row.compile_s for row in rows))


@pytest.mark.slow
@pytest.mark.alone
def test_the_emulator_s_part_of_make_test_takes_half_a_minute_on_two_cores_at_most(
    tmp_path: Path,
) -> None:
    _, listed = spent_s(*_COLLECT, "--tier", "fast")  # with a path it would be all that is there
    ids = re.findall(r"^tests/emulator/.+?\.py::.+$", listed, re.MULTILINE)
    assert len(ids) > 500, listed
    chosen = tmp_path / "ids.txt"
    chosen.write_text("\n".join(ids), encoding="utf-8")
    collecting, _ = spent_s(*_COLLECT, f"@{chosen}")
    running, said = spent_s(*_ALL, f"@{chosen}")
    passed = re.search(r"^(\d+) passed", said, re.MULTILINE)
    assert passed is not None, said
    assert int(passed[1]) > 500
    slower = max(1.0, turns_s() / TURNS_S)
    assert (running - collecting) / WORKERS / slower <= MOST_OF_TESTS_S
