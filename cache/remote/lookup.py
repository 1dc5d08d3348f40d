"""A question to a remote, and its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from inductor_plugin.cache.remote.name import Place


@dataclass(eq=False)
class Lookup:
    """A question for one record.

    Attributes:
        place: The record.
        done: Set when what the remote knows is in the cache, or when it will not answer.
        hit: Whether the remote knew more than the cache.
    """

    place: Place
    done: threading.Event = field(default_factory=threading.Event)
    hit: bool = False
    _listener: Callable[[], None] | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def when_done(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the question is answered; at once if it is."""
        with self._guard:
            if not self.done.is_set():
                self._listener = listener
                return
        listener()

    def finish(self, *, hit: bool) -> None:
        """Answer the question."""
        with self._guard:
            if self.done.is_set():
                return
            self.hit = hit
            self.done.set()
            listener = self._listener
        if listener is not None:
            listener()
