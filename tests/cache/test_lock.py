from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import BaseFileLock, FileLock

from inductor_plugin.cache import open_store
from inductor_plugin.cache.lock import LockTable, remove_unused
from inductor_plugin.errors import CacheError
from tests.support.cache.records import measured, record
from tests.support.repository import REPOSITORY

CHILDREN = REPOSITORY / "tests" / "support" / "processes" / "cache.py"


def test_a_thread_may_take_its_lock_twice_and_another_may_not(cache_dir: Path):
    store = open_store(cache_dir)
    refused: list[str] = []

    def other() -> None:
        try:
            with store.lock_kernel("k", 0):
                pass
        except CacheError as error:
            refused.append(str(error))

    with store.lock_kernel("k", 0), store.lock_kernel("k", 0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
    assert len(refused) == 1
    assert "held by a thread of this process" in refused[0]
    other()
    assert len(refused) == 1


def test_another_thread_may_give_a_lock_back(cache_dir: Path):
    store = open_store(cache_dir)
    lock = store.lock_kernel("k", 0)
    lock.__enter__()
    thread = threading.Thread(target=lambda: lock.__exit__(None, None, None))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    with open_store(cache_dir).lock_kernel("k", 0):
        pass


def test_two_stores_exclude_each_other(cache_dir: Path):
    with (
        open_store(cache_dir).lock_kernel("k", 0),
        pytest.raises(CacheError, match="another process"),
        open_store(cache_dir).lock_kernel("k", 0.05),
    ):
        pass


def test_a_killed_process_leaves_no_lock_behind(cache_dir: Path, repository: Path):
    child = subprocess.Popen(
        [sys.executable, CHILDREN, "hold", cache_dir, "k"],
        cwd=repository,
        env={"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        store = open_store(cache_dir)
        with pytest.raises(CacheError, match="held by another process"), store.lock_kernel("k", 0):
            pass
        assert not remove_unused(store.layout.lock("k"))
    finally:
        child.kill()
        child.communicate()
    with store.lock_kernel("k", 5):
        pass
    assert remove_unused(store.layout.lock("k"))
    assert not store.layout.lock("k").exists()


def test_a_lock_on_a_file_that_was_just_deleted_is_taken_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(cache_dir)
    path, untyped = store.layout.lock("k"), vars(BaseFileLock)
    acquire: Callable[..., object] = untyped["acquire"]
    calls: list[int] = []

    def late(lock: FileLock, *args: Any) -> None:
        acquire(lock, *args)
        calls.append(1)
        if len(calls) == 1:
            path.unlink()

    monkeypatch.setattr(FileLock, "acquire", late)
    with store.lock_kernel("k", 0):
        assert path.exists()
        with pytest.raises(CacheError), open_store(cache_dir).lock_kernel("k", 0):
            pass


def test_a_memory_store_locks_between_threads(cache_dir: Path):
    store = open_store(cache_dir, memory_only=True)
    taken = threading.Event()
    refused: list[bool] = []

    def other() -> None:
        try:
            store.lock_kernel("k", 0).__enter__()
        except CacheError:
            refused.append(True)
        taken.set()

    with store.lock_kernel("k", 0):
        threading.Thread(target=other).start()
        assert taken.wait(10)
    assert refused == [True]
    assert not cache_dir.exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSYS, "not implemented"),
        OSError(errno.ENOLCK, "no locks"),
        OSError(errno.EOPNOTSUPP, "not supported"),
        OSError(errno.EIO, "input/output error"),
    ],
    ids=lambda error: errno.errorcode[error.errno],
)
def test_without_locks_of_the_file_system_the_cache_is_kept_in_memory(
    cache_dir: Path, error: OSError, monkeypatch: pytest.MonkeyPatch
):
    def flock(*_: object) -> None:
        raise error

    store = open_store(cache_dir)
    monkeypatch.setattr(fcntl, "flock", flock)
    with store.lock_kernel("k", 60):
        pass
    assert str(error.strerror) in str(store.degraded)
    assert store.put_record(record(measured("a"))).candidates.keys() == {"a"}
    assert list(store.layout.records.glob("*/*/*.json")) == []
    assert not remove_unused(store.layout.lock("k"))
    with ThreadPoolExecutor(1) as other:  # the attempt that failed holds nothing
        other.submit(store.lock_kernel("k", 0).__enter__).result()


def test_a_lock_that_filelock_does_not_implement_is_an_error_of_the_disk(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def acquire(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    store = open_store(cache_dir)
    monkeypatch.setattr(FileLock, "acquire", acquire)
    with store.lock_kernel("k", 60):
        pass
    assert "does not appear to support flock" in str(store.degraded)
    assert not remove_unused(store.layout.lock("k"))


@pytest.mark.parametrize("odd", ["folder", "link"])
def test_something_odd_in_the_place_of_one_lock_concerns_that_lock_alone(cache_dir: Path, odd: str):
    store = open_store(cache_dir)
    path = store.layout.lock("k")
    path.parent.mkdir(mode=0o700)
    path.mkdir() if odd == "folder" else path.symlink_to("k.lock")
    with pytest.raises(CacheError, match="is not a file; remove it"), store.lock_kernel("k", 0):
        pass
    assert store.degraded is None
    with store.lock_kernel("other", 0):
        pass


def test_a_lock_that_a_thread_has_taken_twice_is_held_until_it_is_given_back_twice(cache_dir: Path):
    store, other = open_store(cache_dir), open_store(cache_dir)
    with store.lock_kernel("k", 0):
        with store.lock_kernel("k", 0):
            pass
        with pytest.raises(CacheError, match="another process"), other.lock_kernel("k", 0):
            pass
    with other.lock_kernel("k", 0):
        pass


def test_a_lock_that_was_refused_is_not_held(cache_dir: Path):
    store, other = open_store(cache_dir), open_store(cache_dir)
    with other.lock_kernel("k", 0), pytest.raises(CacheError), store.lock_kernel("k", 0):
        pass
    with (
        store.lock_kernel("k", 0),
        pytest.raises(CacheError, match="another process"),
        other.lock_kernel("k", 0),
    ):
        pass


def test_who_waits_for_a_thread_goes_on_when_it_gives_the_lock_back(
    monkeypatch: pytest.MonkeyPatch,
):
    table, looks, taken = LockTable(), threading.Semaphore(0), threading.Event()

    def wait() -> None:
        table.acquire("k", None, 60)
        taken.set()

    def monotonic() -> float:
        looks.release()
        return 0.0

    table.acquire("k", None, 0)
    monkeypatch.setattr("inductor_plugin.cache.lock.time", SimpleNamespace(monotonic=monotonic))
    threading.Thread(target=wait, daemon=True).start()
    for _ in range(2):  # the second look is the last thing before the thread waits
        assert looks.acquire(timeout=10)
    table.release("k")
    assert taken.wait(10)


def test_a_lock_is_that_of_the_thread_which_has_taken_it():
    table = LockTable()
    assert not table.is_mine("k")
    table.acquire("k", None, 0)
    with ThreadPoolExecutor(1) as other:
        assert (table.is_mine("k"), other.submit(table.is_mine, "k").result()) == (True, False)
