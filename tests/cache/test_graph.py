"""What the cache keeps of each compiled graph: one small entry, as long as one of its problems has a record."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Record, Store, document, graph, open_store
from inductor_plugin.cache.graph import GraphEntry, parse_graph
from inductor_plugin.cache.transfer.archive import export_archive, import_archive
from tests.support.cache.records import measured, record

FIRST, SECOND = record(measured("a")), record(measured("a"), problem=2)


def entry_of(*records: Record, kind: str = "forward", compiled: float = 1.0) -> GraphEntry:
    places = tuple(each.place for each in records)
    return GraphEntry("/home/x/train.py", "Model.forward", kind, places, compiled)


def kept(store: Store, *records: Record, age_s: float = 0.0) -> Path:
    """Keep the entry of a graph that has these problems, and return its file."""
    entry = entry_of(*records)
    store.graphs.put(entry)
    path, when = store.layout.graph(entry.digest), time.time() - age_s
    os.utime(path, (when, when))
    return path


def test_a_graph_has_one_entry_that_its_last_compile_wrote(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    store.graphs.put(entry_of(FIRST, SECOND))
    again = entry_of(SECOND, FIRST, compiled=2.0)
    store.graphs.put(again)
    backward = entry_of(FIRST, SECOND, kind="backward")
    store.graphs.put(backward)
    assert open_store(cache_dir).graphs.everything() == [again, backward]


def test_problems_of_several_devices_are_read_as_they_were_written(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    other = replace(FIRST, environment="other")
    entry = entry_of(FIRST, other, SECOND)
    store.graphs.put(entry)
    (known,) = store.graphs.everything()
    assert set(known.problems) == set(entry.problems)
    assert known.digest == entry.digest
    assert store.verify() == []


@pytest.mark.parametrize("how", ["read only", "in memory"])
def test_nothing_is_kept_where_nothing_is_written(cache_dir: Path, how: str) -> None:
    open_store(cache_dir)
    options: Any = {"read_only": True} if how == "read only" else {"memory_only": True}
    store = open_store(cache_dir, **options)
    assert not store.graphs.is_kept
    store.graphs.put(entry_of(FIRST))
    assert not store.layout.graphs.exists()
    assert store.graphs.everything() == []


def test_the_oldest_entries_go_when_there_are_too_many(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "MOST_GRAPHS", 3)
    monkeypatch.setattr(graph, "_KEPT", 2)
    store = open_store(cache_dir)
    paths = [kept(store, record(problem=n), age_s=100 - n) for n in range(5)]
    # The fourth leaves two; the fifth is the third of them.
    assert [path.exists() for path in paths] == [False, False, True, True, True]


def test_a_damaged_entry_is_skipped_and_set_aside(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(cache_dir)
    path, sound = kept(store, FIRST), kept(store, SECOND)
    path.write_bytes(path.read_bytes()[:-9])
    assert [entry.problems for entry in store.graphs.everything()] == [(SECOND.place,)]
    assert "damaged cache entry" in caplog.text
    (damage,) = store.verify()
    assert (damage.kind, damage.path) == ("graph", path)
    assert "moved to" in store.repair(damage)
    assert (path.exists(), sound.exists(), store.verify()) == (False, True, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"function": "Other.forward"}, "the name of another graph"),
        ({"problems": {"e": ["mm/1/2"]}}, "no place of a record"),
        ({"problems": {"e": ["mm/1", "mm"]}}, "no place of a record"),
        ({"problems": ["e/mm/1"]}, "problems"),
        ({"compiled": "now"}, "compiled"),
    ],
)
def test_an_entry_of_other_content_is_damaged(change: dict[str, object], reason: str) -> None:
    entry = entry_of(FIRST)
    path = Path(f"{entry.digest}.json")
    assert parse_graph(document.dump(entry.fields()), path) == entry
    with pytest.raises(ValueError, match=reason):
        parse_graph(document.dump({**entry.fields(), **change}), path)
    with pytest.raises(document.ForeignError):
        parse_graph(document.dump({**entry.fields(), **change, "format": 2}), path)


def test_an_entry_goes_with_the_last_record_of_its_problems(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    first = store.put_record(FIRST)
    store.put_record(SECOND)
    path = kept(store, FIRST, SECOND)
    foreign = kept(store, record(problem=3))
    foreign.write_bytes(document.dump({"format": 99}))
    assert store.remove_record(first.environment, first.op, first.digest)
    assert store.prune().graphs == 0
    assert path.exists()
    assert store.prune(max_bytes=0, dry_run=True).graphs == 1
    assert path.exists()
    pruned = store.prune(max_bytes=0)
    assert (pruned.records, pruned.graphs) == (1, 1)
    assert not path.exists()
    assert foreign.exists()  # another version's


def test_clear_removes_entries(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    path = kept(store, FIRST)
    assert store.clear()["graphs"] == 1
    assert not path.exists()


def test_entries_stay_in_their_cache(cache_dir: Path, tmp_path: Path) -> None:
    """They have paths of this machine, and whoever imports the records has programs of his own."""
    store, other = open_store(cache_dir), open_store(tmp_path / "other")
    store.put_record(FIRST)
    kept(store, FIRST)
    export_archive(store, tmp_path / "x.tar.gz")
    assert import_archive(other, tmp_path / "x.tar.gz").records == 1
    assert other.graphs.everything() == []
