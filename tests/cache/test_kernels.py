"""What the shelf of kernels does with folders that it cannot use."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import document, kernels, open_store
from inductor_plugin.cache.entry import (
    ENTRY,
    MAX_SIGNATURES,
    damage_of_folder,
    parse_entry,
)
from inductor_plugin.cache.folder import TOUCH_S, Folder
from inductor_plugin.cache.lock import HeldLock
from tests.support.cache.records import kernel_key, put_library

DIGEST = kernel_key().digest


def rewritten(cache_dir: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the fields of a kernel's entry, its checksum with them; return its folder."""
    folder = put_library(open_store(cache_dir)).folder
    fields = document.load((folder / ENTRY).read_bytes())
    change(fields)
    (folder / ENTRY).write_bytes(document.dump(fields))
    return folder


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("what", ["open_regular", "read"])
def test_a_kernel_that_cannot_be_read_now_is_not_removed(
    cache_dir: Path,
    code: int,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    folder = put_library(open_store(cache_dir)).folder
    store = open_store(cache_dir)

    def fails(*_: object, **__: object) -> object:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(f"inductor_plugin.cache.entry.{what}", fails)
        assert store.kernel(DIGEST) is None
        assert "cannot be read" in str(damage_of_folder(folder))
        assert ["cannot be read" in damage.reason for damage in store.verify()] == [True]
    assert folder.is_dir()
    assert store.kernel(DIGEST) is not None
    assert [("cannot be read" in r.message) for r in caplog.records] == [True]
    assert "corrupt" not in store.counters()


def test_a_kernel_that_seems_damaged_is_not_removed_if_a_second_look_fails(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = put_library(open_store(cache_dir)).folder
    store = open_store(cache_dir)
    looks: list[str] = []

    def looked_at(*_: object) -> str:
        looks.append("")
        if len(looks) == 1:
            return "0" * 64
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("inductor_plugin.cache.entry.file_sha256", looked_at)
    assert store.kernel(DIGEST) is None
    assert len(looks) == 2
    assert folder.is_dir()


@pytest.mark.parametrize(("at", "name", "value"), [("", "format", 2), ("key", "extension", "x")])
def test_another_versions_kernel_is_left_alone(
    cache_dir: Path, at: str, name: str, value: object, caplog: pytest.LogCaptureFixture
):
    def change(fields: dict[str, Any]) -> None:
        (fields[at] if at else fields)[name] = value

    folder = rewritten(cache_dir, change)
    store = open_store(cache_dir)
    assert store.kernel(DIGEST) is None
    assert list(store.iter_kernels()) == []
    assert store.kernels_like("gemm", "64x64", "x86_64") == []
    assert store.verify() == []
    assert "another version" in str(damage_of_folder(folder))
    before = (folder / ENTRY).read_bytes()
    assert put_library(store).path("kernel.so").read_bytes() == b"library"
    assert (folder / ENTRY).read_bytes() == before
    assert "corrupt" not in store.counters()
    assert "damaged" not in caplog.text


def test_fields_of_a_newer_version_are_kept(cache_dir: Path, tmp_path: Path):
    def change(fields: dict[str, Any]) -> None:
        fields["signed_by"] = "x"
        fields["resources"]["stack_bytes"] = 8

    rewritten(cache_dir, change)
    entry = open_store(cache_dir).kernel(DIGEST)
    assert entry is not None
    other = open_store(tmp_path / "other")
    content: dict[str, Path | bytes] = {name: entry.path(name) for name in entry.files}
    copy = other.put_kernel(entry.key, content, entry.resources, entry.extra)
    fields = document.load((copy.folder / ENTRY).read_bytes())
    assert fields["signed_by"] == "x"
    assert fields["resources"]["stack_bytes"] == 8
    assert fields["format"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"key": {"template": ["x"]}},
        {"key": {"config": {"a": 1}}},
        {"key": {"target": None}},
        {"bytes": -(10**15)},
        {"bytes": "8"},
        {"created": 1e308},
        {"resources": {"registers": "many"}},
        {"resources": []},
        {"files": {"kernel.so": 1}},
        {"files": {"a\0b": "0"}},
        {"files": ["kernel.so"]},
        {"digest": 7},
    ],
)
def test_an_entry_with_odd_fields_is_damaged_and_the_others_are_found(
    cache_dir: Path, fields: dict[str, Any]
):
    def change(stored: dict[str, Any]) -> None:
        for name, value in fields.items():
            merged = isinstance(value, dict) and name != "files"
            stored[name] = {**stored[name], **value} if merged else value

    folder = rewritten(cache_dir, change)
    with pytest.raises(ValueError, match=r"not a kernel entry|its digest|outside"):
        parse_entry((folder / ENTRY).read_bytes(), folder)
    store = open_store(cache_dir)
    sound = store.put_kernel(kernel_key("sound"), {"kernel.so": b"x"})
    assert store.kernels_like("gemm", "64x64", "x86_64") == [sound]
    assert store.kernel(DIGEST) is None
    assert not folder.exists()


