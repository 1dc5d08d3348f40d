from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, atomic, document, open_store
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.owner import prefix
from inductor_plugin.cache.size import evict
from inductor_plugin.cache.size.evict import choose, remove_record
from inductor_plugin.cache.size.usage import LinkedFile, Stamp, kernel_stamps
from inductor_plugin.errors import CacheError
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record


def put_kernel(store: Store, name: str, age_s: float) -> str:
    entry = store.put_kernel(kernel_key(name), {"kernel.so": b"x" * 10_000})
    age(entry.folder / "entry.json", age_s)
    return entry.digest


def age(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path, (when, when))


def digests(store: Store) -> set[str]:
    return {kernel.digest for kernel in store.iter_kernels()}


def test_the_least_recently_used_goes_first():
    stamps = [Stamp(name, 10, used) for name, used in (("a", 3), ("b", 1), ("c", 2))]
    assert [stamp.path.name for stamp in choose(stamps, (), 15, None)] == ["b", "c"]
    assert [stamp.path.name for stamp in choose(stamps, {Path("b")}, 15, None)] == ["c", "a"]
    assert [stamp.path.name for stamp in choose(stamps, (), 0, 2.5)] == ["b", "c"]
    assert choose(stamps, (), 0, None) == []


def test_a_shared_library_is_freed_with_its_last_kernel():
    shared = (LinkedFile(1, 2, 100),)
    stamps = [Stamp(name, 1, used, shared) for name, used in (("a", 1), ("b", 2), ("c", 3))]
    stamps.append(Stamp("d", 10, 4))
    names = [stamp.path.name for stamp in choose(stamps, (), 50, None)]
    assert names == ["a", "b", "c"]
    assert [stamp.path.name for stamp in choose(stamps, {Path("b")}, 12, None)] == ["a", "c", "d"]
    # One of them was used just now: what the others share with it is not freed.
    idle = choose(stamps, (), 50, None, used_until=2.5)
    assert [stamp.path.name for stamp in idle] == ["a", "b"]


def test_prune_counts_the_bytes_that_the_disk_frees(cache_dir: Path):
    store = open_store(cache_dir)
    library: Path | bytes = b"x" * 100_000
    for number in range(4):
        entry = store.put_kernel(kernel_key(f"k{number}"), {"kernel.so": library})
        library = entry.path("kernel.so")
        age(entry.folder / "entry.json", 1000 - number)
    assert isinstance(library, Path)
    assert library.stat().st_nlink == 4
    size = store.usage().kernel_bytes
    assert 100_000 < size < 110_000
    pruned = store.prune(max_bytes=60_000)
    assert (pruned.kernels, pruned.bytes, pruned.bytes_left) == (4, size, 0)


def test_what_was_used_in_the_future_is_the_oldest(cache_dir: Path):
    store = open_store(cache_dir)
    future, now = put_kernel(store, "future", -10 * 86400), put_kernel(store, "now", 10)
    stored = store.put_record(record(measured("a")))
    age(store.layout.record(stored.environment, stored.op, stored.digest), -10 * 86400)
    assert store.prune(max_bytes=15_000).kernels == 1
    assert (store.kernel(future), digests(store)) == (None, {now})
    slightly = put_kernel(store, "slightly", -100)
    pruned = store.prune(max_bytes=0)
    assert (pruned.kernels, pruned.records) == (2, 1)
    assert store.kernel(slightly) is None


def test_prune_removes_kernels_before_records(cache_dir: Path):
    store = open_store(cache_dir)
    stored = store.put_record(record(measured("a")))
    age(store.layout.record(stored.environment, stored.op, stored.digest), 9000)
    old, new = put_kernel(store, "old", 500), put_kernel(store, "new", 100)
    pruned = store.prune(max_bytes=15_000)
    assert (pruned.kernels, pruned.records) == (1, 0)
    assert digests(store) == {new}
    assert store.kernel(old) is None
    pruned = store.prune(max_bytes=0)
    assert (pruned.kernels, pruned.records, pruned.bytes_left) == (1, 1, 0)
    assert store.record(stored.environment, stored.op, stored.digest) is None


def test_prune_by_age(cache_dir: Path):
    store = open_store(cache_dir)
    put_kernel(store, "old", 5000)
    new = put_kernel(store, "new", 10)
    assert store.prune(older_than_s=1000).kernels == 1
    assert digests(store) == {new}


def test_a_read_keeps_a_kernel(cache_dir: Path):
    store = open_store(cache_dir)
    read, other = put_kernel(store, "read", 9000), put_kernel(store, "other", 5000)
    assert open_store(cache_dir).kernel(read) is not None
    store.prune(max_bytes=15_000)
    assert digests(store) == {read}
    assert other not in digests(store)


