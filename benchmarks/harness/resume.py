"""Resumes benchmarks and GPU tests: rows of earlier runs, what to measure next, and the time budget."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

SAME = ("gpu", "driver", "torch", "triton", "dry", "sources")
"""Facts that must be unchanged for a row to be kept."""
CUT = "cut"
"""Field of a row that is no result: why the budget ended before its arms had answered."""


class Budget:
    """The seconds a run may take, from the construction of this object.

    Attributes:
        seconds: The seconds of the whole run.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start; ``clock`` returns seconds."""
        self.seconds = seconds
        self._clock = clock
        self._started = clock()

    def spent_s(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._started

    def rest_s(self) -> float:
        """Return the remaining seconds, 0 at the end."""
        return max(0.0, self.seconds - self.spent_s())


class Rows:
    """Rows by name in a JSON file, which is rewritten after each row; the next run reuses them.

    They are reused if the facts in `SAME` are unchanged: the same machine, the same sources.

    Attributes:
        path: The file.
        facts: Facts written above the rows.
        rows: The rows, each with its name under ``key``.
        rejection: Why rows of an earlier run are not reused; empty if they are, or there are none.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        before: Iterable[Path] = (),
        *,
        many: str = "rows",
        key: str = "product",
    ) -> None:
        """Load the rows of the first existing file of ``before``.

        Args:
            path: The file to write.
            facts: Facts of the machine and the sources.
            before: Files of earlier runs.
            many: Name of the list in the file.
            key: Field with a row's name.
        """
        self.path = path
        self.facts = dict(facts)
        self.rows: list[dict[str, Any]] = []
        self.rejection = ""
        self._many, self._key = many, key
        earlier = next((file for file in before if file.is_file()), None)
        if earlier is not None:
            self.rejection = self._load(earlier)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the row of a name."""
        return next((row for row in self.rows if row[self._key] == name), None)

    def put(self, row: dict[str, Any]) -> None:
        """Add a row, or replace the row of the same name, and write the file."""
        for index, earlier in enumerate(self.rows):
            if earlier[self._key] == row[self._key]:
                self.rows[index] = row
                break
        else:
            self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private = self.path.with_suffix(f".{os.getpid()}")
        content = {**self.facts, self._many: self.rows}
        private.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        private.replace(self.path)

    def _load(self, path: Path) -> str:
        """Load the rows of a file; return why they cannot be reused, empty if they can."""
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return f"{path} cannot be read ({error}); it begins anew."
        earlier = cast("dict[str, Any]", content if isinstance(content, dict) else {})
        if not isinstance(earlier.get(self._many), list):
            return f"{path} holds no {self._many}; it begins anew."
        others = [name for name in SAME if earlier.get(name) != self.facts.get(name)]
        if others:
            return f"{path} has another {', '.join(others)}; it begins anew."
        rows = cast("list[Any]", earlier[self._many])
        self.rows += [row for row in rows if isinstance(row, dict) and self._key in row]
        return ""


def failed_arms(row: Mapping[str, Any], arms: Iterable[str]) -> list[str]:
    """Return the arms of a row that failed."""
    reports: Mapping[str, Any] = row.get("arms", {})
    return [arm for arm in arms if "failed" in reports.get(arm, {})]


def waiting(
    rows: Iterable[Mapping[str, Any]], products: Sequence[str], arms: Sequence[str]
) -> list[str]:
    """Return the products to measure, in this order.

    Those without a row; those that a whole run was too short for (`CUT`); those with a failed arm.
    """
    kept = {row["product"]: row for row in rows}
    cut = [name for name in products if CUT in kept.get(name, {})]
    new = [name for name in products if name not in kept]
    finished = [name for name in products if name in kept and name not in cut]
    return new + cut + [name for name in finished if failed_arms(kept[name], arms)]


def is_better(row: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether a row has at least as many arms as an earlier row, and at least as many that succeeded."""

    def counts(measured: Mapping[str, Any]) -> tuple[int, int]:
        reports: Mapping[str, Any] = measured.get("arms", {})
        return len(reports), len(reports) - len(failed_arms(measured, reports))

    return all(new >= old for new, old in zip(counts(row), counts(earlier), strict=True))
