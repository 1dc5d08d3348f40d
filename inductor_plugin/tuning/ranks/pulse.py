"""A rank's signs of life: a number that grows each second, and the progress of each problem that it tunes. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from inductor_plugin.cache.document import is_object

BEAT_S = 1.0
"""Seconds between two signs of life."""
_GAP_S = 5.0
"""Seconds between two looks that count as silence, at most: in more, no thread has waited for that rank, or this process was stopped.

Not none: where the store is slow, looks are that far apart, and a dead rank is to be given up there, too."""


def beat(number: int, progress: Mapping[str, int]) -> str:
    """Return a sign of life.

    Args:
        number: Counts them.
        progress: Steps done, of each problem that the rank has claimed.
    """
    return json.dumps({"number": number, "progress": dict(progress)}, separators=(",", ":"))


def progress_in(text: str) -> Mapping[str, int]:
    """Return the progress that a sign of life names; nothing where it is damaged."""
    try:
        fields: object = json.loads(text)
    except ValueError:
        return {}
    inner: object = fields.get("progress") if is_object(fields) else None
    if not is_object(inner):
        return {}
    return {name: steps for name, steps in inner.items() if isinstance(steps, int)}


@dataclass
class RankWatch:
    """What this process has seen of another rank, by its own clock.

    Attributes:
        since: When the last new sign of life was seen, or the watch began; later by the time in which it was not watched.
        given_up: Whether that rank was silent for too long, and has given no sign of life since: it is not waited for again.
    """

    since: float
    given_up: bool = False
    _looked_at: float = math.inf
    _seen: str = ""
    _progress: dict[str, int] = field(default_factory=dict[str, int])

    def see(self, text: str | None, now: float) -> bool:
        """Take a sign of life; return whether that rank has made progress, with whichever problem: it tunes one after the other.

        Args:
            text: The latest sign of life; None if there is none.
            now: The time.
        """
        if not self.given_up:
            self.since += max(0.0, now - self._looked_at - _GAP_S)
        self._looked_at = now
        if text is None or text == self._seen:
            return False
        self._seen, self.since, self.given_up = text, now, False
        # Two contexts of a process take turns in giving signs, each with its own problems.
        moved = {n: s for n, s in progress_in(text).items() if s > self._progress.get(n, -1)}
        self._progress.update(moved)
        return bool(moved)

    def silent_s(self, now: float) -> float:
        """Return the seconds without a new sign of life, apart from those in which it was not watched."""
        return now - self.since
