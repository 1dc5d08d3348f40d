from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import Quarantined, document, open_store
from inductor_plugin.cache import quarantine as quarantine_module
from inductor_plugin.cache.folder import Folder, Listing
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.quarantine import MISHAPS, is_condemned, parse_quarantined

ENTRY: dict[str, Any] = {
    "format": 1,
    "environment": "e",
    "candidate": "c",
    "status": "hung",
    "reason": "r",
    "created": 1.0,
    "updated": 2.0,
    "count": 1,
    "fields": {"candidate": "c"},
}


def put(folder: Path, status: str, **options: bool) -> Quarantined:
    return open_store(folder).quarantine("e", "c", {"status": status, "reason": "x"}, **options)


@pytest.mark.parametrize("status", ["wrong", "red_zone", "raised", "compile_failed", "failed"])
def test_what_a_candidate_did_by_itself_condemns_it_at_once(cache_dir: Path, status: str):
    assert put(cache_dir, status).condemned
    assert is_condemned(status, 0)


@pytest.mark.parametrize("status", sorted(MISHAPS))
def test_a_mishap_condemns_the_second_time(cache_dir: Path, status: str):
    assert not put(cache_dir, status).condemned
    stored = open_store(cache_dir).quarantined("e", "c")
    assert stored is not None
    assert (stored.condemned, stored.count) == (False, 1)
    assert put(cache_dir, status).condemned
    third = put(cache_dir, status)
    assert (third.condemned, third.count) == (True, 3)


def test_a_mishap_in_company_or_under_tight_limits_does_not_count(cache_dir: Path):
    for _ in range(4):
        assert not put(cache_dir, "hung", counts=False).condemned
    assert not put(cache_dir, "crashed").condemned
    assert not put(cache_dir, "hung", counts=False).condemned
    assert put(cache_dir, "out_of_memory").condemned
    assert put(cache_dir, "hung", counts=False).condemned


def test_who_was_condemned_stays_so_after_a_mishap(cache_dir: Path):
    assert put(cache_dir, "wrong").condemned
    assert put(cache_dir, "hung", counts=False).condemned


@pytest.mark.parametrize("mishaps", [None, "1", True, 1.0, -1, [1]])
def test_an_odd_number_of_mishaps_condemns(mishaps: Any):
    data = document.dump({**ENTRY, "fields": {"mishaps": mishaps}})
    assert parse_quarantined(data).condemned


@pytest.mark.parametrize(("count", "condemned"), [(1, False), (2, True)])
def test_of_an_older_entry_each_failure_is_a_mishap(count: int, *, condemned: bool):
    data = document.dump({**ENTRY, "status": "hung", "count": count, "fields": {}})
    assert parse_quarantined(data).condemned == condemned


def test_an_entry_of_another_cache_replaces_one_that_does_not_condemn(
    cache_dir: Path, tmp_path: Path
):
    mishap, condemned = put(cache_dir, "hung"), put(tmp_path / "other", "wrong")
    store = open_store(cache_dir)
    assert not store.add_quarantined(mishap)
    assert store.add_quarantined(condemned)
    assert not store.add_quarantined(mishap)
    stored = store.quarantined("e", "c")
    assert stored is not None
    assert stored.status == "wrong"


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_entries_of_other_caches_the_same_is_kept_in_any_order(
    cache_dir: Path, *, swapped: bool
):
    base = parse_quarantined(document.dump(ENTRY))
    fewer = replace(base, fields={"mishaps": 0}, updated=9.0)
    more = replace(base, fields={"mishaps": 1}, updated=3.0)
    later = replace(more, updated=4.0)
    store = open_store(cache_dir)
    for entry in (later, more, fewer) if swapped else (fewer, more, later):
        store.add_quarantined(entry)
    assert open_store(cache_dir).quarantined("e", "c") == later


