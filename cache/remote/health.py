"""Whether a remote is asked: how often it has failed, and until when it is left alone. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

PAUSES_S = (0.5, 2.0)
"""Seconds in which nothing is asked after a first and a second failure in a row."""
LOCAL_ONLY_S = 300.0
"""Seconds in which nothing is asked after more failures."""


@dataclass(frozen=True)
class Health:
    """How a remote has answered last.

    Attributes:
        failures: Failures since its last answer.
        retry_at: Time, by a monotonic clock, before which it is not asked.
        reason: The last failure.
    """

    failures: int = 0
    retry_at: float = 0.0
    reason: str = ""

    @property
    def is_local_only(self) -> bool:
        """True if it has failed so often that only the local cache is used."""
        return self.failures > len(PAUSES_S)

    @property
    def is_unusable(self) -> bool:
        """True if it is not asked again in this process."""
        return self.retry_at == math.inf

    def may_ask(self, now: float) -> bool:
        """Return True if the remote is asked at a time."""
        return now >= self.retry_at


def failed(health: Health, now: float, reason: str) -> Health:
    """Return the health after one more failure."""
    pauses = (*PAUSES_S, LOCAL_ONLY_S)
    pause_s = pauses[min(health.failures, len(pauses) - 1)]
    return Health(health.failures + 1, now + pause_s, reason)


def answered() -> Health:
    """Return the health after an answer."""
    return Health()


def unusable(reason: str) -> Health:
    """Return the health of a remote that cannot be opened in this process."""
    return Health(len(PAUSES_S) + 1, math.inf, reason)
