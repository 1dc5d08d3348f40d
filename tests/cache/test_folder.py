"""When nothing is written to disk, and when it is tried again."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from inductor_plugin.cache import document, open_store
from inductor_plugin.cache.folder import RETRY_S
from tests.support.cache.records import measured, record


class Clock:
    """Time that passes when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.ENOMEM, errno.EIO])
def test_after_an_error_that_passes_writing_is_tried_again(
    cache_dir: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    clock = Clock()
    monkeypatch.setattr("inductor_plugin.cache.folder.time", clock)
    store = open_store(cache_dir)

    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr("inductor_plugin.cache.atomic.write", fails)
            store.put_record(record(measured("a")))
        assert os.strerror(code) in str(store.degraded)
        store.put_record(record(measured("b")))
        assert list(open_store(cache_dir).iter_records()) == []
        clock.now += RETRY_S
        assert store.degraded is None
    written = store.put_record(record(measured("c")))
    assert list(open_store(cache_dir).iter_records()) == [written]
    assert set(written.candidates) == {"a", "b", "c"}
    assert store.record(written.environment, written.op, written.digest) == written
    warnings = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("inductor-plugin: ")
    assert "tried again in 60 s" in warnings[0]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_after_an_error_that_stays_it_is_not(
    cache_dir: Path, code: int, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr("inductor_plugin.cache.folder.time", clock)
    store = open_store(cache_dir)

    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("inductor_plugin.cache.atomic.write", fails)
    store.put_record(record(measured("a")))
    clock.now += 1e6
    assert os.strerror(code) in str(store.degraded)


def test_counters_of_a_newer_version_are_kept_and_of_another_format_left_alone(cache_dir: Path):
    store = open_store(cache_dir)
    store.add_counts(hits=1)
    path = store.layout.counters
    path.write_bytes(document.dump({"format": 1, "hits": 1, "odd": True, "since": {"a": 1}}))
    store.add_counts(hits=2)
    assert document.load(path.read_bytes()) == {
        "format": 1, "hits": 3, "odd": True, "since": {"a": 1},
    }  # fmt: skip
    assert store.counters() == {"hits": 3}
    path.write_bytes(document.dump({"format": 2, "hits": 7}))
    store.add_counts(hits=2)
    assert document.load(path.read_bytes())["hits"] == 7
    assert store.counters() == {}
    path.unlink()
    os.mkfifo(path)
    assert store.counters() == {}
