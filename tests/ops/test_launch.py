"""Finding a kernel, starting it, and what is computed where it cannot run; C functions are the kernels."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import errno
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inductor_plugin.cache import atomic
from inductor_plugin.config import Config
from inductor_plugin.errors import CallRefusedError, KernelError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import launch
from inductor_plugin.problem import Operand
from inductor_plugin.tuning.runtime import Runtime
from tests.support.native import host_kernels
from tests.support.native.filling import FAMILY, ONES, TEXT, ZEROS, Call, fill, run


@pytest.fixture(name="library", scope="module")
def a_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return host_kernels.library(tmp_path_factory.mktemp("kernel"), TEXT)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host_kernels.install(monkeypatch, tmp_path / "none")


@pytest.fixture
def cached(library: Path, cache_dir: Path) -> Callable[[str], str]:
    """Return a function that names a kernel as generated code does."""
    launch.add_kernel_folder(cache_dir)
    return lambda symbol: host_kernels.stored(cache_dir, library, symbol)


def full_disk(*_: Path) -> bool:
    raise OSError(errno.ENOSPC, "no space left")


def test_a_kernel_is_found_in_the_cache_by_its_digest(cached: Callable[[str], str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(cached("ones")), ONES)


@pytest.mark.parametrize("by_path", [False, True], ids=["by its digest", "by its path"])
def test_the_second_call_looks_for_nothing(
    cached: Callable[[str], str], library: Path, monkeypatch: pytest.MonkeyPatch, *, by_path: bool
) -> None:
    """To open a cache and to hash a library takes 0.4 to 4 ms."""
    kernel = f"ones@{library}" if by_path else cached("ones")
    assert torch.equal(run(kernel), ONES)
    monkeypatch.setattr(launch, "opened_caches", Mock(side_effect=AssertionError))
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=AssertionError))
    assert torch.equal(run(kernel), ONES)


def test_the_folder_that_was_added_last_is_looked_into_first(library: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second, first):
        launch.add_kernel_folder(folder)
    assert launch._folders == [(first, False, ""), (second, False, "")]
    kernel = host_kernels.stored(second, library, "ones")
    assert torch.equal(run(kernel), ONES)


@pytest.mark.parametrize("why", ["switched off", "another user's", "not writable"])
def test_what_a_cache_cannot_keep_on_the_disk_is_found_too(
    why: str, library: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_dir.mkdir(mode=0o777 if why == "another user's" else 0o700)
    cache_dir.chmod(0o777 if why == "another user's" else 0o700)
    config = Config(cache_dir=cache_dir, cache="off" if why == "switched off" else "on")
    store = Runtime().store(config)
    if why == "not writable":
        monkeypatch.setattr(atomic, "publish_folder", full_disk)
    kernel = host_kernels.stored_in(store, library, "ones")
    assert torch.equal(run(kernel), ONES)
    assert not list(cache_dir.rglob(launch.LIBRARY_FILE))


def test_a_folder_that_cannot_be_looked_at_has_no_kernels(library: Path, tmp_path: Path) -> None:
    kernel = host_kernels.stored(tmp_path / "cache", library, "ones")
    for folder in (tmp_path / "cache", tmp_path / ("x" * 300)):
        launch.add_kernel_folder(folder)
    assert torch.equal(run(kernel), ONES)


@pytest.mark.parametrize("named_by", ["option", "variable"])
def test_a_second_cache_is_looked_into_without_writing_there(
    named_by: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    kernel = host_kernels.stored(shared, library, "ones")
    if (
        os.geteuid() == 0
    ):  # as in an image: the files are root's, and this process is another user's
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    before = {path: path.stat().st_mtime_ns for path in [shared, *shared.rglob("*")]}
    if named_by == "option":
        launch.add_kernel_folder(shared, read_only=True)
    else:
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_READ", str(shared))
    assert torch.equal(run(kernel), ONES)
    assert {path: path.stat().st_mtime_ns for path in [shared, *shared.rglob("*")]} == before


def test_a_kernel_gets_the_workspace_it_asks_for(library: Path) -> None:
    assert torch.equal(run(f"ones@{library}", needed=64), ONES)


def test_a_workspace_that_is_handed_over_is_used(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = torch.empty(64, dtype=torch.uint8)
    seen: list[tuple[int, int]] = []

    def started(abi: Any, function: Any, call: Any, device: torch.device) -> None:
        seen.append((call.workspace, call.workspace_bytes))
        abi.run(function, call, 0)

    monkeypatch.setattr(launch, "_launch", started)
    assert torch.equal(run(f"ones@{library}", workspace, needed=64), ONES)
    assert seen == [(workspace.data_ptr(), 64)]


def test_a_workspace_that_is_too_small_is_refused_and_nothing_is_written(library: Path) -> None:
    workspace = torch.zeros(128, dtype=torch.uint8)
    out = torch.full((4,), 7.0)
    with pytest.raises(KernelError, match=r"ones: .*too small .*: 63 bytes of 64"):
        launch.run_or_fallback(
            *(FAMILY, f"ones@{library}", lambda: fill(64, out=launch.view_of(out), device=0)),
            *(out.zero_, workspace[:63], out),
        )
    assert torch.equal(out, torch.full((4,), 7.0))
    assert not workspace.any()


@pytest.mark.parametrize(
    ("misfitting", "reason"),
    [
        (torch.empty(64, dtype=torch.float32), "contiguous uint8"),
        (torch.empty(128, dtype=torch.uint8)[::2], "contiguous uint8"),
        (torch.empty(128, dtype=torch.uint8, device="meta"), "the workspace is on meta"),
    ],
)
def test_a_workspace_that_does_not_fit_is_refused(
    library: Path, misfitting: torch.Tensor, reason: str
) -> None:
    with pytest.raises(KernelError, match=f"ones: .*{reason}"):
        run(f"ones@{library}", misfitting, needed=64)


def test_a_workspace_that_begins_elsewhere_is_replaced(library: Path) -> None:
    workspace = torch.empty(128, dtype=torch.uint8)[1:]
    assert torch.equal(run(f"ones@{library}", workspace, needed=64), ONES)


@pytest.mark.parametrize("status", [1, 2])
@pytest.mark.parametrize("when", ["never", "late"])
def test_a_call_the_kernel_refuses_is_answered_by_the_library(
    cached: Callable[[str], str], status: int, when: str
) -> None:
    kernel = cached(f"{when}_{status}")
    reason = rf"{when}_{status}: a.*n=4.*zeros are computed instead; compile the model again"
    with pytest.warns(RuntimeWarning, match=reason):
        assert torch.equal(run(kernel), ZEROS)
    with warnings.catch_warnings():  # once a kernel is enough
        warnings.simplefilter("error")
        assert torch.equal(run(kernel), ZEROS)


def test_every_kernel_that_refuses_says_so_for_itself(cached: Callable[[str], str]) -> None:
    for symbol in ("never_1", "never_2"):
        with pytest.warns(RuntimeWarning, match=symbol):
            run(cached(symbol))


NOT_STARTED = pytest.mark.parametrize(
    ("status", "reason"), [(3, "0 bytes of 0"), (4, "did not start .error 9"), (5, "version")]
)


@NOT_STARTED
def test_a_kernel_that_does_not_start_is_replaced_by_the_library_for_good(
    cached: Callable[[str], str], status: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = cached(f"late_{status}")
    with pytest.warns(RuntimeWarning, match=f"late_{status}: .*{reason}.*zeros are computed"):
        assert torch.equal(run(kernel), ZEROS)
    monkeypatch.setattr(launch, "_launch", None)  # it is not called again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(kernel), ZEROS)


@NOT_STARTED
def test_a_kernel_that_is_measured_and_does_not_start_is_an_error(
    library: Path, status: int, reason: str
) -> None:
    with pytest.raises(KernelError, match=f"late_{status}: .*{reason}") as raised:
        run(f"late_{status}@{library}")
    assert raised.type is KernelError
    assert raised.value.cuda_error == (0 if status == 4 else None)


def test_a_broken_device_is_an_error(
    cached: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def illegal_address(*_: object) -> None:
        raise KernelError("it did not start", cuda_error=700)

    monkeypatch.setattr(launch, "_launch", illegal_address)
    with pytest.raises(KernelError, match="did not start"):
        run(cached("ones"))


def test_a_library_that_is_gone_is_said_once(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="not in the cache any more, zeros .*the model again"):
        assert torch.equal(run("gone@0123"), ZEROS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run("gone@0123"), ZEROS)
    assert not (tmp_path / "none").exists()


@pytest.mark.filterwarnings("ignore:.*not in the cache any more:RuntimeWarning")
def test_a_library_that_is_gone_is_searched_once_a_minute(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, searched = [100.0], Mock(return_value=None)
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(launch, "library_path", searched)
    for seconds in (0.0, 1.0, 58.0, 2.0, 1.0):
        now[0] += seconds
        assert torch.equal(run("gone@0123"), ZEROS)
    assert searched.call_count == 2
    launch.add_kernel_folder(cache_dir)
    run("gone@0123")
    assert searched.call_count == 3


def test_a_library_that_is_gone_is_found_once_it_is_back(library: Path, cache_dir: Path) -> None:
    kernel = host_kernels.stored(cache_dir, library, "ones")
    with pytest.warns(RuntimeWarning, match="not in the cache any more"):
        assert torch.equal(run(kernel), ZEROS)
    launch.add_kernel_folder(cache_dir)
    assert torch.equal(run(kernel), ONES)


def test_a_library_that_does_not_load_is_said_once(tmp_path: Path, cache_dir: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    kernel = host_kernels.stored(cache_dir, broken, "ones")
    launch.add_kernel_folder(cache_dir)
    with pytest.warns(RuntimeWarning, match="cannot load ones from .*, zeros are computed instead"):
        assert torch.equal(run(kernel), ZEROS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(kernel), ZEROS)


def test_nothing_stands_in_for_a_library_that_is_named_by_its_path(
    library: Path, tmp_path: Path
) -> None:
    with pytest.raises(KernelError, match="cannot load k"):
        run(f"k@{tmp_path}/no.so")
    for when in ("never", "late"):
        with pytest.raises(CallRefusedError, match=f"{when}_1: a stride"):
            run(f"{when}_1@{library}")


def test_two_families_do_not_share_a_kernel(library: Path) -> None:
    other = launch.KernelFamily(
        *(FAMILY.abi, FAMILY.calls, FAMILY.device_arguments, FAMILY.has_work, 64, "")
    )
    kernel = f"ones@{library}"
    assert launch.find_kernel(FAMILY, kernel) is launch.find_kernel(FAMILY, kernel)
    assert launch.find_kernel(FAMILY, kernel) is not launch.find_kernel(other, kernel)


def test_nothing_to_compute_needs_no_kernel(library: Path) -> None:
    assert run(f"never_1@{library}", n=0).numel() == 0


def test_a_call_says_before_it_is_made_what_it_needs(library: Path) -> None:
    device = torch.device("cuda:1")

    def needed(kernel: str, needs: int = 64, n: int = 4) -> int:
        call = OpKernel("inductor_plugin::fill.out", (kernel, needs))
        output = Operand((n,), (1,), "float32", "cuda")
        return launch.workspace_needed(FAMILY, call, (), output, device)

    assert needed(f"ones@{library}") == 64
    assert needed(f"ones@{library}", 0) == 0
    assert needed(f"ones@{library}", n=0) == 0
    assert needed(f"never_1@{library}") == 0
    assert needed(f"ones@{library.parent}/no.so") == 0
    with warnings.catch_warnings():  # that it is gone is said when the graph runs
        warnings.simplefilter("error")
        assert needed("ones@0123") == 0


def test_the_current_stream_is_used_and_named_in_the_log(
    library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()

    class Stream:
        cuda_stream = 0x5EED

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *_: object) -> None:
            return None

    entered: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", Device)
    function = FAMILY.abi.load(library, "stream_kernel")
    with caplog.at_level(logging.DEBUG, logger=launch.__name__):
        launch._launch(FAMILY.abi, function, Call(), torch.device("cuda:3"))
    seen = FAMILY.abi.load(library, "seen_stream").entry
    seen.argtypes, seen.restype = (), ctypes.c_int64
    assert seen() == 0x5EED
    assert entered == [torch.device("cuda:3")]
    assert "stream_kernel on cuda:3, stream 0x5eed" in caplog.text


def test_each_cache_is_opened_with_the_keys_that_were_stated_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that was withdrawn for one model loads nothing for it."""
    opened: list[tuple[str, str, str]] = []
    own, shared, default, second = (tmp_path / n for n in ("own", "shared", "default", "second"))
    for folder in (own, shared, default, second):
        folder.mkdir()

    def open_store(folder: Path, *, trust: str) -> None:
        opened.append(("own", folder.name, trust))

    def open_second(folder: Path, trust: str) -> None:
        opened.append(("read", folder.name, trust))

    for name, value in (
        ("open_store", open_store),
        ("open_second", open_second),
        ("trust_or_nobody", str.upper),
        ("default_cache_dir", lambda: default),
        ("default_cache_read", lambda: second),
        ("default_trusted_keys", lambda: "all"),
    ):
        monkeypatch.setattr(launch, name, value)
    launch.add_kernel_folder(shared, read_only=True, trusted_keys="theirs")
    launch.add_kernel_folder(own, trusted_keys="mine")
    assert list(launch.opened_caches()) == []
    assert opened == [
        ("own", "own", "MINE"),
        ("read", "shared", "THEIRS"),
        ("own", "default", "ALL"),
        ("read", "second", "ALL"),
    ]
