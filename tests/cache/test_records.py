"""What the shelf of records does with files that it cannot use."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import Record, Store, document, open_store, records
from inductor_plugin.cache.folder import TOUCH_S, Folder
from inductor_plugin.cache.lock import HeldLock
from inductor_plugin.cache.record import to_fields
from inductor_plugin.cache.records import parse_environment
from inductor_plugin.errors import CacheError
from tests.support.cache.locks import wait_for_none
from tests.support.cache.records import ENVIRONMENT, measured, record


def written(store: Store, **changes: Any) -> tuple[Path, Record]:
    """Write a record to disk whose document differs in some fields."""
    store.put_environment(ENVIRONMENT)
    stored = store.put_record(record(measured("a")))
    path = store.layout.record(stored.environment, stored.op, stored.digest)
    path.write_bytes(document.dump({**to_fields(stored), **changes}))
    return path, stored


def look_up(store: Store) -> Record | None:
    wanted = record()
    return store.record(wanted.environment, wanted.op, wanted.digest)


def test_a_record_of_another_format_is_neither_read_nor_counted_nor_touched(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
):
    path, _ = written(open_store(cache_dir), format=2)
    before = path.read_bytes()
    store = open_store(cache_dir)
    assert look_up(store) is None
    assert list(store.iter_records()) == []
    assert store.verify() == []
    assert store.put_record(record(measured("b"))).candidates.keys() == {"b"}
    kept = look_up(store)
    assert kept is not None  # in memory
    assert path.read_bytes() == before
    assert "corrupt" not in store.counters()
    assert "another version" not in "".join(r.message for r in caplog.records if r.levelno < 30)
    assert ["kept in memory" in r.message for r in caplog.records if r.levelno >= 30] == [True]


def test_fields_of_a_newer_version_survive_a_merge_on_disk(cache_dir: Path):
    path, _ = written(open_store(cache_dir), energy_j=1.5)
    store = open_store(cache_dir)
    store.put_record(record(measured("b"), updated=3000.0))
    fields = document.load(path.read_bytes())
    assert fields["energy_j"] == 1.5
    assert set(fields["candidates"]) == {"a", "b"}
    store.pin_record(record())
    assert document.load(path.read_bytes())["energy_j"] == 1.5


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_record_that_cannot_be_read_now_is_not_removed_and_not_replaced(
    cache_dir: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path, _ = written(open_store(cache_dir))
    before = path.read_bytes()
    store = open_store(cache_dir)

    def fails(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr("inductor_plugin.cache.records.read", fails)
        assert look_up(store) is None
        assert look_up(store) is None
        store.put_record(record(measured("b")))
    messages = [r.message for r in caplog.records]
    assert ["cannot be read" in text for text in messages] == [True, False]
    assert "kept in memory only" in messages[1]
    assert "damaged" not in "".join(messages)
    assert path.read_bytes() == before
    assert store.degraded is None
    assert "corrupt" not in store.counters()
    # It is read as soon as it can be; what was kept in memory is written with the next measurement.
    assert {r.describe for r in open_store(cache_dir).iter_records()} == {"mm(1x512)"}
    merged = store.put_record(record(measured("c")))
    assert set(merged.candidates) == {"a", "b", "c"}
    assert look_up(open_store(cache_dir)) == merged == look_up(store)


@pytest.mark.parametrize("place", ["record", "environment"])
def test_a_pipe_in_the_place_of_a_file_hangs_nobody(cache_dir: Path, place: str):
    store = open_store(cache_dir)
    path, stored = written(store)
    if place == "environment":
        path = store.layout.environment(stored.environment)
    path.unlink()
    os.mkfifo(path)
    store = open_store(cache_dir)
    assert [damage.reason for damage in store.verify()] == ["it is a pipe or a device, not a file"]
    assert (look_up(store) is None) == (place == "record")
    assert store.environment(stored.environment) in (None, ENVIRONMENT)
    assert store.usage(look=True).damaged == int(path.exists())
    store.prune(max_bytes=10**9)


def test_a_folder_in_the_place_of_a_record_does_not_degrade_the_cache(cache_dir: Path):
    path, _ = written(open_store(cache_dir))
    path.unlink()
    path.mkdir()
    store = open_store(cache_dir)
    assert look_up(store) is None
    assert set(store.put_record(record(measured("b"))).candidates) == {"b"}
    assert store.degraded is None
    assert store.put_record(record(measured("c"), problem=2)).candidates.keys() == {"c"}
    assert len(list(open_store(cache_dir).iter_records())) == 1


def test_a_folder_in_the_place_of_an_environment_does_not_degrade_the_cache(cache_dir: Path):
    path, stored = written(open_store(cache_dir))
    path = open_store(cache_dir).layout.environment(stored.environment)
    path.unlink()
    path.mkdir()
    store = open_store(cache_dir)
    assert store.put_environment(ENVIRONMENT) == stored.environment
    assert store.degraded is None
    assert store.environment(stored.environment) == ENVIRONMENT  # in memory
    assert list(store.layout.private.iterdir()) == []


@pytest.mark.parametrize("fields", [None, [], "x", 3, {"a": 1e999}])
def test_an_environment_whose_fields_are_odd_is_damaged(fields: Any):
    text = document.dump({"format": 1, "fields": fields})
    with pytest.raises(ValueError, match="its"):
        parse_environment(text, "0" * 64)
    with pytest.raises(document.ForeignError):
        parse_environment(document.dump({"format": 2, "fields": fields}), "0" * 64)


def test_two_threads_that_put_one_record_into_memory_lose_nothing(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(cache_dir, memory_only=True)
    store.put_record(record(measured("a")))
    other = threading.Thread(target=store.put_record, args=(record(measured("c")),))

    def slow(self: records.RecordShelf, *arguments: Any) -> Record:
        merged = merge(self, *arguments)
        if threading.current_thread() is not other:  # it puts its record meanwhile, or waits
            other.start()
            other.join(0.2)
        return merged

    merge = records.RecordShelf._merged  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(records.RecordShelf, "_merged", slow)
    store.put_record(record(measured("b")))
    other.join()
    both = look_up(store)
    assert both is not None
    assert set(both.candidates) == {"a", "b", "c"}


def test_a_record_that_was_written_again_meanwhile_is_not_removed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    path, stored = written(open_store(cache_dir))
    sound, lock = path.read_bytes(), Folder.lock
    path.write_bytes(b"damaged")

    def late(folder: Folder, name: str, timeout_s: float) -> HeldLock:
        if name.startswith("records-"):
            path.write_bytes(sound)  # another process was faster
        return lock(folder, name, timeout_s)

    monkeypatch.setattr(Folder, "lock", late)
    store = open_store(cache_dir)
    assert look_up(store) is None
    assert look_up(store) == stored


def test_a_record_that_a_process_goes_on_using_is_used_in_each_minute(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(records, "time", SimpleNamespace(monotonic=lambda: clock.now))
    store = open_store(cache_dir)
    stored = store.put_record(record(measured("a")))
    path = store.layout.record(stored.environment, stored.op, stored.digest)
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    for passed_s, noted in ((TOUCH_S, False), (1.0, True)):
        clock.now += passed_s
        assert look_up(store) is not None  # from memory
        assert (path.stat().st_atime > 0) is noted


def test_what_is_in_memory_only_is_measured_in_its_environment(cache_dir: Path):
    store = open_store(cache_dir, memory_only=True)
    store.put_record(record(measured("a", None, status="skipped")))
    assert not store.has_records(record().environment)
    store.put_record(record(measured("a"), measured("b", None, status="hung")))
    assert store.has_records(record().environment)
    assert not store.has_records("0" * 64)


def test_a_record_that_is_newer_in_memory_is_listed_once(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(cache_dir)
    store.put_record(record(measured("a")))
    monkeypatch.setattr("inductor_plugin.cache.atomic.write", full)
    store.put_record(record(measured("b")))
    assert [set(each.candidates) for each in store.iter_records()] == [{"a", "b"}]


def test_a_failure_is_dropped_in_its_own_environment(cache_dir: Path):
    store, other = open_store(cache_dir), "f" * 64
    failed = measured("bad", None, status="hung")
    here = store.put_record(record(failed))
    there = store.put_record(record(failed, environment=other))
    name = f"bad-{here.digest[:12]}"
    refused = store.quarantine(here.environment, name, {"candidate": "bad", "status": "hung"})
    assert store.retry(refused) == 1
    assert store.record(other, there.op, there.digest) == there


def test_a_file_of_somebody_else_beside_records_is_none_and_stays(cache_dir: Path):
    store = open_store(cache_dir)
    path, stored = written(store)
    notes = path.with_name("notes.txt")
    notes.write_text("measured on a quiet machine")
    assert list(store.iter_records()) == [stored]
    assert (store.usage(look=True).records, store.usage(look=True).damaged) == (1, 0)
    assert store.verify() == []
    assert notes.exists()


def test_a_record_that_another_process_writes_is_changed_by_nobody_else(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(records, "_LOCK_S", 0.02)
    store = open_store(cache_dir)
    stored = store.put_record(record(measured("a"), measured("bad", None, status="hung")))
    path = store.layout.record(stored.environment, stored.op, stored.digest)
    name, before = f"bad-{stored.digest[:12]}", path.read_bytes()
    refused = store.quarantine(stored.environment, name, {"candidate": "bad", "status": "hung"})
    with Folder(store.layout).lock(f"records-{stored.digest[:2]}", 0):
        with pytest.raises(CacheError, match="another process"):
            store.pin_record(stored)
        with pytest.raises(CacheError, match="another process"):
            store.retry(refused)
        both = store.put_record(record(measured("b")))
    assert set(both.candidates) == {"a", "b", "bad"}
    assert path.read_bytes() == before
    assert "is kept in memory only" in caplog.text
    assert store.quarantined(stored.environment, name) == refused


def test_a_damaged_record_that_another_process_replaces_is_not_removed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    path, stored = written(open_store(cache_dir))
    path.write_bytes(b"damaged")
    wait_for_none(monkeypatch)
    store = open_store(cache_dir)
    with Folder(store.layout).lock(f"records-{stored.digest[:2]}", 0):
        assert look_up(store) is None
        assert path.exists()
    assert look_up(store) is None
    assert not path.exists()


def test_to_pin_what_is_gone_changes_nothing(cache_dir: Path):
    store = open_store(cache_dir)
    store.pin_record(record(measured("a")))
    assert list(store.record_paths()) == []
