"""The records of one environment in a remote, and how long one graph waits for them."""

from __future__ import annotations

import time

from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.cache.remote.tier import RemoteTier

HEAD_START_S = 1.0
"""Seconds a problem's candidates wait for an answer before they compile: one takes 1 to 30 s, an answer some 0.05 s."""

OPENING_S = 3.0
"""More seconds for the first answer of a process: importing s3fs and making a client takes 1 s, or more beside a compile."""


class RemoteRecords:
    """Asks a remote for the records of one graph's problems."""

    def __init__(
        self, tier: RemoteTier, environment: str, limit_s: float, *, measures: bool
    ) -> None:
        """Ask for records of an environment.

        Args:
            tier: The remote.
            environment: Digest of the environment.
            limit_s: Seconds that all waits together may take.
            measures: Whether candidates are measured where there is no answer: they wait for `HEAD_START_S`, and `OPENING_S`, at most.
        """
        self._tier = tier
        self._environment = environment
        self._left_s = limit_s
        self._measures = measures

    def ask(self, op: str, digest: str) -> Lookup | None:
        """Ask for a record in the background; None if it is not asked for."""
        return self._tier.look_up(self._environment, op, digest)

    def wait(self, lookup: Lookup) -> None:
        """Wait for an answer within the limits."""
        started = time.monotonic()
        most_s = self._left_s
        if self._measures:
            most_s = HEAD_START_S if self._tier.is_open else HEAD_START_S + OPENING_S
        self._tier.wait(lookup, min(self._left_s, most_s))
        self._left_s = max(0.0, self._left_s - (time.monotonic() - started))

    def send(self, op: str, digest: str) -> None:
        """Write what the cache knows of a record, in the background."""
        self._tier.send(self._environment, op, digest)
