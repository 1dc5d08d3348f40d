"""What became of tests, as the recorder wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

CRASHED = "crashed"


@dataclass(frozen=True)
class Result:
    """What became of a test: passed, failed, skipped or crashed."""

    outcome: str
    seconds: float = 0.0
    message: str = ""


def results_in(lines: Iterable[str]) -> tuple[dict[str, Result], str]:
    """Return the results by test, and the test that started last if it has none.

    Of several results of a test (its call, its tear-down) the first that is not "passed" counts. A line that was cut
    off when its process ended is left out.
    """
    results: dict[str, Result] = {}
    running = ""
    for line in lines:
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        test = facts["test"]
        if "outcome" not in facts:
            running = test
            continue
        running = "" if test == running else running
        before = results.get(test)
        if before is None or before.outcome == "passed":
            results[test] = Result(facts["outcome"], facts["seconds"], facts["message"])
    return results, running


def crashed(test: str, reason: str) -> str:
    """Return the line for a test whose process ended before it."""
    facts = {"test": test, "outcome": CRASHED, "seconds": 0.0, "message": reason}
    return json.dumps(facts) + "\n"
