"""Tests of other workers wait while a test that is marked ``alone`` runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.repository import REPOSITORY
from tests.support.tiers.turns import Turns

CONFTEST = """
from tests.support.tiers import options

def pytest_addoption(parser):
    options.add_options(parser)

def pytest_configure(config):
    options.configure(config)
"""
TESTS = """
import time
from pathlib import Path
import pytest

def spend(name):
    began = time.monotonic()
    time.sleep(0.1)
    with Path(__file__).with_name("spent").open("a") as spent:
        spent.write(f"{name} {began} {time.monotonic()}\\n")

@pytest.mark.parametrize("number", range(6))
def test_before(number):
    spend("beside")

@pytest.mark.alone
def test_alone():
    spend("alone")

@pytest.mark.parametrize("number", range(6))
def test_after(number):
    spend("beside")
"""
WAIT_S = 0.2


def test_a_turn_alone_is_not_beside_others_and_is_not_passed_by_those_that_come_later(
    tmp_path: Path,
) -> None:
    entered: list[str] = []
    may_end = threading.Event()

    def take(name: str, *, alone: bool) -> None:
        with Turns(tmp_path).turn(alone=alone):
            entered.append(name)
            may_end.wait(10)

    threads = [
        threading.Thread(target=take, args=("alone",), kwargs={"alone": True}),
        threading.Thread(target=take, args=("later",), kwargs={"alone": False}),
    ]
    with Turns(tmp_path).turn(alone=False), Turns(tmp_path).turn(alone=False):
        for thread in threads:
            thread.start()
            thread.join(WAIT_S)
        assert entered == []
    threads[0].join(WAIT_S)
    assert entered == ["alone"]
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert entered == ["alone", "later"]


def test_workers_wait_for_a_test_that_is_marked(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_times.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone", encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONWARNINGS": "default::ResourceWarning",
            "TMPDIR": str(temporary),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in (tmp_path / "spent").read_text("utf-8").splitlines()]
    spans = [(name, float(began), float(ended)) for name, began, ended in lines]
    ((_, began, ended),) = [span for span in spans if span[0] == "alone"]
    beside = [span for span in spans if span[0] == "beside"]
    assert len(beside) == 12
    assert not [span for span in beside if span[1] < ended and began < span[2]]
    assert [path.name for path in temporary.iterdir() if "turns" in path.name] == []
    assert "Implicitly cleaning up" not in done.stderr
