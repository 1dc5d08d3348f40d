"""A pytest plugin that writes a line for each test that starts and ends, so that a crash loses nothing.

Loaded with ``-p`` into a process that runs PyTorch's tests; `JOURNAL` names the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

JOURNAL = "PYTORCH_TESTS_JOURNAL"
_LONGEST = 2000


def _write(**facts: Any) -> None:
    with Path(os.environ[JOURNAL]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write that a test starts."""
    _write(test=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test: of its call, or of its set-up and tear-down if they did not pass."""
    if report.when == "call" or report.outcome != "passed":
        message = "" if report.passed else report.longreprtext[-_LONGEST:]
        seconds = round(report.duration, 2)
        _write(test=report.nodeid, outcome=report.outcome, seconds=seconds, message=message)