def test_what_is_pinned_stays(cache_dir: Path):
    store = open_store(cache_dir)
    kernel, loser = put_kernel(store, "winner", 9000), put_kernel(store, "loser", 10)
    stored = store.put_record(
        record(measured("a", kernel=kernel), measured("b", kernel=loser), decision=decision("a", 2))
    )
    store.pin_record(stored)
    pruned = store.prune(max_bytes=0)
    assert (pruned.kernels, pruned.records, pruned.pinned) == (1, 0, 2)
    assert digests(store) == {kernel}
    store.pin_record(stored, pinned=False)
    assert store.prune(max_bytes=0).records == 1


def test_pinned_entries_are_counted_where_others_go_in_their_place(cache_dir: Path):
    store = open_store(cache_dir)
    kernel = put_kernel(store, "winner", 9000)
    store.pin_record(store.put_record(record(measured("a", kernel=kernel), decision=decision("a"))))
    for number in range(6):
        put_kernel(store, f"k{number}", 8000)
    limit = store.usage().bytes - 15_000
    pruned = store.prune(max_bytes=limit, dry_run=True)
    assert (pruned.kernels, pruned.pinned) == (2, 1)


def test_use_counts_though_the_clock_was_ahead_at_the_publication(cache_dir: Path):
    store = open_store(cache_dir)
    digest = put_kernel(store, "used", -10 * 86400)
    fresh = open_store(cache_dir)
    assert fresh.kernel(digest) is not None
    (stamp,) = kernel_stamps(fresh.layout)
    assert abs(stamp.used_at - time.time()) < 60.0


