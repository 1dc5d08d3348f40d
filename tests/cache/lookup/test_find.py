from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.lookup.find import find
from inductor_plugin.errors import CacheError
from tests.support.cache.records import measured, record


def test_a_key_that_is_not_unique_names_operators_whole(cache_dir: Path):
    store = open_store(cache_dir)
    for digest in ("ab" * 32, "ac" * 32):
        store.put_record(record(measured("a"), digest=digest, op="packed_linear_unary"))
    environment = record().environment
    with pytest.raises(CacheError, match=rf"record {environment[:12]}/packed_linear_unary/abab"):
        find(store.layout, "a")


def test_a_whole_digest_names_its_record_though_another_file_begins_with_it(cache_dir: Path):
    store = open_store(cache_dir)
    kept = store.put_record(record(measured("a"), digest="ab" * 32))
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    copy = path.with_name(f"{path.stem} (copy).json")
    copy.write_bytes(path.read_bytes())
    place = f"{kept.environment}/{kept.op}/{kept.digest}"
    for key in (kept.digest, f"{kept.environment[:12]}/{kept.digest}", place):
        assert find(store.layout, key).path == path
    assert find(store.layout, copy.stem).path == copy
    with pytest.raises(CacheError, match="is not unique"):
        find(store.layout, kept.digest[:12])


@pytest.mark.parametrize(
    ("count", "more"), [(2, ""), (5, ""), (6, " and 1 more"), (8, " and 3 more")]
)
def test_of_many_entries_five_are_named_and_the_others_counted(
    cache_dir: Path, count: int, more: str
):
    store = open_store(cache_dir)
    for number in range(count):
        store.put_record(record(measured("a"), digest=f"ab{number:062x}"))
    name = f"record {record().environment[:12]}/mm/ab0000000000"
    names = ", ".join([name] * min(count, 5))
    with pytest.raises(CacheError, match=f"is not unique: {names}{more}; write more of it"):
        find(store.layout, "ab")


def test_each_part_of_a_key_is_a_start(cache_dir: Path):
    store = open_store(cache_dir)
    kept = store.put_record(record(measured("a"), digest="ab" * 32))
    place = (kept.environment, kept.op, kept.digest)
    for key in ("/".join(place), f"{place[0][:4]}/m/ab", f"{place[0][:4]}/ab", "ab/"):
        assert find(store.layout, key).name == "/".join(place)
    for odd in (
        f"{place[0][:4]}x/mm/ab",
        f"{place[0][:4]}/bmm/ab",
        f"{place[0][:4]}/mm/ba",
        f"{place[0][:4]}x/ab",
        f"{place[0][:4]}/ba",
        f"{place[0]}/mm/ab/ab",
    ):
        with pytest.raises(CacheError, match="nothing in"):
            find(store.layout, odd)
