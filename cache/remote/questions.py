"""Which records a process asks a remote for: each once, and again where it had no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.cache.remote.name import Place

_TRIES = 3
"""Failures after which a record is not asked for again, while others are answered."""


class Questions:
    """The questions of a process; used with a lock of the caller's."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[Place, Lookup] = {}
        self._asked: set[Place] = set()
        self._failures: Counter[Place] = Counter()

    @property
    def open(self) -> list[Lookup]:
        """Those without an answer, the first one at the front."""
        return [*self._open.values()]

    def get(self, place: Place) -> Lookup | None:
        """Return the question for a record while it has no answer."""
        return self._open.get(place)

    def is_asked(self, place: Place) -> bool:
        """Return whether a record was asked for, and is not to be asked for again."""
        return place in self._asked

    def add(self, place: Place) -> Lookup:
        """Ask for a record."""
        self._asked.add(place)
        question = self._open[place] = Lookup(place)
        return question

    def close(self, places: Collection[Place]) -> None:
        """Close questions that have their answers."""
        for place in places:
            self._open.pop(place, None)

    def dismiss(self, places: Collection[Place], *, counted: bool = False) -> None:
        """Close questions without an answer, which may be asked again.

        Args:
            places: The records.
            counted: Whether others were answered, so that the fault may be the record's: it is asked for `_TRIES` times at most.
        """
        self.close(places)
        for place in places:
            self._failures[place] += counted
            if self._failures[place] < _TRIES:
                self._asked.discard(place)