@pytest.mark.parametrize("why", ["unreadable", "foreign"])
def test_a_record_that_may_be_pinned_stays(
    cache_dir: Path, why: str, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(cache_dir)
    written = store.put_record(record(measured("a"), decision=decision("a")))
    store.pin_record(written)
    path = store.layout.record(written.environment, written.op, written.digest)
    if why == "foreign":
        fields = {**document.load(path.read_bytes()), "format": 2}
        path.write_bytes(document.dump(fields))
    else:

        def fails(_: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("inductor_plugin.cache.size.evict.read", fails)
    assert store.prune(max_bytes=0).records == 0
    assert path.exists()


def test_a_kernel_somebody_works_on_stays(cache_dir: Path):
    store = open_store(cache_dir)
    digest = put_kernel(store, "k", 9000)
    with open_store(cache_dir).lock_kernel(digest, 0):
        assert store.prune(max_bytes=0).kernels == 0
        with pytest.raises(CacheError), store.lock_kernel(digest, 0):
            pass
    assert store.prune(max_bytes=0).kernels == 1


def test_the_limit_holds_after_a_publication(cache_dir: Path):
    store = open_store(cache_dir, limit_bytes=50_000)
    for index in range(12):
        put_kernel(store, f"k{index}", 10_000 - index)
    assert store.usage().kernel_bytes <= 50_000
    assert kernel_key("k11").digest in digests(store)
    assert kernel_key("k0").digest not in digests(store)
    assert len(digests(store)) <= 5
    assert store.verify() == []


def test_the_limit_spares_what_was_just_used(cache_dir: Path):
    store = open_store(cache_dir, limit_bytes=15_000)
    for index in range(3):
        store.put_kernel(kernel_key(f"k{index}"), {"kernel.so": b"x" * 10_000})
    assert len(digests(store)) == 3


def test_leftovers_are_counted_and_swept_but_not_called_broken(cache_dir: Path):
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    store.put_record(record(measured("a")))
    for name, age_s in (("old", 2 * 86400), ("young", 7200)):
        (cache_dir / "private" / name).mkdir()
        (cache_dir / "private" / name / "half").write_bytes(b"x")
        age(cache_dir / "private" / name, age_s)
    assert store.verify() == []
    assert store.usage().leftovers == 1
    assert store.prune().leftovers == 1
    assert [path.name for path in (cache_dir / "private").iterdir()] == ["young"]


def test_a_folder_of_a_running_process_stays_however_old_it_is(cache_dir: Path):
    store = open_store(cache_dir)
    store.put_record(record(measured("a")))
    staging = atomic.private_path(store.layout.private)
    staging.mkdir()
    age(staging, 30 * 86400)
    assert store.usage().leftovers == 0
    assert store.prune(max_bytes=0).leftovers == 0
    open_store(cache_dir).put_record(record(measured("b")))
    assert staging.is_dir()


def test_folders_of_processes_that_were_killed_go_with_the_first_write(cache_dir: Path):
    first = open_store(cache_dir)
    first.put_record(record(measured("a")))
    place, pid, started = prefix().split("-")[:3]
    dead = cache_dir / "private" / f"{place}-{pid}-{int(started) + 1}-ab"
    dead.mkdir()
    (dead / "library").write_bytes(b"x")
    assert open_store(cache_dir, create=False).usage().leftovers == 1
    first.put_record(record(measured("b")))
    assert dead.is_dir()  # once per process: a scan for each record would be too much
    open_store(cache_dir).put_record(record(measured("c")))
    assert not dead.exists()


def test_old_lock_files_go_unless_held(cache_dir: Path):
    store = open_store(cache_dir)
    for name, age_s in (("held", 2 * 86400), ("free", 2 * 86400), ("young", 7200)):
        with store.lock_kernel(name, 0):
            age(store.layout.lock(name), age_s)
    with open_store(cache_dir).lock_kernel("held", 0):
        age(store.layout.lock("held"), 2 * 86400)
        assert store.prune().locks == 1
        assert store.layout.lock("held").exists()
    assert not store.layout.lock("free").exists()
    assert store.layout.lock("young").exists()


def test_a_record_that_is_being_written_stays(cache_dir: Path):
    store = open_store(cache_dir)
    kept = store.put_record(record(measured("a")))
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    folder = Folder(store.layout)
    with Folder(store.layout).lock(f"records-{path.stem[:2]}", 1.0):
        assert not remove_record(folder, path, wait_s=0.05)
        assert path.exists()
    assert remove_record(folder, path)
    assert not path.exists()


def test_of_records_only_those_that_are_to_go_are_read(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(cache_dir)
    records = [store.put_record(record(measured("a"), problem=rows)) for rows in (8, 16, 32)]
    paths = [store.layout.record(each.environment, each.op, each.digest) for each in records]
    for path, seconds in zip(paths, (500, 400, 300), strict=True):
        age(path, seconds)
    opened: list[Path | str] = []

    def read(path: Path | str) -> bytes:
        opened.append(path)
        return Path(path).read_bytes()

    monkeypatch.setattr(evict, "read", read)
    assert store.prune(older_than_s=350).records == 2
    assert opened == paths[:2]


def test_to_say_what_would_go_sweeps_nothing(cache_dir: Path):
    store = open_store(cache_dir)
    store.put_record(record(measured("a")))
    leftover, lock = cache_dir / "private" / "old", store.layout.lock("free")
    leftover.mkdir()
    with store.lock_kernel("free", 0):
        pass
    for path in (leftover, lock):
        age(path, 2 * 86400)
    pruned = store.prune(dry_run=True)
    assert (pruned.leftovers, pruned.locks) == (1, 0)
    assert leftover.is_dir()
    assert lock.exists()


def test_clear_leaves_a_record_in_use_and_what_explains_it(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evict, "remove_record", partial(evict.remove_record, wait_s=0.02))
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    kept = store.put_record(record(measured("a")))
    with Folder(store.layout).lock(f"records-{kept.digest[:2]}", 0):
        removed = store.clear()
    assert (removed["records"], removed["environments"]) == (0, 0)
    assert store.verify() == []
    removed = store.clear()
    assert (removed["records"], removed["environments"]) == (1, 1)


def test_a_removed_entry_leaves_nothing_behind(cache_dir: Path):
    store = open_store(cache_dir)
    assert store.remove_kernel(put_kernel(store, "k", 0))
    assert list(store.layout.private.iterdir()) == []
    assert list(store.layout.kernels.glob("*/*")) == []


def test_what_other_processes_publish_counts_after_a_while(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evict, "_RESCAN", 2)
    store, other = open_store(cache_dir, limit_bytes=50_000), open_store(cache_dir)
    put_kernel(store, "own", 9000)
    for number in range(5):
        put_kernel(other, f"of another {number}", 8000)
    put_kernel(store, "second", 7000)
    assert len(digests(store)) == 7
    put_kernel(store, "third", 6000)
    assert store.usage().kernel_bytes <= 50_000


def test_a_cache_that_another_process_evicts_is_left_to_it(cache_dir: Path):
    store = open_store(cache_dir, limit_bytes=25_000)
    with Folder(store.layout).lock("prune", 0):
        for number in range(4):
            put_kernel(store, f"k{number}", 9000 - number)
    assert len(digests(store)) == 4
    put_kernel(store, "k4", 10)
    assert store.usage().kernel_bytes <= 25_000


def test_a_read_keeps_a_record(cache_dir: Path):
    store = open_store(cache_dir)
    read, other = (store.put_record(record(measured("a"), problem=rows)) for rows in (8, 16))
    for each in (read, other):
        age(store.layout.record(each.environment, each.op, each.digest), 5000)
    assert open_store(cache_dir).record(read.environment, read.op, read.digest) == read
    assert store.prune(older_than_s=1000).records == 1
    assert list(open_store(cache_dir).iter_records()) == [read]
