"""The JSON file of a run of the GPU tests: written before and after every test, read again to resume."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from benchmarks.harness.sources import PLUGIN, sources_digest
from tests.support.repository import REPOSITORY

SOURCES = (*PLUGIN, "tests/gpu")
_SAME = ("gpu", "sources", "torch", "triton")
"""What must be as it was for a test that passed to count."""


class Results:
    """How each test went, in a file."""

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        before: Sequence[Path] = (),
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
        self.path = path
        self.note = ""
        self._facts = dict(facts)
        self._rows: dict[str, dict[str, Any]] = {}
        earlier = next((one for one in before if one.is_file()), None)
        if earlier is not None:
            self._rows, self.note = _read(earlier, facts)
        passed = {test for test, row in self._rows.items() if row["outcome"] == "passed"}
        self._before = passed if resumed else set[str]()
        self._earlier = dict(self._rows)
        self._fresh: set[str] = set()

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
            self._rows[test] = {"test": test, "outcome": "begun", "seconds": 0.0}
            self._write()

    def add(
        self, test: str, outcome: str, seconds: float, reason: str, notes: Mapping[str, Any]
    ) -> None:
        """Note how a test went, and write the file; one that is skipped keeps its earlier row."""
        row = {"test": test, "outcome": outcome, "seconds": round(seconds, 1), **notes}
        row |= {"reason": reason} if reason else {}
        if outcome == "skipped":
            self._rows[test] = self._earlier.get(test, row)
        else:
            self._rows[test] = row
            self._fresh.add(test)
        self._write()

    def table(self) -> list[str]:
        """Return a line for each test, and the counts."""
        width = max((len(test) for test in self._rows), default=0)
        lines = [
            f"{test:{width}}  {row['outcome']:7}  {row['seconds']:6.1f} s  {_short(row)}"
            for test, row in self._rows.items()
        ]
        outcomes = [row["outcome"] for row in self._rows.values()]
        counts = ", ".join(f"{outcomes.count(one)} {one}" for one in sorted(set(outcomes)))
        before = len(self._rows.keys() & self._earlier.keys() - self._fresh)
        return [*lines, f"{counts}; {before} of them from before"]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private = self.path.with_suffix(f".{os.getpid()}")
        content = {**self._facts, "tests": list(self._rows.values())}
        private.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        private.replace(self.path)


def machine() -> dict[str, Any]:
    """Return what a run is done on: GPU, versions, commit, and a digest of the sources."""
    import torch

    from inductor_plugin.tuning.environment import environment

    return {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpu": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "triton": version("triton"),
        "commit": _commit(),
        "sources": sources_digest(SOURCES),
        **environment("cuda:0"),
    }


def _commit() -> str:
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _read(path: Path, facts: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the rows of a file by their tests, and why there are none."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {}, f"{path} cannot be read ({error}); it begins anew."
    found = cast("dict[str, Any]", content if isinstance(content, dict) else {})
    if not isinstance(found.get("tests"), list):
        return {}, f"{path} holds no tests; it begins anew."
    others = [name for name in _SAME if found.get(name) != facts.get(name)]
    if others:
        return {}, f"{path} has another {', '.join(others)}; it begins anew."
    rows = [cast("dict[str, Any]", one) for one in found["tests"] if isinstance(one, dict)]
    whole = [one for one in rows if {"test", "outcome", "seconds"} <= one.keys()]
    return {str(one["test"]): one for one in whole}, ""


def _short(row: Mapping[str, Any]) -> str:
    """Return the notes of a test in one line, long ones by their number."""
    hidden = ("test", "outcome", "seconds", "reason")
    notes = {name: value for name, value in row.items() if name not in hidden}
    return ", ".join(f"{name} {_brief(value)}" for name, value in notes.items())


def _brief(value: Any) -> Any:
    return len(cast("list[Any]", value)) if isinstance(value, list) else value
