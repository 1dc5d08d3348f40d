"""Connects again to a cluster that is gone, in the background."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from inductor_plugin.worker.farm.flight import Nodes

logger = logging.getLogger(__name__)

_AGAIN_S = 60.0
"""Seconds between two attempts."""


class Rejoining:
    """Makes connections in place of one that is lost, one at a time.

    Safe to use from several threads.
    """

    def __init__(self, connect: Callable[[], Nodes] | None, done: Callable[[], None]) -> None:
        """Do nothing yet: the pool has just tried to connect.

        Args:
            connect: Connects to the cluster; None if that is not tried again.
            done: Called when an attempt has come to its end.
        """
        self._connect, self._done = connect, done
        self._tried_at = time.monotonic()
        self._guard = threading.Lock()
        self._joined: Nodes | None = None
        self._closed = False

    def taken(self) -> Nodes | None:
        """Return the connection that was made, once; None if there is none."""
        with self._guard:
            joined, self._joined = self._joined, None
        return joined

    def start(self, lost: Nodes | None) -> None:
        """Start an attempt, unless the last one was less than a minute ago.

        Args:
            lost: What is disconnected first.
        """
        with self._guard:
            is_due = time.monotonic() - self._tried_at > _AGAIN_S
            if self._connect is None or self._closed or not is_due:
                return
            self._tried_at = math.inf  # until it has come to its end
            arguments = (self._connect, lost)
        threading.Thread(target=self._try, args=arguments, name="farm again", daemon=True).start()

    def close(self) -> None:
        """Connect no more; what an attempt brings is disconnected."""
        with self._guard:
            self._closed = True
        joined = self.taken()
        if joined is not None:
            joined.close()

    def _try(self, connect: Callable[[], Nodes], lost: Nodes | None) -> None:
        joined = None
        try:
            if lost is not None:
                lost.close()
            joined = connect()
        except Exception as error:  # noqa: BLE001  whatever Ray raises; it is tried again
            logger.debug("the farm is not there again: %s", error)
        with self._guard:
            self._tried_at = time.monotonic()
            if not self._closed:
                self._joined, joined = joined, None
        if joined is not None:
            joined.close()
        self._done()
