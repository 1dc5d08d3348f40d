"""What a run of a benchmark or of the GPU tests takes over from the last one, what is next, and how long it may take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

SAME = ("gpu", "driver", "torch", "triton", "dry", "sources")
"""Facts that must be as they were for a row to be kept."""


class Budget:
    """The seconds a run may take, from the moment this is made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin; ``clock`` gives seconds."""
        self._seconds = seconds
        self._clock = clock
        self._started = clock()

    def spent_s(self) -> float:
        """Return the seconds since the beginning."""
        return self._clock() - self._started

    def rest_s(self) -> float:
        """Return the seconds that are left, 0 at the end."""
        return max(0.0, self._seconds - self.spent_s())


class Rows:
    """Rows by name in a JSON file, written whole after each; the next run takes them over.

    They are taken over where `SAME` facts are as they were: the same machine, the same sources.

    Attributes:
        path: The file.
        facts: What is written above the rows.
        rows: The rows, each with its name under ``key``.
        note: Why rows of an earlier run are not taken over; empty where there are none.
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
        """Take over the rows of the first file of ``before`` that is there.

        Args:
            path: The file to write.
            facts: What the run is done on.
            before: Files of earlier runs.
            many: Name of the list in the file.
            key: What a row's name is stored under.
        """
        self.path = path
        self.facts = dict(facts)
        self.rows: list[dict[str, Any]] = []
        self.note = ""
        self._many, self._key = many, key
        earlier = next((one for one in before if one.is_file()), None)
        if earlier is not None:
            self.note = self._take_over(earlier)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the row of a name."""
        return next((row for row in self.rows if row[self._key] == name), None)

    def put(self, row: dict[str, Any]) -> None:
        """Add a row, or replace the one of its name, and write the file."""
        for place, earlier in enumerate(self.rows):
            if earlier[self._key] == row[self._key]:
                self.rows[place] = row
                break
        else:
            self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private = self.path.with_suffix(f".{os.getpid()}")
        content = {**self.facts, self._many: self.rows}
        private.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        private.replace(self.path)

    def _take_over(self, path: Path) -> str:
        """Take over the rows of a file; return why not, empty if they are."""
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
    """Return which of these arms have failed."""
    answers: Mapping[str, Any] = row.get("arms", {})
    return [one for one in arms if "failed" in answers.get(one, {})]


def waiting(
    rows: Iterable[Mapping[str, Any]], products: Sequence[str], arms: Sequence[str]
) -> list[str]:
    """Return the products to measure: those without a row, then those of which an arm has failed."""
    known = {row["product"]: row for row in rows}
    new = [one for one in products if one not in known]
    return new + [one for one in products if one in known and failed_arms(known[one], arms)]


def is_better(row: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether a row has no fewer arms than an earlier one, and no fewer that are right."""

    def counts(one: Mapping[str, Any]) -> tuple[int, int]:
        answers: Mapping[str, Any] = one.get("arms", {})
        return len(answers), len(answers) - len(failed_arms(one, answers))

    return all(new >= old for new, old in zip(counts(row), counts(earlier), strict=True))