@pytest.mark.parametrize("name", ["kernel.so", ENTRY])
def test_a_kernel_that_holds_a_link_or_a_pipe_is_not_loaded(
    cache_dir: Path, name: str, tmp_path: Path
):
    store = open_store(cache_dir)
    for odd in ("link", "pipe", "device"):
        path = put_library(store).folder / name
        (tmp_path / odd).write_bytes(path.read_bytes())
        path.unlink()
        if odd == "link" and name != ENTRY:
            path.symlink_to(tmp_path / odd)
        elif odd == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        assert open_store(cache_dir).kernel(DIGEST) is None
        assert not path.parent.exists()
        assert (tmp_path / odd).exists()


def test_a_file_that_grew_is_not_read_to_its_end(cache_dir: Path):
    path = put_library(open_store(cache_dir)).path("kernel.so")
    with path.open("r+b") as file:
        file.truncate(1 << 42)
    assert "larger than its kernel" in str(damage_of_folder(path.parent))


def test_a_kernel_that_was_evicted_meanwhile_holds_nothing(cache_dir: Path, tmp_path: Path):
    entry = put_library(open_store(cache_dir))
    copy = tmp_path / "copy.so"
    copy.write_bytes(entry.path("kernel.so").read_bytes())
    assert entry.holds("kernel.so", copy)
    status = copy.stat()
    copy.write_bytes(b"Library")  # of the same size and time
    for file in (copy, entry.path("kernel.so")):
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not entry.holds("kernel.so", copy)
    copy.write_bytes(b"library")
    assert entry.holds("kernel.so", copy)
    entry.path("kernel.so").unlink()
    assert not entry.holds("kernel.so", copy)


def test_a_kernel_that_was_built_again_meanwhile_is_not_removed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    library = put_library(open_store(cache_dir)).path("kernel.so")
    library.write_bytes(b"damaged")
    lock = Folder.lock

    def late(folder: Folder, name: str, timeout_s: float) -> HeldLock:
        library.write_bytes(b"library")  # another process was faster
        return lock(folder, name, timeout_s)

    monkeypatch.setattr(Folder, "lock", late)
    store = open_store(cache_dir)
    assert store.kernel(DIGEST) is None
    assert store.kernel(DIGEST) is not None


