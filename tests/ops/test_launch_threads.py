"""Kernels that run while another thread adds a cache; C functions are the kernels."""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.ops import launch
from tests.support.native import host_kernels
from tests.support.native.filling import ONES, TEXT, ZEROS, run


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return host_kernels.library(tmp_path_factory.mktemp("kernels"), TEXT)


@pytest.fixture(autouse=True)
def no_other_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host_kernels.install(monkeypatch, tmp_path / "none")


class Read(list[tuple[Path, bool, str]]):
    """The list of folders; once it is read, another thread adds a folder before the reader goes on."""

    def __init__(self, other: threading.Thread) -> None:
        super().__init__()
        self._others = [other]

    def __iter__(self) -> Iterator[tuple[Path, bool, str]]:
        before = [*super().__iter__()]
        if self._others:
            other = self._others.pop()
            other.start()
            other.join(0.2)  # it waits for its turn
        return iter(before)


def test_two_folders_that_are_added_at_once_are_both_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    other = threading.Thread(target=launch.add_kernel_folder, args=(second,))
    monkeypatch.setattr(launch, "_folders", Read(other))
    launch.add_kernel_folder(first)
    other.join(10)
    assert launch._folders == [(second, False, ""), (first, False, "")]


class Retries(dict[str, float]):
    """What is not tried, while another thread adds a cache."""

    def __contains__(self, key: object) -> bool:
        return True  # the other thread's `_changed` has removed it after this


def test_a_cache_may_be_added_while_a_model_runs(
    library: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.add_kernel_folder(cache_dir)
    kernel = host_kernels.stored(cache_dir, library, "ones")
    monkeypatch.setattr(launch, "_retry_at", Retries())
    assert torch.equal(run(kernel), ONES)


class Until(float):
    """A time, during whose comparison a call of a model adds another one."""

    def __lt__(self, other: float) -> bool:
        launch._retry_at[f"another kernel {len(launch._retry_at)}"] = 0.0
        return super().__lt__(other)


def test_a_model_may_run_while_a_cache_is_added(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_retry_at", {"a kernel": Until(1.0)})
    launch.add_kernel_store(open_store(cache_dir))
    assert "a kernel" not in launch._retry_at
    searched = launch.opened_caches()
    next(searched)
    launch.add_kernel_store(open_store(tmp_path / "another"))
    assert list(searched) == []


class Guard:
    """A lock that says when a second thread asks for it."""

    def __init__(self) -> None:
        self._lock, self.asked = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if self._lock.locked():
            self.asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.filterwarnings("ignore:.*zeros are computed instead:RuntimeWarning")
def test_a_kernel_that_does_not_start_while_a_cache_is_added_stays_out_for_good(
    library: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.add_kernel_folder(cache_dir)
    kernel, guard = host_kernels.stored(cache_dir, library, "late_4"), Guard()

    def call() -> None:
        run(kernel)
        guard.asked.set()  # it has not waited

    model = threading.Thread(target=call)

    class Meanwhile(float):
        def __lt__(self, other: float) -> bool:
            model.start()
            assert guard.asked.wait(10)
            return super().__lt__(other)

    monkeypatch.setattr(launch, "_GUARD", guard)
    monkeypatch.setattr(launch, "_retry_at", {kernel: Meanwhile(0.0)})
    launch.add_kernel_store(open_store(cache_dir))
    model.join()
    monkeypatch.setattr(launch, "_launch", None)  # it is not called again
    assert torch.equal(run(kernel), ZEROS)


def test_caches_that_two_threads_add_at_once_both_count(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one is not counted, call sites do not search their library again (`native.library.sites`)."""
    both = threading.Barrier(2)

    class Added(list[int]):
        def __getitem__(self, index: Any, /) -> Any:
            value = super().__getitem__(index)
            with suppress(threading.BrokenBarrierError):
                both.wait(
                    0.3
                )  # for the other thread, which has read it by then: never, under the lock
            return value

    monkeypatch.setattr(launch, "_added", Added([0]))
    threads = [
        threading.Thread(target=launch.add_kernel_store, args=(open_store(cache_dir),)),
        threading.Thread(target=launch.add_kernel_folder, args=(tmp_path / "folder",)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert launch.caches_added() == 2
