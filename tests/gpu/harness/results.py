"""The outcomes of the GPU tests in a JSON file: written before and after every test, read again to resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import arms
from benchmarks.harness.resume import Rows
from benchmarks.harness.sources import PLUGIN

SOURCES = (*PLUGIN, "benchmarks/harness", "tests/gpu")


BEGUN = "begun"
"""Outcome of a test that runs; where it stays, the test ended the run."""


class Results:
    """How each test went, in a file.

    Attributes:
        ended: Tests that were running when an earlier run ended.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        before: Iterable[Path] = (),
        *,
        resumed: bool = False,
    ) -> None:
        """Begin a run.

        Args:
            path: The file.
            facts: What the run is done on; see `machine`.
            before: Files of earlier runs: the rows of the first one that is there are kept, if its
                facts are the same.
            resumed: What has passed there counts, and need not run again.
        """
        self._file = Rows(path, facts, before, many="tests", key="test")
        rows = self._file.rows
        rows[:] = [row for row in rows if {"outcome", "seconds"} <= row.keys()]
        self._earlier = {row["test"]: row for row in rows}
        passed = {test for test, row in self._earlier.items() if row["outcome"] == "passed"}
        self.ended = {test for test, row in self._earlier.items() if row["outcome"] == BEGUN}
        self._before = passed if resumed else set[str]()
        self._fresh: set[str] = set()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def rejection(self) -> str:
        """Why an earlier run does not count; empty where it does."""
        return self._file.rejection

    @property
    def ran(self) -> int:
        """The number of tests that have run, not been skipped."""
        return len(self._fresh)

    def passed(self, test: str) -> bool:
        """Return whether a test has passed before, in a run that is resumed."""
        return test in self._before

    def begin(self, test: str) -> None:
        """Note that a test begins, and write the file: one that ends the whole run is named there."""
        if not self.passed(test):
            self._file.put({"test": test, "outcome": BEGUN, "seconds": 0.0})

    def add(
        self, test: str, outcome: str, seconds: float, reason: str, notes: Mapping[str, Any]
    ) -> None:
        """Note how a test went, and write the file; one that is skipped keeps its earlier row."""
        row = {"test": test, "outcome": outcome, "seconds": round(seconds, 1), **notes}
        row |= {"reason": reason} if reason else {}
        if outcome == "skipped":
            row = self._earlier.get(test, row)
        else:
            self._fresh.add(test)
        self._file.put(row)

    def table(self) -> list[str]:
        """Return a line for each test, and the counts."""
        rows = self._file.rows
        width = max((len(row["test"]) for row in rows), default=0)
        lines = [
            f"{row['test']:{width}}  {row['outcome']:7}  {row['seconds']:6.1f} s  {_short(row)}"
            for row in rows
        ]
        outcomes = [row["outcome"] for row in rows]
        counts = ", ".join(
            f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes))
        )
        before = len(self._earlier.keys() - self._fresh)
        return [*lines, f"{counts}; {before} of them from before"]


def machine() -> dict[str, Any]:
    """Return what a run is done on: GPU, versions, commit, and a digest of the sources."""
    facts = arms.machine(SOURCES, dry=False)
    assert facts is not None
    return facts


def _short(row: Mapping[str, Any]) -> str:
    """Return the notes of a test in one line, long ones by their number."""
    hidden = ("test", "outcome", "seconds", "reason")
    notes = {name: value for name, value in row.items() if name not in hidden}
    return ", ".join(f"{name} {_brief(value)}" for name, value in notes.items())


def _brief(value: Any) -> Any:
    return len(cast("list[Any]", value)) if isinstance(value, list) else value