def test_a_kernel_that_a_process_goes_on_using_is_used_in_each_minute(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(kernels, "time", SimpleNamespace(monotonic=lambda: clock.now))
    store = open_store(cache_dir)
    path = put_library(store).folder / ENTRY
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    for passed_s, noted in ((TOUCH_S, False), (1.0, True)):
        clock.now += passed_s
        assert store.kernel(DIGEST) is not None  # from memory
        assert (path.stat().st_atime > 0) is noted


def test_of_kernels_alike_the_newest_comes_first(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    times = iter((2000.0, 3000.0, 1000.0))
    monkeypatch.setattr(
        "inductor_plugin.cache.entry.time", SimpleNamespace(time=lambda: next(times))
    )
    store = open_store(cache_dir)
    for name in ("second", "first", "third"):
        store.put_kernel(kernel_key(name), {"kernel.so": b"x"})
    alike = store.kernels_like("gemm", "64x64", "x86_64")
    assert [kernel.key.source for kernel in alike] == ["first", "second", "third"]


def test_kernels_outside_of_the_cache_are_not_removed_by_a_fork(tmp_path: Path):
    folder, remove = tmp_path / "scratch", kernels._remove_scratch  # pyright: ignore[reportPrivateUsage]
    folder.mkdir()
    remove(folder, os.getppid())
    assert folder.is_dir()
    remove(folder, os.getpid())
    assert not folder.exists()


def test_a_damaged_kernel_that_another_process_builds_is_not_removed(cache_dir: Path):
    library = put_library(open_store(cache_dir)).path("kernel.so")
    library.write_bytes(b"damaged")
    store = open_store(cache_dir)
    with Folder(store.layout).lock(DIGEST, 0):
        assert store.kernel(DIGEST) is None
        assert library.exists()
    assert store.kernel(DIGEST) is None
    assert not library.exists()


def test_a_kernel_under_the_name_of_another_is_damaged(cache_dir: Path):
    store, other = open_store(cache_dir), kernel_key("other").digest
    folder = store.layout.kernel(other)
    folder.parent.mkdir(parents=True, exist_ok=True)
    put_library(store).folder.rename(folder)
    fresh = open_store(cache_dir)
    assert [damage.reason for damage in fresh.verify()] == [
        f"it lies under the name of another kernel ({DIGEST[:12]})"
    ]
    assert fresh.kernel(other) is None
    assert not folder.exists()


@pytest.mark.parametrize(
    "origin",
    [
        {"signatures": {f"key {number}": "x" for number in range(MAX_SIGNATURES + 1)}},
        {"signatures": {"k" * 129: "x"}},
        {"signatures": {"k": "x" * 129}},
        {"taken": {"by": "friend", "source": "x.pack"}},
        {"taken": {"by": "operator"}},
    ],
)
def test_an_odd_origin_is_damage(cache_dir: Path, origin: dict[str, Any]):
    folder = rewritten(cache_dir, lambda fields: fields.update(origin))
    with pytest.raises(ValueError, match="its origin: "):
        parse_entry((folder / ENTRY).read_bytes(), folder)
    longest = {"signatures": {"k" * 128: "x" * 128}}
    sound = rewritten(cache_dir / "b", lambda fields: fields.update(longest))
    assert parse_entry((sound / ENTRY).read_bytes(), sound).signatures == longest["signatures"]


def test_a_kernel_in_memory_is_listed_and_found_by_what_it_is(cache_dir: Path):
    store = open_store(cache_dir, memory_only=True)
    entry = put_library(store)
    assert list(store.iter_kernels()) == [entry]
    assert store.kernels_like("gemm", "64x64", "x86_64") == [entry]
    assert store.kernels_like("gemm", "64x64", "aarch64") == []
    assert put_library(store) is entry
    assert store.unwritten == 1


def test_a_cache_holds_a_kernel_if_its_own_is_whole_and_nobody_elses(cache_dir: Path):
    store = open_store(cache_dir)
    entry = put_library(store)
    other = replace(entry, files={**entry.files, "kernel.so": "0" * 64})
    in_memory = open_store(cache_dir, memory_only=True)
    put_library(in_memory)
    for each in (store, in_memory):
        assert each.holds_kernel(entry)
        assert not each.holds_kernel(other)
    for folder in (cache_dir, *entry.folder.parents[:2], entry.folder):
        folder.chmod(0o755)
    entry.folder.chmod(0o777)
    assert not store.holds_kernel(entry)
    entry.folder.chmod(0o755)
    assert store.holds_kernel(entry)
    entry.path("kernel.so").write_bytes(b"damaged")
    assert not store.holds_kernel(entry)
    assert entry.folder.is_dir()


def test_what_is_on_disk_is_not_kept_in_memory_too(cache_dir: Path):
    entry = put_library(open_store(cache_dir))
    store = open_store(cache_dir, read_only=True)
    assert put_library(store).folder == entry.folder
    assert store.unwritten == 0


def test_a_built_file_is_kept_where_the_disk_fails(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "built.so").write_bytes(b"library")
    store = open_store(cache_dir)
    monkeypatch.setattr("inductor_plugin.cache.atomic.private_path", full)
    entry = store.put_kernel(kernel_key(), {"kernel.so": tmp_path / "built.so"})
    assert entry.path("kernel.so").read_bytes() == b"library"
    assert store.kernel(DIGEST) == entry
    assert os.strerror(errno.ENOSPC) in str(store.degraded)


def test_what_came_by_a_signature_needs_it_in_memory_too(cache_dir: Path):
    store = open_store(cache_dir, memory_only=True)  # it trusts nobody
    taken = {"taken": {"by": "signature", "source": "x.pack"}}
    entry = store.put_kernel(kernel_key(), {"kernel.so": b"library"}, None, taken)
    assert entry.path("kernel.so").exists()  # whoever has put it may look at it
    assert store.kernel(DIGEST) is None
