"""What a benchmark takes over from its last run, what it does next, and how long it may take."""

from __future__ import annotations

import json
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


def finished(out: Path, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run on the same machine with the same sources."""
    if not out.is_file():
        return []
    try:
        content: Any = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{out} cannot be read ({error}); it begins anew.")
        return []
    if not isinstance(content, dict):
        print(f"{out} holds no report; it begins anew.")
        return []
    found = cast("dict[str, Any]", content)
    others = [name for name in SAME if found.get(name) != facts.get(name)]
    if others:
        print(f"{out} has another {', '.join(others)}; it begins anew.")
        return []
    rows = found.get("rows")
    if not isinstance(rows, list):
        print(f"{out} has no rows; it begins anew.")
        return []
    return [one for one in cast("list[Any]", rows) if isinstance(one, dict) and "product" in one]


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


def put(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Add a row, or let it take the place of an earlier one with no more arms, and no more right."""

    def counts(one: Mapping[str, Any]) -> tuple[int, int]:
        answers: Mapping[str, Any] = one.get("arms", {})
        return len(answers), len(answers) - len(failed_arms(one, answers))

    for place, earlier in enumerate(rows):
        if earlier["product"] == row["product"]:
            if all(new >= old for new, old in zip(counts(row), counts(earlier), strict=True)):
                rows[place] = row
            return
    rows.append(row)
