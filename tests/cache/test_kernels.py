"""What the shelf of kernels does with folders that it cannot use."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import document, open_store
from inductor_plugin.cache.entry import ENTRY, damage_of_folder, parse_entry
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
    entry.path("kernel.so").unlink()
    assert not entry.holds("kernel.so", copy)
