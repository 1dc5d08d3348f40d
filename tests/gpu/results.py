"""The JSON file of a run of the GPU tests: written after every test, read again to resume."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

REPOSITORY = Path(__file__).resolve().parents[2]
_FOLDERS = ("inductor_plugin", "templates", "cache", "tests/gpu")
_SAME = ("gpu", "sources", "torch", "triton")
"""What must be as it was for a test that passed to count."""


class Results:
    """How each test went, in a file."""

    def __init__(self, path: Path, facts: Mapping[str, Any], before: Sequence[Path] = ()) -> None:
        """Begin a run.

        Args:
            path: The file.
            facts: What the run is done on; see `machine`.
            before: Files of earlier runs: of the first one that is there, what has passed under the
                same facts is taken over.
        """
        self.path = path
        self._facts = dict(facts)
        self._rows: dict[str, dict[str, Any]] = {}
        earlier = next((one for one in before if one.is_file()), None)
        self._before = _passed(earlier, facts) if earlier is not None else {}
        self._rows.update(self._before)
        self.ran = 0

    def passed(self, test: str) -> bool:
        """Return whether a test has passed before, in a run that is resumed."""
        return test in self._before

    def add(
        self, test: str, outcome: str, seconds: float, reason: str, notes: Mapping[str, Any]
    ) -> None:
        """Note how a test went, and write the file."""
        if outcome == "skipped" and self.passed(test):
            return
        self.ran += outcome != "skipped"
        row = {"test": test, "outcome": outcome, "seconds": round(seconds, 1), **notes}
        self._rows[test] = row | ({"reason": reason} if reason else {})
        self._write()

    def table(self) -> list[str]:
        """Return a line for each test, and the counts."""
        width = max(len(test) for test in self._rows)
        lines = [
            f"{test:{width}}  {row['outcome']:7}  {row['seconds']:6.1f} s  {_short(row)}"
            for test, row in self._rows.items()
        ]
        outcomes = [row["outcome"] for row in self._rows.values()]
        counts = ", ".join(f"{outcomes.count(one)} {one}" for one in sorted(set(outcomes)))
        return [*lines, f"{counts}; {len(self._before)} of them from before"]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private = self.path.with_suffix(f".{os.getpid()}")
        content = {**self._facts, "tests": list(self._rows.values())}
        private.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        private.replace(self.path)


def machine() -> dict[str, Any]:
    """Return what a run is done on: GPU, versions, commit, and a digest of the sources."""
    import torch

    from inductor_plugin.environment import environment

    return {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpu": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "triton": version("triton"),
        "commit": _commit(),
        "sources": sources_digest(),
        **environment("cuda:0"),
    }


def sources_digest(repository: Path = REPOSITORY) -> str:
    """Return a digest of all that the GPU tests run; a checkout without git has one, too."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((repository / folder).rglob("*")):
            if path.is_file() and path.suffix in (".py", ".jinja", ".h", ".cuh"):
                digest.update(str(path.relative_to(repository)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _commit() -> str:
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _passed(path: Path, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if any(content.get(name) != facts.get(name) for name in _SAME):
        return {}
    return {row["test"]: row for row in content["tests"] if row["outcome"] == "passed"}


def _short(row: Mapping[str, Any]) -> str:
    """Return the notes of a test in one line, long ones by their number."""
    hidden = ("test", "outcome", "seconds", "reason")
    notes = {name: value for name, value in row.items() if name not in hidden}
    return ", ".join(f"{name} {_brief(value)}" for name, value in notes.items())


def _brief(value: Any) -> Any:
    return len(cast("list[Any]", value)) if isinstance(value, list) else value
