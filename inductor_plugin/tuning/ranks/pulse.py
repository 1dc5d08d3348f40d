"""A rank's signs of life: a number that grows each second, and the progress of each problem that it tunes; and their absence. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from inductor_plugin.cache.document import is_object

BEAT_S = 1.0
"""Seconds between two signs of life."""
_GAP_S = 5.0
"""Seconds between two turns that count as silence, at most: in more, no thread has waited for a rank, or this process was stopped.

Not none: where the store is slow, turns are that far apart, and a dead rank is to be given up there, too."""
_LOOKS = 6
"""Looks in a time-out at a rank whose problems no thread waits for yet: by a sixth of it, at most, its silence begins too late."""
_LOOKS_PER_S = 2_000
"""Such looks a second of all ranks of a large job, which know of more ranks: each makes fewer then."""


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
class _RankWatch:
    """What this process has seen of another rank.

    Attributes:
        since: When the last new sign of life was seen, or the watch began.
        looked_at: When this process has looked last.
    """

    since: float
    looked_at: float = -math.inf
    seen: str = ""
    progress: dict[str, int] = field(default_factory=dict[str, int])

    def see(self, text: str | None, now: float) -> bool:
        """Take the latest sign of life; return whether that rank has made progress."""
        self.looked_at = now
        if text is None or text == self.seen:
            return False
        self.seen, self.since = text, now
        # Two contexts of a process take turns in giving signs, each with its own problems.
        moved = {n: s for n, s in progress_in(text).items() if s > self.progress.get(n, -1)}
        self.progress.update(moved)
        return bool(moved)


class RankWatches:
    """What this process has seen of the ranks that hold what it needs: all are watched at once, so that those that die together cost one time-out.

    The clock is the time in which it waits for some rank and is able to look: see `turn`.
    """

    def __init__(self, timeout_s: float, world: int) -> None:
        """Watch no rank yet.

        Args:
            timeout_s: Seconds after which a rank is silent for too long.
            world: Number of ranks.
        """
        self._timeout_s = timeout_s
        self._most = max(1, _LOOKS_PER_S // world)
        self._clock_s, self._turned_at = 0.0, math.inf
        self._ranks: dict[int, _RankWatch] = {}
        self._watched: set[int] = set()
        self._given_up: set[int] = set()

    def turn(self, holders: Collection[int], now: float) -> None:
        """Begin a turn; there is none while no thread waits.

        Args:
            holders: The ranks that hold what this process needs. Whoever holds nothing may be silent, and is watched from when it does.
            now: The time.
        """
        self._clock_s += min(max(0.0, now - self._turned_at), _GAP_S)
        self._turned_at = now
        for rank in holders:
            watch = self._ranks.setdefault(rank, _RankWatch(self._clock_s))
            if rank not in self._watched | self._given_up:
                watch.since = self._clock_s
        self._watched = {*holders}

    def due(self, awaited: Collection[int]) -> list[int]:
        """Return the ranks to look at beside those that threads wait for: a few, which were not looked at for longest."""
        pause_s = max(BEAT_S, self._timeout_s / _LOOKS)
        others = sorted((self._ranks[r].looked_at, r) for r in self._watched - {*awaited})
        return [r for at, r in others if self._clock_s - at >= pause_s][: self._most]

    def overdue(self) -> list[int]:
        """Return the ranks that may be silent for too long; to be looked at before they are given up."""
        return sorted(rank for rank in self._watched if self.silent_s(rank) > self._timeout_s)

    def see(self, rank: int, text: str | None) -> bool:
        """Take a sign of life; return whether that rank has made progress, with whichever problem: it tunes one after the other.

        Args:
            rank: The rank.
            text: Its latest sign of life; None if there is none.
        """
        moved = self._ranks[rank].see(text, self._clock_s)
        if self.silent_s(rank) == 0.0:
            self._given_up.discard(rank)
        return moved

    def renew(self, ranks: Collection[int]) -> None:
        """Watch some ranks from now: they did something else than give a sign of life."""
        for rank in ranks:
            self._ranks.setdefault(rank, _RankWatch(self._clock_s)).since = self._clock_s

    def give_up(self, ranks: Collection[int]) -> None:
        """Wait for none of some ranks again before its next sign of life, even if it holds nothing meanwhile."""
        self._given_up.update(ranks)

    def silent_s(self, rank: int) -> float:
        """Return the seconds without a new sign of life, apart from those in which it was not watched."""
        return self._clock_s - self._ranks[rank].since
