from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, digest_of, document, open_store
from inductor_plugin.errors import CacheError, CacheRefusedError
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    give_away,
    kernel_key,
    measured,
    put_library,
    record,
)


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_new_directory_is_closed_to_others(cache_dir: Path):
    open_store(cache_dir)
    assert cache_dir.stat().st_mode & 0o777 == 0o700
    assert document.load((cache_dir / "schema.json").read_bytes())["format"] == 1


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_directory_others_may_write_is_refused(cache_dir: Path, mode: int):
    cache_dir.mkdir()
    cache_dir.chmod(mode)
    with pytest.raises(CacheRefusedError, match="chmod go-w"):
        open_store(cache_dir)


def test_a_folder_inside_that_others_may_write_is_refused(cache_dir: Path):
    open_store(cache_dir)
    (cache_dir / "kernels").mkdir()
    (cache_dir / "kernels").chmod(0o777)
    with pytest.raises(CacheRefusedError, match="kernels may be written by everyone"):
        open_store(cache_dir)


def test_a_directory_of_someone_else_is_refused(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    open_store(cache_dir)
    give_away(cache_dir, monkeypatch)
    with pytest.raises(CacheRefusedError, match="belongs to user"):
        open_store(cache_dir)


def test_a_kernel_that_cannot_be_published_leaves_nothing(cache_dir: Path, tmp_path: Path):
    store = open_store(cache_dir)
    with pytest.raises(CacheError, match="is not at"):
        store.put_kernel(kernel_key(), {"kernel.so": b"x", "source.cpp": tmp_path / "none"})
    assert list(store.layout.private.iterdir()) == []
    assert store.degraded is None
    assert put_library(store).files["kernel.so"]


def test_a_kernel_is_found_by_the_next_store(cache_dir: Path):
    store = open_store(cache_dir)
    first = put_library(store)
    assert first.path("kernel.so").read_bytes() == b"library"
    assert first.path("source.cpp").read_bytes() == b"int f();"

    for other in (store, open_store(cache_dir)):
        assert other.kernel(kernel_key().digest) == first
    with pytest.raises(KeyError, match="no 'other'"):
        first.path("other")


def test_publishing_again_keeps_what_is_there(cache_dir: Path):
    store = open_store(cache_dir)
    store.put_kernel(kernel_key(), {"kernel.so": b"first"})
    again = store.put_kernel(kernel_key(), {"kernel.so": b"second"})
    assert again.path("kernel.so").read_bytes() == b"first"


@pytest.mark.parametrize("name", ["../x", "a/b", "entry.json", ""])
def test_a_kernels_file_cannot_leave_its_folder(cache_dir: Path, name: str):
    with pytest.raises(CacheError, match="plain file names"):
        open_store(cache_dir).put_kernel(kernel_key(), {name: b"x"})


@pytest.mark.parametrize("file", ["kernel.so", "source.cpp", "entry.json"])
@pytest.mark.parametrize("how", ["flipped", "emptied", "deleted"])
def test_a_damaged_kernel_is_a_reported_miss_and_built_again(
    cache_dir: Path, file: str, how: str, caplog: pytest.LogCaptureFixture
):
    store = open_store(cache_dir)
    path = put_library(store).folder / file
    if how == "flipped":
        flip_byte(path)
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    assert [finding.kind for finding in store.verify()] == ["kernel"]
    assert store.kernel(kernel_key().digest) is None
    assert store.kernel(kernel_key().digest) is None
    assert len([kept for kept in caplog.records if "damaged" in kept.message]) == 1
    assert store.counters()["corrupt"] == 1
    assert not path.parent.exists()
    assert put_library(store).path("kernel.so").read_bytes() == b"library"
    assert store.verify() == []


def test_a_damaged_kernel_can_be_replaced_by_who_holds_its_lock(cache_dir: Path):
    store = open_store(cache_dir)
    flip_byte(put_library(store).path("kernel.so"))
    with store.lock_kernel(kernel_key().digest, 0):
        assert store.kernel(kernel_key().digest) is None
        store.put_kernel(kernel_key(), {"kernel.so": b"new"})
    assert store.verify() == []


def test_a_record_comes_back_in_this_store_and_the_next(cache_dir: Path):
    store = open_store(cache_dir)
    kept = record(measured("a", 0.123456789), decision=decision("a"))
    written = store.put_record(kept)
    assert written.candidates["a"].median_ms == 0.123457
    place = (kept.environment, kept.op, kept.digest)
    assert store.record(*place) == written
    assert open_store(cache_dir).record(*place) == written
    assert store.record(kept.environment, "bmm", kept.digest) is None
    assert store.has_records(kept.environment)
    assert not store.has_records("0" * 64)


def test_what_was_only_compiled_is_no_measurement(tmp_path: Path):
    store = open_store(tmp_path)
    kept = record(measured("a", None, status="skipped"))
    store.put_record(kept)
    assert not store.has_records(kept.environment)
    assert not open_store(tmp_path).has_records(kept.environment)


def test_a_record_changed_by_another_process_is_seen(cache_dir: Path):
    mine, theirs = open_store(cache_dir), open_store(cache_dir)
    stored = record(measured("a"))
    place = (stored.environment, stored.op, stored.digest)
    mine.put_record(stored)
    theirs.put_record(record(measured("b")))
    kept = mine.record(*place)
    assert kept is not None
    assert set(kept.candidates) == {"a", "b"}


def test_a_damaged_record_is_a_reported_miss_and_removed(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
):
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    stored = record(measured("a"))
    place = (stored.environment, stored.op, stored.digest)
    store.put_record(stored)
    path = store.layout.record(*place)
    flip_byte(path)
    assert [finding.path for finding in store.verify()] == [path]
    assert store.record(*place) is None
    assert store.record(*place) is None
    warnings = [kept for kept in caplog.records if str(path) in kept.message]
    assert len(warnings) == 1
    assert store.put_record(record(measured("b"))).candidates.keys() == {"b"}
    assert store.verify() == []


def test_a_record_under_anothers_name_is_damaged(cache_dir: Path):
    store = open_store(cache_dir)
    kept, other = record(measured("a")), record(measured("a"), problem=2)
    store.put_record(kept)
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    path.rename(store.layout.record(other.environment, other.op, other.digest))
    assert "another record" in store.verify()[0].reason
    assert store.record(other.environment, other.op, other.digest) is None


def test_environments_keep_their_fields(cache_dir: Path):
    digest = open_store(cache_dir).put_environment(ENVIRONMENT)
    assert digest == digest_of(ENVIRONMENT)
    assert open_store(cache_dir).environment(digest) == ENVIRONMENT
    assert open_store(cache_dir).environment("0" * 64) is None


def test_a_retried_candidate_is_unseen_again_and_only_there(cache_dir: Path):
    store = open_store(cache_dir)
    kept = record(measured("good"), measured("bad", None, status="hung"), pinned=True)
    other = record(measured("bad", None, status="hung"), problem=2)
    fared_well = record(measured("bad"), digest=f"{kept.digest[:12]}{'0' * 52}")
    for written in (kept, other, fared_well):
        store.put_record(written)
    name = f"bad-{kept.digest[:12]}"
    for candidate in (name, f"bad-{other.digest[:12]}"):
        store.quarantine(kept.environment, candidate, {"candidate": "bad", "status": "hung"})
    refused = store.quarantined(kept.environment, name)
    assert refused is not None
    assert refused.failure() == ("bad", kept.digest[:12])
    assert store.retry(refused) == 1
    assert store.retry(refused) == 0
    for reader in (store, open_store(cache_dir)):
        assert reader.quarantined(kept.environment, name) is None
        left = [reader.record(w.environment, w.op, w.digest) for w in (kept, other, fared_well)]
        assert [set(w.candidates) for w in left if w] == [{"good"}, {"bad"}, {"bad"}]
        assert left[0] is not None
        assert left[0].pinned
    assert [entry.candidate for entry in store.iter_quarantine()] == [f"bad-{other.digest[:12]}"]


def test_a_retried_candidate_that_names_no_problem_only_leaves_the_quarantine(cache_dir: Path):
    store = open_store(cache_dir)
    stored = store.put_record(record(measured("bad", None, status="hung")))
    store.quarantine(stored.environment, "bad", {"status": "hung"})
    refused = store.quarantined(stored.environment, "bad")
    assert refused is not None
    assert refused.failure() is None
    assert store.retry(refused) == 0
    assert store.quarantined(stored.environment, "bad") is None
    assert store.record(stored.environment, stored.op, stored.digest) == stored


def test_a_read_only_cache_releases_nothing(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    kept = record(measured("bad", None, status="hung"))
    name = f"bad-{kept.digest[:12]}"
    writable = open_store(cache_dir)
    writable.put_record(kept)
    writable.quarantine(kept.environment, name, {"candidate": "bad", "status": "hung"})

    def no_access(path: object, mode: int) -> bool:
        return False

    monkeypatch.setattr(os, "access", no_access)
    store = open_store(cache_dir)
    refused = store.quarantined(kept.environment, name)
    assert refused is not None
    with pytest.raises(CacheError, match="stays in quarantine: it is read-only"):
        store.retry(refused)
    assert writable.quarantined(kept.environment, name) is not None


def test_counters_add_up(cache_dir: Path):
    open_store(cache_dir).add_counts(hits=2, misses=1)
    open_store(cache_dir).add_counts(hits=3)
    assert open_store(cache_dir).counters() == {"hits": 5, "misses": 1}


def use_everything(store: Store) -> None:
    kept = record(measured("a"), decision=decision("a"))
    store.put_environment(ENVIRONMENT)
    written = store.put_record(kept)
    assert store.record(kept.environment, kept.op, kept.digest) == written
    assert set(store.put_record(record(measured("b"))).candidates) == {"a", "b"}
    entry = put_library(store)
    assert entry.path("kernel.so").read_bytes() == b"library"
    assert store.kernel(kernel_key().digest) == entry
    store.quarantine("e", "c", {"status": "hung"})
    assert store.quarantined("e", "c") is not None
    store.add_counts(hits=1)
    assert len(list(store.iter_records())) == 1
    with store.lock_kernel("k", 1):
        pass


def test_a_place_where_nothing_can_be_made_degrades_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("in the way")
    store = open_store(tmp_path / "file" / "cache")
    assert store.degraded is not None
    assert caplog.records == []
    use_everything(store)
    (record,) = caplog.records
    assert record.getMessage().startswith("inductor-plugin: the cache directory ")


@pytest.mark.parametrize("odd", ["component", "path", "zero byte", "file"])
def test_a_path_that_can_be_no_cache_is_one_warning(
    tmp_path: Path, odd: str, caplog: pytest.LogCaptureFixture
):
    root = {
        "component": tmp_path / ("n" * 300),
        "path": Path(str(tmp_path), *(["n" * 200] * 19)),
        "zero byte": tmp_path / "a\0b",
        "file": tmp_path / "file",
    }[odd]
    if odd == "file":
        root.touch()
    store = open_store(root)
    use_everything(store)
    assert store.verify() == []
    assert store.usage().records == 0
    assert [r.message.count("is not written to") for r in caplog.records] == [1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_fails_later_degrades_with_one_warning(
    cache_dir: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    store = open_store(cache_dir)
    place = record()
    store.put_record(record(measured("early", 2.0)))

    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("inductor_plugin.cache.atomic.write", fails)
    monkeypatch.setattr("inductor_plugin.cache.atomic.private_path", fails)
    store.put_record(record(measured("late", 3.0)))
    assert os.strerror(code) in str(store.degraded)
    kept = store.record(place.environment, place.op, place.digest)
    assert kept is not None
    assert set(kept.candidates) == {"early", "late"}
    put_library(store)
    assert len([stored for stored in caplog.records if stored.levelno >= logging.WARNING]) == 1


def test_a_read_only_cache_is_still_read(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stored = record(measured("a"))
    writable = open_store(cache_dir)
    writable.put_record(stored)
    put_library(writable)
    before = sorted(cache_dir.rglob("*"))

    def no_access(path: object, mode: int) -> bool:
        return False

    monkeypatch.setattr(os, "access", no_access)
    store = open_store(cache_dir)
    assert store.degraded == "it is read-only"
    assert store.record(stored.environment, stored.op, stored.digest) is not None
    assert store.kernel(kernel_key().digest) is not None
    store.put_environment({"device": "cpu"})
    store.add_counts(hits=1)
    assert caplog.records == []  # nothing was missing, so there is nothing to warn of
    store.put_record(record(measured("b")))
    store.put_record(record(measured("c")))
    assert len(caplog.records) == 1
    kept = store.record(stored.environment, stored.op, stored.digest)
    assert kept is not None
    assert set(kept.candidates) == {"a", "b", "c"}
    assert sorted(cache_dir.rglob("*")) == before


def test_a_memory_store_touches_no_disk(cache_dir: Path, caplog: pytest.LogCaptureFixture):
    use_everything(open_store(cache_dir, memory_only=True))
    assert not cache_dir.exists()
    assert caplog.records == []


def test_a_cache_of_another_format_is_left_alone(cache_dir: Path):
    open_store(cache_dir).put_record(record(measured("a")))
    (cache_dir / "schema.json").write_bytes(document.dump({"format": 99}))
    before = {path: path.stat().st_mtime_ns for path in cache_dir.rglob("*")}
    store = open_store(cache_dir)
    assert "format 99" in str(store.degraded)
    assert list(store.iter_records()) == []
    store.put_record(record(measured("b")))
    assert {path: path.stat().st_mtime_ns for path in cache_dir.rglob("*")} == before


def test_a_cache_deleted_under_a_running_process_is_made_again(cache_dir: Path):
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    stored = store.put_record(record(measured("a")))
    for path in sorted(cache_dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    cache_dir.rmdir()
    assert store.record(stored.environment, stored.op, stored.digest) is None
    store.put_record(record(measured("b")))
    put_library(store)
    assert store.degraded is None
    assert cache_dir.stat().st_mode & 0o777 == 0o700
    assert store.verify() == []
    assert open_store(cache_dir).environment(stored.environment) == ENVIRONMENT


def test_a_lookup_is_fast(cache_dir: Path):
    store = open_store(cache_dir)
    stored = store.put_record(record(*(measured(f"candidate-{i}") for i in range(20))))
    place = (stored.environment, stored.op, stored.digest)
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(20):
        fresh = open_store(cache_dir)
        for times in (cold, warm):
            started = time.perf_counter()
            assert fresh.record(*place) is not None
            times.append(time.perf_counter() - started)
    # The best of twenty: the machine may be busy with something else.
    assert min(cold) < 1e-3
    assert min(warm) < 50e-6
