"""Remotes behind caches of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cache.remote.exchange import Exchange
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import Place
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from tests.support.cache.records import measured, record
from tests.support.remote.files import MemoryFiles

LIMIT_S = 0.3
PLACE = Place(record().environment, record().op, record().digest)
Open = Callable[..., tuple[RemoteTier, Store]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Return a function that returns a remote behind an empty cache."""
    tiers: list[RemoteTier] = []

    def make(
        files: Files, name: str = "here", *, timeout_s: float = LIMIT_S, **options: Any
    ) -> tuple[RemoteTier, Store]:
        store = open_store(tmp_path / name)
        chosen = RemoteOptions("memory://shared", timeout_s, **options)
        tiers.append(RemoteTier(store, chosen, lambda _url: files))
        return tiers[-1], store

    yield make
    for tier in tiers:
        tier.close()


def filled(files: MemoryFiles, count: int = 1) -> list[Place]:
    """Write records to a store; return their places."""
    exchange = Exchange(files, open_store("/nowhere", memory_only=True), kernels=False)
    places: list[Place] = []
    for number in range(1, count + 1):
        kept = record(measured("a"), problem=number)
        exchange.publish(kept, 1.0)
        places.append(Place(kept.environment, kept.op, kept.digest))
    return places


def ask(tier: RemoteTier, place: Place = PLACE, limit_s: float = 5.0) -> bool | None:
    """Ask and wait; return whether the remote knew more, None if it was not asked or had no answer."""
    lookup = tier.look_up(*place)
    if lookup is None or not tier.wait(lookup, limit_s):
        return None
    return lookup.hit