def test_adding_and_releasing_wait_for_a_process_that_counts(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(quarantine_module, "_LOCK_S", 0.05)
    entry = put(cache_dir, "hung")
    store = open_store(cache_dir)
    with Folder(store.layout).lock("quarantine-e", 0):
        assert not store.release("e", "c")
        assert store.add_quarantined(replace(entry, status="wrong"))
        assert store.unwritten == 1
    assert "inductor-plugin: c stays in quarantine" in caplog.text
    assert open_store(cache_dir).quarantined("e", "c") == entry
    assert store.release("e", "c")
    assert open_store(cache_dir).quarantined("e", "c") is None


@pytest.mark.parametrize(
    "odd",
    [
        {"candidate": 5},
        {"environment": None},
        {"fields": []},
        {"count": "x"},
        {"count": -1},
        {"updated": "x"},
        {"created": float("1e300")},
        {"status": ["hung"]},
        {"reason": None},
    ],
)
def test_an_entry_with_an_odd_field_is_damaged(cache_dir: Path, odd: dict[str, Any]):
    with pytest.raises(ValueError, match="not a quarantine entry"):
        parse_quarantined(document.dump({**ENTRY, **odd}))
    store = open_store(cache_dir)
    path = store.layout.quarantine("e", "c")
    path.parent.mkdir(parents=True)
    path.write_bytes(document.dump({**ENTRY, **odd}))
    assert store.quarantined("e", "c") is None
    assert list(store.iter_quarantine()) == []
    assert [damage.kind for damage in store.verify() if damage.path == path] == ["quarantine"]


def test_an_entry_under_another_name_is_damaged(tmp_path: Path):
    data = document.dump({**ENTRY, "environment": "../../x", "candidate": "../evil"})
    assert parse_quarantined(data).candidate == "../evil"
    with pytest.raises(ValueError, match="another name"):
        parse_quarantined(data, tmp_path / "e" / "c.json")


def test_fields_of_a_newer_version_are_kept(cache_dir: Path):
    put(cache_dir, "hung")
    store = open_store(cache_dir)
    path = store.layout.quarantine("e", "c")
    path.write_bytes(document.dump({**document.load(path.read_bytes()), "seen_by": ["x"]}))
    assert store.quarantine("e", "c", {"status": "hung"}).condemned
    assert document.load(path.read_bytes())["seen_by"] == ["x"]


def test_another_versions_entry_is_neither_read_nor_replaced(cache_dir: Path):
    put(cache_dir, "hung")
    path = open_store(cache_dir).layout.quarantine("e", "c")
    path.write_bytes(document.dump({**ENTRY, "format": 2}))
    before = path.read_bytes()
    store = open_store(cache_dir)
    assert store.quarantined("e", "c") is None
    assert store.quarantine("e", "c", {"status": "wrong"}).condemned
    assert store.quarantined("e", "c") is not None  # in memory
    assert path.read_bytes() == before
    assert "corrupt" not in store.counters()


def test_an_entry_that_cannot_be_read_is_not_replaced(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    put(cache_dir, "wrong")
    store = open_store(cache_dir)
    before = store.layout.quarantine("e", "c").read_bytes()

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("inductor_plugin.cache.quarantine.read", fails)
        store.quarantine("e", "c", {"status": "hung"})
    assert store.layout.quarantine("e", "c").read_bytes() == before


def test_quarantine_counts_and_releases(cache_dir: Path):
    store = open_store(cache_dir)
    assert store.quarantined("e", "c") is None
    for reason in ("first", "second"):
        store.quarantine("e", "c", {"status": "hung", "reason": reason})
    entry = open_store(cache_dir).quarantined("e", "c")
    assert entry is not None
    assert (entry.status, entry.reason, entry.count) == ("hung", "second", 2)
    assert entry.created <= entry.updated
    assert store.usage().quarantined == 1
    assert store.release("e", "c")
    assert not store.release("e", "c")
    assert store.quarantined("e", "c") is None


def test_a_candidates_name_cannot_leave_the_quarantine(cache_dir: Path):
    store = open_store(cache_dir)
    store.quarantine("e", "../../../evil", {"status": "hung"})
    assert store.quarantined("e", "../../../evil") is not None
    assert [path.suffix for path in (cache_dir / "quarantine" / "e").iterdir()] == [".json"]
    assert store.verify() == []


def test_of_many_candidates_only_those_in_quarantine_are_opened(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []

    def opening(path: Path) -> bytes:
        opened.append(path.stem)
        return read(path)

    monkeypatch.setattr("inductor_plugin.cache.folder.read", opening)
    store = open_store(cache_dir)
    assert store.quarantined_among("e", ["a", "b", "c"]) == {}
    put(cache_dir, "wrong")  # another process
    opened.clear()
    assert [e.status for e in store.quarantined_among("e", ["a", "b", "c"]).values()] == ["wrong"]
    assert opened == ["c"]
    assert store.release("e", "c")
    assert store.quarantined_among("e", ["a", "b", "c"]) == {}


def test_a_folder_that_cannot_be_listed_hides_no_entry(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def unknown(listing: Listing, folder: Path) -> None:
        del listing, folder

    put(cache_dir, "wrong")
    monkeypatch.setattr(Listing, "names", unknown)
    assert set(open_store(cache_dir).quarantined_among("e", ["a", "c"])) == {"c"}


def test_what_is_kept_in_memory_is_in_quarantine_too(cache_dir: Path):
    store = open_store(cache_dir, memory_only=True)
    store.quarantine("e", "c", {"status": "wrong"})
    assert set(store.quarantined_among("e", ["a", "c"])) == {"c"}


def test_mishaps_are_counted_under_a_lock(
    cache_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Two processes that count one each would write 1 twice; who cannot lock keeps the entry in memory."""
    monkeypatch.setattr(quarantine_module, "_LOCK_S", 0.05)
    holder = open_store(cache_dir)
    with Folder(holder.layout).lock("quarantine-e", 1.0):
        store = open_store(cache_dir)
        entry = store.quarantine("e", "c", {"status": "hung", "reason": "x"})
    assert not holder.layout.quarantine("e", "c").exists()
    assert "kept in memory only" in caplog.text
    assert store.quarantined("e", "c") == entry


def test_the_time_of_the_first_failure_is_kept(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    times = iter((1000.0, 2000.0))
    monkeypatch.setattr(quarantine_module, "time", SimpleNamespace(time=lambda: next(times)))
    put(cache_dir, "hung")
    again = put(cache_dir, "hung")
    assert (again.created, again.updated, again.count) == (1000.0, 2000.0, 2)


def test_in_memory_too_the_entry_that_says_more_stays_until_it_is_released(cache_dir: Path):
    store = open_store(cache_dir, memory_only=True)
    mishap, condemned = put(cache_dir / "a", "hung"), put(cache_dir / "b", "wrong")
    assert store.add_quarantined(condemned)
    assert not store.add_quarantined(mishap)
    assert store.quarantined("e", "c") == condemned
    assert store.release("e", "c")
    assert not store.release("e", "c")
    assert store.quarantined("e", "c") is None


@pytest.mark.parametrize("way", ["put", "add"])
def test_what_was_kept_in_memory_gives_way_to_what_is_written(
    cache_dir: Path, way: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quarantine_module, "_LOCK_S", 0.05)
    condemned = put(cache_dir / "other", "wrong")
    put(cache_dir, "hung")
    store = open_store(cache_dir)
    with Folder(store.layout).lock("quarantine-e", 1.0):
        store.quarantine("e", "c", {"status": "hung", "reason": "x"}, counts=False)
    assert store.unwritten == 1
    (listed,) = store.iter_quarantine()  # as it is in memory, and not as it is on disk, too
    assert listed.count == 2
    if way == "put":
        store.quarantine("e", "c", {"status": "wrong"})
    else:
        assert store.add_quarantined(condemned)
    assert open_store(cache_dir).release("e", "c")
    assert store.quarantined("e", "c") is None


@pytest.mark.parametrize(
    ("name", "fields", "failure"),
    [
        ("bad-0123", {"candidate": "bad"}, ("bad", "0123")),
        ("bad-", {"candidate": "bad"}, None),  # would be the failure of all problems
        ("other-0123", {"candidate": "bad"}, None),
        ("bad-0123", {}, None),
        ("-0123", {"candidate": ""}, None),
    ],
)
def test_a_failure_is_that_of_a_candidate_on_a_problem(
    name: str, fields: dict[str, Any], failure: tuple[str, str] | None
):
    entry = parse_quarantined(document.dump({**ENTRY, "candidate": name, "fields": fields}))
    assert entry.failure() == failure
