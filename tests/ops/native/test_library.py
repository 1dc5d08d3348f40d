"""The library of call sites is searched in the caches of a process, checked, and waited for."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.kernels import admitted, copy_kernels
from inductor_plugin.ops import launch
from inductor_plugin.ops.native import library, source
from tests.support.native import call_sites, host_kernels
from tests.support.trust.payload import FRIEND, TRUST


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let this process know of no library and no cache."""
    host_kernels.install(monkeypatch, tmp_path / "none")
    monkeypatch.setattr(library, "_STATE", library._State())


def keep(folder: Path, file: Path) -> None:
    open_store(folder).put_kernel(source.key(), {launch.LIBRARY_FILE: file}, None)


def test_a_library_in_a_cache_is_loaded(tmp_path: Path) -> None:
    assert library.sites() is None
    assert "not in the cache" in library.reason()
    keep(tmp_path / "cache", call_sites.compiled())
    launch.add_kernel_folder(tmp_path / "cache")
    sites = library.sites()
    assert sites is not None
    assert sites is library.sites()


def test_it_is_searched_again_only_when_a_cache_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.sites() is None
    monkeypatch.setattr(launch, "opened_caches", lambda: pytest.fail("searched again"))
    assert library.sites() is None


@pytest.mark.parametrize("content", [b"no library", b""], ids=["text", "empty"])
def test_a_file_that_is_no_library_is_one_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.so").write_bytes(content)
    keep(tmp_path / "cache", tmp_path / "broken.so")
    launch.add_kernel_folder(tmp_path / "cache")
    assert library.sites() is None
    assert library.sites() is None
    (record,) = [kept for kept in caplog.records if "launched by Python" in kept.message]
    assert "cannot be used" in record.message


def test_a_library_that_reads_a_tensor_differently_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be if a torch to come kept something else where the library looks."""
    file = tmp_path / "copy.so"
    shutil.copy(call_sites.compiled(), file)
    other = torch.empty(3)
    monkeypatch.setattr(torch.Tensor, "_cdata", property(lambda self: id_of(other)))

    def id_of(tensor: torch.Tensor) -> int:
        return int(base.__get__(tensor))

    base: Any = torch._C.TensorBase.__dict__["_cdata"]
    with pytest.raises(RuntimeError, match="it reads a tensor as"):
        library.load(file)


def test_a_call_site_waits_for_the_library_this_process_compiles(tmp_path: Path) -> None:
    done = threading.Event()
    library.expect(done)

    def provide() -> None:
        time.sleep(0.2)
        keep(tmp_path / "cache", call_sites.compiled())
        launch.add_kernel_folder(tmp_path / "cache")
        done.set()

    threading.Thread(target=provide).start()
    assert library.sites() is not None


def test_a_compile_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_WAIT_S", 0.1)
    library.expect(threading.Event())
    assert library.sites() is None


@pytest.mark.compat
@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(2, 3),
        torch.empty(40)[3:].as_strided((2, 3), (7, 2)),
        torch.empty(()),
        torch.empty(0, 4),
        torch.empty(3, dtype=torch.uint8),
        torch.empty(1, 2, 3, 4, 5, 6, 7).permute(6, 5, 4, 3, 2, 1, 0),
        torch.nn.Parameter(torch.empty(5), requires_grad=False),
    ],
    ids=["dense", "strided", "scalar", "empty", "bytes", "seven dimensions", "parameter"],
)
def test_a_tensor_is_read_as_torch_reads_it(tensor: torch.Tensor) -> None:
    size, stride, pointer, _, device_type, _ = call_sites.sites().describe(tensor)
    assert (size, stride, pointer) == (tuple(tensor.shape), tensor.stride(), tensor.data_ptr())
    assert device_type == 0


@pytest.mark.parametrize("value", [None, 3, [torch.empty(2)], torch.empty(2).to_sparse()])
def test_what_is_no_plain_tensor_is_an_error(value: Any) -> None:
    with pytest.raises((TypeError, RuntimeError, AttributeError)):
        call_sites.sites().describe(value)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_library_that_came_by_a_signature_is_loaded_only_if_its_key_is_trusted(
    tmp_path: Path, *, trusted: bool
) -> None:
    """What is loaded here is no library: the sentence says whether that was tried."""
    (tmp_path / "text.so").write_bytes(b"no library")
    keep(tmp_path / "theirs", tmp_path / "text.so")
    (entry,) = open_store(tmp_path / "theirs").iter_kernels()
    signed = replace(entry, signatures={FRIEND.public: FRIEND.sign(entry)})
    store = open_store(tmp_path / "cache", trust=TRUST)
    copy_kernels(store, admitted(store, [signed], "x.pack", trusted=False))
    launch.add_kernel_folder(tmp_path / "cache", trusted_keys=FRIEND.public if trusted else "")
    assert library.sites() is None
    assert ("cannot be used" if trusted else "not in the cache") in library.reason()
    assert (launch.library_path(entry.digest) is not None) is trusted


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that are loaded from now on, as libraries."""
    files: list[Path] = []

    def load(path: Path) -> Any:
        files.append(path)
        return object()

    monkeypatch.setattr(library, "load", load)
    return files


def a_file(folder: Path) -> Path:
    path = folder / "any.so"
    path.write_bytes(b"any")
    return path


def test_why_it_could_not_be_compiled_stays_the_reason() -> None:
    library.fail("there is no C++ compiler")
    assert library.sites() is None
    assert library.reason() == "there is no C++ compiler"


def test_a_library_that_another_process_has_compiled_is_found_when_it_is_searched_again(
    tmp_path: Path, loads: list[Path]
) -> None:
    cache = tmp_path / "cache"
    launch.add_kernel_folder(cache)
    assert library.sites() is None
    keep(cache, a_file(tmp_path))
    assert library.sites() is None
    library.search_again()
    assert library.sites() is not None
    library.search_again()
    assert library.sites() is not None
    assert len(loads) == 1  # it is there, and stays


def test_threads_that_need_it_at_once_load_it_once(
    tmp_path: Path, loads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel is bound by the module that has its site."""
    both, load = threading.Barrier(2), library.load

    def slow(path: Path) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)  # for the other thread: never, under the lock
        return load(path)

    monkeypatch.setattr(library, "load", slow)
    keep(tmp_path / "cache", a_file(tmp_path))
    launch.add_kernel_folder(tmp_path / "cache")
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(library.sites) for _ in range(2))
    assert first.result() is second.result()
    assert len(loads) == 1


def test_a_fork_while_another_thread_searches_has_the_library_and_waits_for_nobody(
    tmp_path: Path, loads: list[Path]
) -> None:
    keep(tmp_path / "cache", a_file(tmp_path))
    launch.add_kernel_folder(tmp_path / "cache")
    sites = library.sites()
    library.expect(threading.Event())
    with library._STATE.lock:
        pid = os.fork()
        if not pid:
            state = library._STATE
            is_free = state.lock.acquire(blocking=False)
            os._exit(0 if is_free and state.sites is sites and state.expected is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(loads) == 1
