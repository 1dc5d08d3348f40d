"""How often a rank asks the store: often while it changes, less and less while it does not, and the less the more ranks. Pure."""

from __future__ import annotations

import hashlib
import math

_SHORTEST_S, _LONGEST_S = 0.02, 0.5
"""Seconds between two questions of a rank of a small job while the store changes, and while it does not."""
_MOST_PER_S, _IDLE_PER_S = 20_000, 2_000
"""Questions a second of all ranks of a large job while the store changes, and while it does not."""
_GROWTH = 1.5


class Pace:
    """When one rank asks next."""

    def __init__(self, rank: int, world: int, shortest_s: float = _SHORTEST_S) -> None:
        """Ask at once.

        Args:
            rank: The rank: others with the same answers ask at other times.
            world: Number of ranks.
            shortest_s: Seconds between two questions, at least.
        """
        self._rank = rank
        self._shortest_s = max(shortest_s, world / _MOST_PER_S)
        self._longest_s = max(_LONGEST_S, world / _IDLE_PER_S, self._shortest_s)
        self._pause_s, self._next_at, self._asked = self._shortest_s / _GROWTH, -math.inf, 0

    def due(self, now: float) -> bool:
        """Return whether it is time to ask."""
        return now >= self._next_at

    def ask(self, now: float, *, changed: bool) -> float:
        """Count an answer; return the seconds until the next question.

        Args:
            now: The time.
            changed: Whether the answer was a new one.
        """
        longer_s = min(_GROWTH * self._pause_s, self._longest_s)
        self._pause_s = self._shortest_s if changed else longer_s
        self._asked += 1
        left_s = self._pause_s * (0.75 + 0.5 * _fraction(f"{self._rank} {self._asked}"))
        self._next_at = now + left_s
        return left_s


def _fraction(text: str) -> float:
    """Return a number from 0 to 1 that looks random and is the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
