"""What a process sees of the cluster that it compiles on: how much it may send, and whether anything of it begins."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection

from inductor_plugin.worker.farm.flight import Flight, Nodes
from inductor_plugin.worker.farm.window import Load, Window, next_window

_OPENING_S = 0.25
"""Seconds between two looks while the cluster has free CPUs and there is more to compile."""


class Watch:
    """Looks at a cluster now and then.

    Attributes:
        sender: What the keys of this process's parcels begin with.
        window: How many tasks may be at the cluster.
        load: What it did at the last look; None if that is not known.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.sender = uuid.uuid4().hex
        self.window = Window()
        self.load: Load | None = None
        self._looked_at = -math.inf
        self._served_at = time.monotonic()

    def new_key(self) -> str:
        """Return the key of another parcel."""
        return f"{self.sender} {uuid.uuid4().hex}"

    def pause_s(self, look_s: float) -> float:
        """Return the seconds until the next look; ``look_s`` where the window does not open."""
        return min(_OPENING_S, look_s) if self.window.opens else look_s

    def look(
        self, nodes: Nodes | None, workers: int, flying: Collection[Flight], look_s: float
    ) -> None:
        """Look what the cluster does, unless that has just been done.

        Args:
            nodes: The cluster; None if it is gone.
            workers: Jobs that are compiled at once.
            flying: Jobs of this process at the cluster.
            look_s: As of `pause_s`.
        """
        now = time.monotonic()
        if not flying:
            self.served()
        if now - self._looked_at < self.pause_s(look_s):
            return
        keys = [flight.key for flight in flying]
        self.load = nodes.load(self.sender, keys) if nodes is not None else None
        self.window = next_window(self.window, self.load, workers, len(flying))
        if self.load is None or self.load.running:
            self.served()
        self._looked_at = now

    def served(self) -> None:
        """Store the time: the cluster has begun something of this process, or that nothing is there."""
        self._served_at = time.monotonic()

    def unserved_s(self, flying: Collection[Flight]) -> float:
        """Return for how many seconds these have waited at the cluster while none has run; an idle pool has not looked for long."""
        return time.monotonic() - self._served_at if flying else 0.0
