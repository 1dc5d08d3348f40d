"""What a remote may cost a process that goes wrong for one record: warnings, attempts, memory."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.support.cache.records import measured, record
from tests.support.fakes.waiting import until
from tests.support.remote.files import FaultyFiles, MemoryFiles
from tests.support.remote.tiers import Open, ask, filled, opened

__all__ = ["opened"]  # the fixture


def test_damaged_objects_are_one_warning(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = MemoryFiles()
    places = filled(files, 3)
    for name in [name for name in files.objects if "/records/" in name]:
        files.objects[name] = b"damaged"
    tier, store = opened(files)
    for place in places:
        assert ask(tier, place) is False
    tier.close()
    said = [each.levelname for each in caplog.records if "damaged object" in each.message]
    assert (said.count("WARNING"), said.count("INFO")) == (1, 3)
    # Its thread counts after it has answered.
    until(lambda: store.counters().get("remote_corrupt") == 3)


class Picky(MemoryFiles):
    """A store that refuses one record, whoever writes it."""

    refused = ""

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        if self.refused in name:
            self.requests["refused"] += 1
            raise OSError(22, "400 Bad Request")
        super().create(name, data, timeout_s)


def test_a_record_that_the_store_never_takes_is_left_while_others_are_written(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._TRIES", 2)
    files, begun = Picky(), threading.Event()
    tier, store = opened(FaultyFiles(files, held=begun), timeout_s=5.0)
    stored = [store.put_record(record(measured("a"), problem=number)) for number in range(5)]
    files.refused = f"{stored[0].digest}/"
    for each in stored:
        tier.send(each.environment, each.op, each.digest)
    begun.set()
    tier.drain()
    assert files.requests["refused"] == 2
    assert sum("/records/" in name for name in files.objects) == 4
    assert "takes other records, and not mm/" in caplog.text
    assert "only the local cache" not in caplog.text
    tier.close()
    until(lambda: store.counters().get("remote_unsent") == 1)


def test_what_was_read_is_kept_for_a_few_records_only(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.known._MOST_KNOWN", 2)
    files = MemoryFiles()
    places = filled(files, 5)
    tier, _ = opened(files)
    for place in places:
        assert ask(tier, place) is True
    untyped: Any = tier
    assert untyped._chains.places == places[-2:]
