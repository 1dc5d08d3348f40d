"""What was read of records' editions, from reading to writing."""

from __future__ import annotations

import time

from inductor_plugin.cache.remote.chain import Chain
from inductor_plugin.cache.remote.name import Place

_KNOWN_S = 3600.0
"""Seconds after which what was read of a record's editions is read again before the next one is written: they may have expired."""
_MOST_KNOWN = 256
"""Records whose editions are kept; those that are asked for earlier are read again."""


class KnownChains:
    """The editions of a few records, as they were read lately; used with a lock of the caller's."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: dict[Place, tuple[float, Chain]] = {}

    @property
    def places(self) -> list[Place]:
        """The records, those that were read first at the front."""
        return [*self._rows]

    def add(self, place: Place, chain: Chain) -> None:
        """Keep what was read of a record, instead of that of the first one if there are too many."""
        self._rows[place] = time.monotonic(), chain
        if len(self._rows) > _MOST_KNOWN:
            del self._rows[next(iter(self._rows))]

    def take(self, place: Place) -> Chain | None:
        """Return what was read of a record lately, and forget it; None if nothing was, or not all."""
        read_at, chain = self._rows.pop(place, (0.0, None))
        is_usable = chain is not None and chain.error is None
        return chain if is_usable and time.monotonic() - read_at < _KNOWN_S else None
