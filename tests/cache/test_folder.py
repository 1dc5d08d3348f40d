"""When nothing is written to disk, and when it is tried again."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, document, open_store
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.folder import ALLOWANCE_PREFIX, RETRY_S, Folder
from inductor_plugin.cache.graph import GraphEntry
from inductor_plugin.cache.layout import Layout
from inductor_plugin.errors import CacheError
from tests.support.cache.locks import wait_for_none
from tests.support.cache.records import kernel_key, measured, put_library, record


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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_counters_that_cannot_be_written_anew_stay(
    cache_dir: Path, code: int, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(cache_dir)
    counts = {f"{ALLOWANCE_PREFIX}e": -3, "hits": 1}
    store.add_counts(**counts)

    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr("inductor_plugin.cache.atomic.write", fails)
        with pytest.raises(
            CacheError, match="the counters stay as they are: .*" + os.strerror(code)
        ):
            store.zero_counters()
    assert store.counters() == counts
    open_store(cache_dir).zero_counters()
    assert store.counters() == {f"{ALLOWANCE_PREFIX}e": -3}


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


PLACE = (record().environment, record().op, record().digest)


def put_record(store: Store) -> Path:
    store.put_record(record(measured("a")))
    return store.layout.record(*PLACE)


def put_quarantined(store: Store) -> Path:
    store.quarantine("e", "c", {"status": "hung"})
    return store.layout.quarantine("e", "c")


def add_quarantined(store: Store) -> Path:
    failed = open_store("/nowhere", memory_only=True).quarantine("e", "c", {"status": "wrong"})
    store.add_quarantined(failed)
    return store.layout.quarantine("e", "c")


def put_graph(store: Store) -> Path:
    graph = GraphEntry("p", "f", "forward", ("e/mm/1",), 1.0)
    store.graphs.put(graph)
    return store.layout.graph(graph.digest)


Shelf = tuple[Callable[[Store], Path], Callable[[Store], object]]
"""Puts an entry and returns its file; looks for the entry."""
SHELVES: dict[str, Shelf] = {
    "record": (put_record, lambda store: store.record(*PLACE)),
    "kernel": (
        lambda store: put_library(store).folder / ENTRY,
        lambda store: store.kernel(kernel_key().digest),
    ),
    "quarantine": (put_quarantined, lambda store: store.quarantined("e", "c")),
    "quarantine of others": (add_quarantined, lambda store: store.quarantined("e", "c")),
    "graph": (put_graph, lambda store: store.graphs.everything()),
}


@pytest.mark.parametrize("shelf", SHELVES)
def test_what_is_damaged_again_after_it_was_replaced_counts_again(cache_dir: Path, shelf: str):
    put, look = SHELVES[shelf]
    store = open_store(cache_dir)
    for _ in range(2):
        put(store).write_bytes(b"damaged")
        for _ in range(2):
            look(store)
    assert store.counters() == {"corrupt": 2}


@pytest.mark.parametrize(("age_s", "noted"), [(5000.0, True), (30.0, False)])
def test_a_use_is_noted_once_a_minute_and_is_no_change(cache_dir: Path, age_s: float, noted: bool):
    path = put_record(open_store(cache_dir))
    then = time.time() - age_s
    os.utime(path, (then, then))
    assert open_store(cache_dir).record(*PLACE) is not None
    status = path.stat()
    assert status.st_mtime == pytest.approx(then, abs=1e-3)
    assert (status.st_atime > then + 1) is noted


def test_sums_are_added_and_zeroed_under_one_lock(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    wait_for_none(monkeypatch)
    store = open_store(cache_dir)
    store.add_counts(hits=1)
    with Folder(store.layout).lock("counters", 0):  # by another process, which has read 1
        store.add_counts(hits=2)
        with pytest.raises(CacheError, match="another process"):
            store.zero_counters()
        assert store.counters() == {"hits": 1}
    store.zero_counters()
    assert store.counters() == {}


def test_what_is_written_is_its_owners_alone(cache_dir: Path):
    store = open_store(cache_dir)
    for path in (put_record(store), put_quarantined(store), store.layout.schema):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_first_reason_stays_and_a_closed_directory_is_never_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    clock, full = Clock(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("inductor_plugin.cache.folder.time", clock)
    quiet, closed = Folder(Layout(tmp_path)), Folder(Layout(tmp_path))
    quiet.degrade("it is read-only", quietly=True)
    closed.close("it is only read")
    for folder in (quiet, closed):
        folder.degrade(full)
    assert caplog.records == []  # until there is something to write
    clock.now += 10 * RETRY_S
    assert (quiet.degraded, closed.degraded) == ("it is read-only", "it is only read")
    quiet.tell_of_memory()
    closed.tell_of_memory()
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == [
        "it is read-only; what is tuned now is kept in memory only"
    ]
    Folder(Layout(tmp_path)).degrade(full)
    assert len(caplog.records) == 2


def test_a_directory_that_is_only_looked_at_is_not_made(cache_dir: Path):
    store = open_store(cache_dir, create=False)
    assert "does not exist" in str(store.degraded)
    put_record(store)
    put_library(store)
    assert store.kernels_like("gemm", "64x64", "x86_64") == list(store.iter_kernels())
    assert not cache_dir.exists()


def test_a_cache_that_was_opened_to_be_read_is_not_changed(cache_dir: Path):
    writable = open_store(cache_dir)
    kernel = put_library(writable)
    kept = writable.put_record(record(measured("a")))
    writable.quarantine(kept.environment, "bad", {"candidate": "bad", "status": "hung"})
    writable.add_counts(hits=3)
    (cache_dir / "schema.json").write_text("damaged")
    before = content_of(cache_dir)
    store = open_store(cache_dir, read_only=True)
    damage = next(each for each in store.verify() if each.kind == "schema")
    refused: list[Callable[[], object]] = [
        lambda: store.release(kept.environment, "bad"),
        lambda: store.remove_record(kept.environment, kept.op, kept.digest),
        lambda: store.remove_kernel(kernel.digest),
        lambda: store.pin_record(kept),
        lambda: store.repair(damage),
        lambda: store.prune(older_than_s=0.0),
        store.clear,
        store.zero_counters,
    ]
    for change in refused:
        with pytest.raises(
            CacheError,
            match=re.escape(f"nothing is changed in {cache_dir}: it was opened read-only"),
        ):
            change()
        assert content_of(cache_dir) == before
    pruned = store.prune(older_than_s=0.0, dry_run=True)
    assert (pruned.kernels, pruned.records) == (1, 1)
    assert content_of(cache_dir) == before
    assert open_store(cache_dir).remove_kernel(kernel.digest)


def content_of(cache_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in cache_dir.rglob("*") if path.is_file()}
