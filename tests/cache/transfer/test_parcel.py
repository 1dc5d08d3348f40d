"""Chosen entries as bytes, and back."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.cache.guard import MAX_DOCUMENT_BYTES
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.cache.transfer import parcel, tape
from inductor_plugin.cache.transfer.archive import Imported, import_archive, import_bytes
from inductor_plugin.cache.transfer.kernels import copied_from, copy_kernels
from inductor_plugin.errors import ArchiveError
from tests.support.cache import archives
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)

FAILURE = {"status": "hung", "reason": "r", "candidate": "bad"}


def filled(path: Path, **options: Any) -> tuple[Store, Record]:
    """Return a cache with a record, and what has failed on its problem and on another one."""
    store = open_store(path, **options)
    environment = store.put_environment(ENVIRONMENT)
    known = store.put_record(record(measured("a"), measured("bad", None), decision=decision("a")))
    for digest in (known.digest, "f" * 64):
        store.quarantine(environment, quarantine_name("bad", digest), FAILURE)
    return store, known


def packed(store: Store, known: Record) -> bytes:
    data = parcel.of_record(store, known.environment, known.op, known.digest)
    assert data is not None
    return data


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_record_comes_with_its_environment_and_the_quarantine_on_its_problem(
    in_memory: bool, tmp_path: Path
) -> None:
    source, known = filled(tmp_path / "a", memory_only=in_memory)
    target = open_store(tmp_path / "b")
    parcel.take_record(target, packed(source, known), "x")
    assert target.record(known.environment, known.op, known.digest) == known
    assert target.environment(known.environment) == ENVIRONMENT
    (failed,) = target.iter_quarantine()
    assert failed.candidate == quarantine_name("bad", known.digest)
    assert target.verify() == []


def test_what_only_the_second_cache_knows_is_packed(tmp_path: Path) -> None:
    _, known = filled(tmp_path / "second")
    store = open_store(tmp_path / "a", second=tmp_path / "second")
    target = open_store(tmp_path / "b")
    parcel.take_record(target, packed(store, known), "x")
    assert target.record(known.environment, known.op, known.digest) == known
    assert target.environment(known.environment) == ENVIRONMENT


def test_a_record_that_is_gone_is_none(tmp_path: Path) -> None:
    store, known = filled(tmp_path / "a")
    store.remove_record(known.environment, known.op, known.digest)
    assert parcel.of_record(store, known.environment, known.op, known.digest) is None


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_kernel_comes_with_its_files(in_memory: bool, tmp_path: Path) -> None:
    source = open_store(tmp_path / "a", memory_only=in_memory)  # files in memory go with it
    entry = put_library(source)
    target = open_store(tmp_path / "b")
    assert import_bytes(target, parcel.of_kernel(entry), "x") == Imported(kernels=1, libraries=1)
    kernel = target.kernel(entry.digest)
    assert kernel is not None
    assert (kernel.key, kernel.files) == (kernel_key(), entry.files)
    assert kernel.path("kernel.so").read_bytes() == b"library"


def test_what_is_this_caches_own_affair_does_not_travel(tmp_path: Path) -> None:
    source, known = filled(tmp_path / "a")
    source.pin_record(known)
    target = open_store(tmp_path / "b")
    parcel.take_record(target, packed(source, known), "x")
    assert [each.pinned for each in target.iter_records()] == [False]
    entry = put_library(source)
    copy_kernels(target, copied_from(source.root, [entry]))
    kernel = target.kernel(entry.digest)
    assert kernel is not None
    assert kernel.taken is not None
    data = gzip.decompress(parcel.of_kernel(kernel))
    assert b"kernel.so" in data
    assert b'"taken"' not in data
    assert str(source.root).encode() not in data


def test_equal_entries_give_equal_bytes(tmp_path: Path) -> None:
    store, known = filled(tmp_path / "a")
    assert packed(store, known) == packed(open_store(tmp_path / "a"), known)


def test_a_cache_that_cannot_be_written_keeps_what_is_imported_in_memory(tmp_path: Path) -> None:
    source, known = filled(tmp_path / "a")
    entry = put_library(source)
    target = open_store(tmp_path / "b", memory_only=True)
    parcel.take_record(target, packed(source, known), "x")
    import_bytes(target, parcel.of_kernel(entry), "y")
    assert target.record(known.environment, known.op, known.digest) == known
    assert [failed.fields["reason"] for failed in target.iter_quarantine()] == ["r"]
    kernel = target.kernel(entry.digest)
    assert kernel is not None
    assert kernel.path("kernel.so").read_bytes() == b"library"
    assert not (tmp_path / "b").exists()


def test_the_bytes_are_an_archive_that_can_be_imported(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(packed(*filled(tmp_path / "a")))
    taken = import_archive(open_store(tmp_path / "b"), file, trusted=True)
    assert taken == Imported(records=1, quarantined=1, environments=1)


def test_a_record_merges_and_what_is_known_is_not_written_again(tmp_path: Path) -> None:
    source, known = filled(tmp_path / "a")
    target = open_store(tmp_path / "b")
    target.put_record(record(measured("c")))
    for _ in range(2):
        parcel.take_record(target, packed(source, known), "x")
    (merged,) = target.iter_records()
    assert set(merged.candidates) == {"a", "bad", "c"}
    (path,) = target.record_paths()
    before = path.stat()
    parcel.take_record(target, packed(source, known), "x")
    assert path.stat().st_ino == before.st_ino


def test_a_record_comes_with_nothing_else(tmp_path: Path) -> None:
    """No library gets into a cache as a part of a record."""
    data = parcel.of_kernel(put_library(open_store(tmp_path / "a")))
    target = open_store(tmp_path / "b")
    with pytest.raises(ArchiveError, match=r"x holds .*entry.json is no part of a record"):
        parcel.take_record(target, data, "x")
    assert list(target.iter_kernels()) == []


def damages(data: bytes) -> list[bytes]:
    return [b"", b"x", data[:-1], data[: len(data) // 2], data[:99] + b"!" + data[100:]]


def test_a_damaged_record_changes_nothing(tmp_path: Path) -> None:
    target = open_store(tmp_path / "b")
    for damaged in damages(packed(*filled(tmp_path / "a"))):
        with pytest.raises(ArchiveError, match="the name"):
            parcel.take_record(target, damaged, "the name")
    assert list(target.iter_records()) == []


@pytest.mark.parametrize("name", ["records/e/mm/d.json", "records/e/environment.json"])
def test_a_damaged_entry_in_a_sound_archive_changes_nothing(name: str, tmp_path: Path) -> None:
    data = archives.write(tmp_path / "x", {name: b"{}"}).read_bytes()
    with pytest.raises(ArchiveError, match="holds a damaged entry: it does not start with its"):
        parcel.take_record(open_store(tmp_path / "b"), data, "x")


def test_an_archive_with_a_member_too_few_or_too_large_is_refused(tmp_path: Path) -> None:
    name, target = "records/e/mm/d.json", open_store(tmp_path / "b")
    short = archives.write(tmp_path / "x", {}, {name: "0" * 64}).read_bytes()
    with pytest.raises(
        ArchiveError, match=r"lacks 'records/e/mm/d\.json', or its checksum differs"
    ):
        parcel.take_record(target, short, "x")
    large = archives.write(tmp_path / "x", {name: bytes(MAX_DOCUMENT_BYTES + 1)}).read_bytes()
    with pytest.raises(ArchiveError, match="the limit is 8388608"):
        parcel.take_record(target, large, "x")


def test_a_damaged_kernel_changes_nothing(tmp_path: Path) -> None:
    target = open_store(tmp_path / "b")
    for damaged in damages(parcel.of_kernel(put_library(open_store(tmp_path / "a")))):
        with pytest.raises(ArchiveError, match="the name"):
            import_bytes(target, damaged, "the name")
    assert list(target.iter_kernels()) == []
    assert list((tmp_path / "b" / "private").iterdir()) == []


def test_a_manifest_that_names_more_than_any_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = packed(*filled(tmp_path / "a"))  # a record, its environment and a failure
    for limit in (3, 2):
        monkeypatch.setattr(tape, "MAX_MEMBERS", limit)
        if limit == 3:
            parcel.take_record(open_store(tmp_path / "b"), data, "x")
            continue
        with pytest.raises(ArchiveError, match="names 3 members; the limit is 2"):
            parcel.take_record(open_store(tmp_path / "c"), data, "x")
