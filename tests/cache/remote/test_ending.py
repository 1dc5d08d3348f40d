"""What is done when the interpreter ends."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from inductor_plugin.cache.remote import ending


class Tier:
    """Waits at the end of the process."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.waited_s = -1.0

    def drain(self, waited_s: float) -> None:
        self.waited_s = waited_s
        self.clock[0] += 5.0


def test_several_remotes_wait_for_one_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(ending, "_BEGUN", [])
    monkeypatch.setattr(ending.time, "monotonic", lambda: clock[0])
    untyped: Any = ending
    tiers = [Tier(clock), Tier(clock)]
    for tier in tiers:
        untyped._quietly(weakref.WeakMethod(tier.drain))
    assert [tier.waited_s for tier in tiers] == [0.0, 5.0]
    untyped._quietly(weakref.WeakMethod(Tier(clock).drain))  # it is gone
