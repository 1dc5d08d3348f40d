"""A second cache: read where the own one has nothing, and never changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from inductor_plugin.cache import Pack, Store, open_second, open_store
from tests.support.cache.records import ENVIRONMENT, kernel_key, measured, put_library, record

PLACE = (record().environment, record().op, record().digest)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory with a record of two candidates, a kernel and an environment."""
    store = open_store(tmp_path / "shared")
    store.put_environment(ENVIRONMENT)
    store.put_record(record(measured("a", 2.0), measured("b", 3.0)))
    put_library(store)
    return store.root


def both(cache_dir: Path, shared: Path) -> Store:
    return open_store(cache_dir, second=shared)


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return what changes when anything in a directory is written, touched or locked."""
    facts: dict[str, tuple[int, int, int]] = {}
    for path in (folder, *folder.rglob("*")):
        status = path.stat()
        facts[str(path)] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return facts


def test_what_the_own_cache_lacks_is_read_in_the_second(cache_dir: Path, shared: Path) -> None:
    store = both(cache_dir, shared)
    stored = store.record(*PLACE)
    assert stored is not None
    assert set(stored.candidates) == {"a", "b"}
    kernel = store.kernel(kernel_key().digest)
    assert kernel is not None
    assert kernel.folder.is_relative_to(shared)
    key = kernel_key()
    assert store.kernels_like(key.template, key.config, key.target) == [kernel]
    assert store.environment(record().environment) == ENVIRONMENT
    assert store.has_records(record().environment)
    assert not store.has_records("0" * 64)
    own = store.put_record(record(measured("a"), problem=2))
    assert store.record(own.environment, own.op, own.digest) == own
    assert list(store.iter_records()) == [own]  # what is listed, exported and pruned is its own


def test_the_own_record_is_merged_with_the_second_ones(cache_dir: Path, shared: Path) -> None:
    store = both(cache_dir, shared)
    store.put_record(record(measured("b", 1.0, measured_at=2000.0), measured("c", 4.0)))
    merged = store.record(*PLACE)
    assert merged is not None
    assert {name: m.median_ms for name, m in merged.candidates.items()} == {
        "a": 2.0,
        "b": 1.0,
        "c": 4.0,
    }
    alone = open_store(cache_dir).record(*PLACE)
    assert alone is not None
    assert set(alone.candidates) == {"b", "c"}


def test_the_own_kernel_comes_first(cache_dir: Path, shared: Path) -> None:
    own = put_library(open_store(cache_dir))
    kernel = both(cache_dir, shared).kernel(kernel_key().digest)
    assert kernel is not None
    assert kernel.folder == own.folder


def test_nothing_in_the_second_is_changed(cache_dir: Path, shared: Path) -> None:
    before = state(shared)
    store = both(cache_dir, shared)
    store.record(*PLACE)
    store.kernel(kernel_key().digest)
    store.put_record(record(measured("c"), problem=2))
    store.put_kernel(kernel_key("other"), {"kernel.so": b"new"})
    store.quarantine(record().environment, "x", {"status": "hung", "reason": "r"})
    store.add_counts(hits=1)
    with store.lock_kernel(kernel_key().digest, 1):
        pass
    store.prune(0)
    assert state(shared) == before


def test_what_is_damaged_in_the_second_is_missing_and_stays(
    cache_dir: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = open_store(shared)
    kernel = source.kernel(kernel_key().digest)
    assert kernel is not None
    kernel.path("kernel.so").write_bytes(b"edited!")
    source.layout.record(*PLACE).write_text("{")
    before = state(shared)
    store = both(cache_dir, shared)
    assert store.record(*PLACE) is None
    assert store.kernel(kernel_key().digest) is None
    assert state(shared) == before
    assert len(caplog.records) == 2
    assert put_library(store).folder.is_relative_to(cache_dir)


def test_a_directory_others_may_write_to_is_not_read_and_told_once(
    cache_dir: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (shared / "kernels").chmod(0o777)
    for _ in range(2):
        assert both(cache_dir, shared).record(*PLACE) is None
    (warning,) = caplog.records
    assert warning.getMessage().startswith(
        "inductor-plugin: the second cache (option cache_read) is not used: "
    )
    assert "may be written by everyone" in warning.getMessage()


@pytest.mark.parametrize("content", ["nothing", "no schema", "another format"])
def test_what_is_no_cache_is_told(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    if content != "nothing":
        folder.mkdir()
    if content == "another format":
        (folder / "schema.json").write_text("{}")
    assert open_second(folder) is None
    assert str(folder) in caplog.text
    assert not folder.exists() or len(list(folder.iterdir())) == (content == "another format")


def test_none_is_named_by_an_empty_path(caplog: pytest.LogCaptureFixture) -> None:
    assert open_second("") is None
    assert caplog.records == []


def test_kernels_alike_of_both_are_sorted_together(
    cache_dir: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = SimpleNamespace(time=lambda: 1.0)
    monkeypatch.setattr("inductor_plugin.cache.entry.time", earlier)
    old = open_store(cache_dir).put_kernel(kernel_key("old"), {"kernel.so": b"x"})
    key = kernel_key()
    alike = both(cache_dir, shared).kernels_like(key.template, key.config, key.target)
    assert [kernel.digest for kernel in alike] == [key.digest, old.digest]


def test_a_kernel_of_the_second_is_held_if_its_files_are_the_same(
    cache_dir: Path, shared: Path
) -> None:
    entry = open_store(shared).kernel(kernel_key().digest)
    assert entry is not None
    store = both(cache_dir, shared)
    assert store.holds_kernel(entry)
    assert not store.holds_kernel(replace(entry, files={**entry.files, "kernel.so": "0" * 64}))
    assert not open_store(cache_dir).holds_kernel(entry)


def test_packs_of_both_are_listed(cache_dir: Path, shared: Path) -> None:
    packs = [Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (name,)) for name in "ab"]
    open_store(cache_dir).put_pack(packs[0])
    open_store(shared).put_pack(packs[1])
    store = both(cache_dir, shared)
    assert store.packs() == packs
    assert store.packed() == {"a", "b"}
    assert [layout.root for layout in store.layouts] == [cache_dir, shared]


def test_a_use_of_the_second_is_not_noted(cache_dir: Path, shared: Path) -> None:
    layout = open_store(shared).layout
    files = [layout.record(*PLACE), layout.kernel(kernel_key().digest) / "entry.json"]
    for file in files:
        os.utime(file, (1000.0, 1000.0))
    store = both(cache_dir, shared)
    assert store.record(*PLACE) is not None
    assert store.kernel(kernel_key().digest) is not None
    assert [file.stat().st_atime for file in files] == [1000.0, 1000.0]
