"""What `stats` says of a cache, within a time that does not grow with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from inductor_plugin.cache import open_store
from tests.support.cache.records import ENVIRONMENT, measured, put_library, record


def test_documents_are_read_only_as_long_as_that_may_take(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    for rows in range(8):
        store.put_record(record(measured("a"), problem=rows + 1))
    usage = store.usage(look=True, look_s=-1.0)
    assert (usage.records, usage.damaged, usage.looked) == (8, 0, 0.0)
    assert store.usage(look=True).looked == 1.0


def test_pinned_and_damaged_records_are_counted_at_once(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    first, second = (store.put_record(record(measured("a"), problem=rows)) for rows in (8, 16))
    store.pin_record(first)
    store.layout.record(second.environment, second.op, second.digest).write_bytes(b"cut")
    usage = store.usage(look=True)
    assert (usage.records, usage.pinned, usage.damaged) == (2, 1, 1)


def test_to_look_at_a_record_is_no_use(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    stored = store.put_record(record(measured("a")))
    path = store.layout.record(stored.environment, stored.op, stored.digest)
    then = time.time() - 5000.0
    os.utime(path, (then, then))  # with relatime, the next read would set the access time
    store.usage(look=True)
    assert path.stat().st_atime == then


def test_of_what_cannot_be_read_only_records_may_be_pinned(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    stored = store.put_record(record(measured("a")))
    environment = store.layout.environment(store.put_environment(ENVIRONMENT))
    (put_library(store).folder / "entry.json").unlink()  # nobody evicts a part of a kernel
    kept = store.layout.record(stored.environment, stored.op, stored.digest)
    for path, counts in ((environment, (2, 0)), (kept, (3, 1))):
        path.unlink()
        path.mkdir()
        usage = store.usage(look=True)
        assert (usage.damaged, usage.pinned) == counts
