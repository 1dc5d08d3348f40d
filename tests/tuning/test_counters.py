"""Counters."""

from __future__ import annotations

import threading
import time
from dataclasses import fields

import pytest

from inductor_plugin.tuning.counters import Counters, Stats


def test_everything_starts_at_zero() -> None:
    assert Counters().snapshot() == Stats()


def test_every_counter_counts() -> None:
    counters = Counters()
    for i, field_ in enumerate(fields(Stats), start=1):
        counters.add(**{field_.name: i})
        counters.add(**{field_.name: i})
    assert list(counters.snapshot().to_dict().values()) == [
        2 * i for i in range(1, len(fields(Stats)) + 1)
    ]


def test_counts_are_whole_numbers_and_seconds_are_not() -> None:
    counters = Counters()
    counters.add(problems=1.0, wall_s=1)
    for name, value in counters.snapshot().to_dict().items():
        assert isinstance(value, int) or name.endswith("_s")


def test_an_unknown_counter_is_an_error() -> None:
    with pytest.raises(KeyError, match="problem"):
        Counters().add(problem=1)


def test_since_is_the_difference() -> None:
    counters = Counters()
    counters.add(problems=3, wall_s=1.5)
    before = counters.snapshot()
    counters.add(problems=2, wall_s=0.25)
    assert counters.snapshot().since(before) == Stats(problems=2, wall_s=0.25)


class Slow(dict[str, float]):
    """Lets other threads run between the reading and the writing of a count."""

    def __getitem__(self, name: str) -> float:
        value = super().__getitem__(name)
        time.sleep(0)
        return value


def test_threads_do_not_lose_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    monkeypatch.setattr(counters, "_values", Slow(vars(counters)["_values"]))

    def count() -> None:
        for _ in range(500):
            counters.add(benchmarked=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert counters.snapshot().benchmarked == 2000
