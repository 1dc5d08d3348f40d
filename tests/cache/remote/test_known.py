"""What was read of a record's editions is used once, if it is whole and young enough."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from inductor_plugin.cache.remote import known
from inductor_plugin.cache.remote.chain import Chain
from inductor_plugin.cache.remote.name import Place

PLACE = Place("e", "mm", "d")


@pytest.mark.parametrize(
    ("chain", "age_s", "usable"),
    [
        (Chain(next=2), 0.0, True),
        (Chain(next=2), 3599.0, True),
        (Chain(next=2), 3600.0, False),
        (Chain(next=2, error=OSError(5, "500")), 0.0, False),
    ],
)
def test_what_was_read_lately_and_whole_is_used_once(
    chain: Chain, age_s: float, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(known, "time", SimpleNamespace(monotonic=lambda: clock.now))
    chains = known.KnownChains()
    chains.add(PLACE, chain)
    clock.now += age_s
    assert chains.take(Place("e", "mm", "other")) is None
    assert chains.take(PLACE) == (chain if usable else None)
    assert chains.take(PLACE) is None


def test_of_too_many_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_MOST_KNOWN", 2)
    chains, places = known.KnownChains(), [Place("e", "mm", name) for name in "abc"]
    for number, place in enumerate(places):
        assert chains.places == places[:number]
        chains.add(place, Chain())
    assert chains.places == places[1:]
