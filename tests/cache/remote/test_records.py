"""How long one graph waits for the records of its problems."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.cache.remote import records
from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.cache.remote.name import Place
from inductor_plugin.cache.remote.records import HEAD_START_S, OPENING_S, RemoteRecords


class PatientTier:
    """Notes how long it may be waited for; each wait takes a second of a clock that a test reads."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.limits: list[float] = []
        self.now = 7.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, lookup: Lookup, limit_s: float) -> None:
        self.limits.append(limit_s)
        self.now += 1.0


@pytest.mark.parametrize(
    ("measures", "is_open", "limit_s", "limits"),
    [
        # What is measured otherwise waits for a head start, and for a client that is to be made.
        (True, True, 100.0, [HEAD_START_S, HEAD_START_S]),
        (True, False, 100.0, [HEAD_START_S + OPENING_S] * 2),
        # Where nothing is measured there is nothing else to do.
        (False, True, 100.0, [100.0, 99.0]),
        (True, False, 1.5, [1.5, 0.5]),
        (False, False, 0.5, [0.5, 0.0]),
    ],
)
def test_a_wait_takes_a_head_start_and_all_waits_the_limit(
    measures: bool,
    is_open: bool,
    limit_s: float,
    limits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier: Any = PatientTier(is_open=is_open)
    monkeypatch.setattr(records, "time", tier)
    waiting = RemoteRecords(tier, "e", limit_s, measures=measures)
    for _ in limits:
        waiting.wait(Lookup(Place("e", "mm", "d")))
    assert tier.limits == limits
