from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, digest_of, open_store
from tests.support.repository import REPOSITORY

CHILDREN = REPOSITORY / "tests" / "support" / "processes" / "cache.py"
PROCESSES = 8
KEYS = 6


def start(repository: Path, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(CHILDREN), *map(str, arguments)],
        cwd=repository,
        env={"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_eight_processes_build_each_key_once_and_lose_no_timing(
    cache_dir: Path, tmp_path: Path, repository: Path
):
    builds = tmp_path / "builds"
    builds.mkdir()
    children = [
        start(repository, "share", cache_dir, who, KEYS, builds) for who in range(PROCESSES)
    ]
    for child in children:
        _, said = child.communicate(timeout=50)
        assert (child.returncode, said.decode()) == (0, "")
    assert {path.name: len(path.read_text().splitlines()) for path in builds.iterdir()} == {
        str(index): 1 for index in range(KEYS)
    }
    store = open_store(cache_dir)
    assert store.verify() == []
    records = list(store.iter_records())
    assert len(records) == KEYS
    for record in records:
        assert set(record.candidates) == {f"candidate-{who}" for who in range(PROCESSES)}
    assert len(list(store.iter_kernels())) == KEYS
    assert store.counters()["hits"] == PROCESSES * KEYS


def kill_at_random(cache_dir: Path, repository: Path, kills: int, seed: int) -> Store:
    chance = random.Random(seed)
    for _ in range(kills):
        children = [start(repository, "write_for_ever", cache_dir) for _ in range(2)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.0, 0.25))
        for child in children:
            child.send_signal(signal.SIGKILL)
            _, said = child.communicate(timeout=10)
            assert child.returncode == -signal.SIGKILL, said
            assert said == b"", said
        store = open_store(cache_dir)
        assert store.verify() == []
    return open_store(cache_dir)


def test_a_cache_that_is_being_written_is_sound(cache_dir: Path, repository: Path):
    children = [start(repository, "write_for_ever", cache_dir) for _ in range(2)]
    looks, kernels = 0, 0
    try:
        ends = time.monotonic() + 5.0
        # From before the directory is there, over publishing, to evicting.
        while time.monotonic() < ends:
            store = open_store(cache_dir, create=False)
            assert store.verify() == []
            looks += 1
            kernels = max(kernels, store.usage().kernels)
        assert [child.poll() for child in children] == [None, None]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert looks > 10
    assert kernels > 1


def check_after_kills(store: Store) -> None:
    """The cache is sound, holds what was written, and takes more."""
    places = [(record.environment, record.op, record.digest) for record in store.iter_records()]
    assert all(store.record(*place) is not None for place in places)
    assert store.counters().get("corrupt", 0) == 0
    assert store.counters()["misses"] > 0
    with store.lock_kernel(digest_of({"a": "new key"}), 5):
        pass
    store.prune(max_bytes=0)
    assert store.usage().kernels == 0
    assert store.verify() == []


def test_a_process_killed_at_any_instant_leaves_nothing_broken(cache_dir: Path, repository: Path):
    check_after_kills(kill_at_random(cache_dir, repository, kills=8, seed=1))


@pytest.mark.slow
def test_fifty_kills_leave_nothing_broken(cache_dir: Path, repository: Path):
    check_after_kills(kill_at_random(cache_dir, repository, kills=50, seed=2))
