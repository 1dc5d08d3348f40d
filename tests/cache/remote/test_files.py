"""Objects by fsspec, in memory and on a disk."""

from __future__ import annotations

import errno
import importlib
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache.remote.files import Files, FsspecFiles, open_files
from inductor_plugin.errors import CacheError


@pytest.fixture(params=["memory", "file"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    url = f"memory://{uuid.uuid4()}" if request.param == "memory" else f"file://{tmp_path}/shared"
    return open_files(url)


def read(files: Files, name: str, limit: int = 100) -> bytes | OSError:
    return files.read([name], [limit], 5.0)[0]


def test_an_object_is_written_once_and_read(files: Files) -> None:
    files.create("v1/a/x", b"one", 5.0)
    with pytest.raises(FileExistsError):
        files.create("v1/a/x", b"two", 5.0)
    assert read(files, "v1/a/x") == b"one"
    assert isinstance(read(files, "v1/a/y"), FileNotFoundError)
    assert files.read([], [], 5.0) == []


def test_an_object_is_read_up_to_its_limit(files: Files) -> None:
    files.create("x", b"12345", 5.0)
    assert read(files, "x", 5) == b"12345"
    assert "more than 4 bytes" in str(read(files, "x", 4))


def test_names_are_listed_below_a_folder(files: Files) -> None:
    for name in ("v1/a/x", "v1/a/b/y", "v2/z"):
        files.create(name, b"1", 5.0)
    assert sorted(files.names("v1/", 5.0)) == ["v1/a/b/y", "v1/a/x"]
    assert files.names("v3/", 5.0) == []
    assert sorted(files.names("v1/a/b", 5.0)) == ["v1/a/b/y"]
    assert files.names("v1/a/c", 5.0) == files.names("v1/b/c", 5.0) == []


def test_an_object_store_is_told_how_the_names_begin_and_lists_no_others() -> None:
    core: Any = importlib.import_module("fsspec.asyn")
    asked: list[tuple[str, str]] = []

    async def find(path: str, prefix: str = "") -> list[str]:
        asked.append((path, prefix))
        return [f"{path}/{prefix}1"]

    system = core.AsyncFileSystem(skip_instance_cache=True)
    system._find = find
    files = FsspecFiles(system, "bucket")
    assert files.names("v1/a/0f", 5.0) == ["v1/a/0f1"]
    assert files.names("v1/a/", 5.0) == ["v1/a/1"]
    assert asked == [("bucket/v1/a", "0f"), ("bucket/v1/a", "")]


def test_folders_of_a_folder_are_listed(files: Files) -> None:
    for name in ("v1/a/x", "v1/a/b/c/y", "v1/d/z", "v1/file"):
        files.create(name, b"1", 5.0)
    assert sorted(files.folders("v1/", 5.0)) == ["a", "d"]
    assert files.folders("v1/a/", 5.0) == ["b"]
    assert files.folders("v3/", 5.0) == files.folders("v1/d/", 5.0) == []


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(CacheError, match=r'pip install "inductor-plugin\[s3\]"'):
        open_files("s3://bucket/folder")


def test_an_object_is_replaced(files: Files) -> None:
    for content in (b"one", b"two"):
        files.replace("v1/a/x", content, 5.0)
        assert read(files, "v1/a/x") == content


def test_a_file_system_that_needs_a_folder_first_gets_it(tmp_path: Path) -> None:
    local: Any = importlib.import_module("fsspec.implementations.local")
    files = FsspecFiles(local.LocalFileSystem(auto_mkdir=False), str(tmp_path))  # as sftp
    files.create("v1/a/x", b"one", 5.0)
    assert read(files, "v1/a/x") == b"one"


class Refusing:
    """A file system whose calls fail as s3fs translates an answer."""

    def __init__(self, code: str, error: OSError, mode: str = "") -> None:
        error.__cause__ = ValueError(code)
        vars(error.__cause__)["response"] = {"Error": {"Code": code}}
        self._error, self._mode = error, mode
        self.objects: dict[str, bytes] = {}

    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...

    def invalidate_cache(self) -> None: ...

    def find(self, path: str) -> list[str]:
        raise self._error

    def pipe_file(self, path: str, data: bytes, *, mode: str) -> None:
        if not self._mode or mode == self._mode:
            raise self._error
        self.objects[path] = data

    def cat_ranges(self, paths: list[str], *_: object) -> list[bytes | OSError]:
        if not self._mode:
            return [self._error] * len(paths)
        return [self.objects.get(path, FileNotFoundError(path)) for path in paths]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("NoSuchBucket", FileNotFoundError("The specified bucket does not exist")),
        ("ExpiredToken", PermissionError("The provided token has expired.")),
    ],
)
def test_what_concerns_all_requests_is_neither_a_missing_object_nor_a_missing_right(
    code: str, error: OSError
) -> None:
    files = FsspecFiles(Refusing(code, error), "bucket")
    there = read(files, "x")
    assert type(there) is OSError
    assert str(error) in str(there)
    with pytest.raises(OSError, match=str(error)) as raised:
        files.create("x", b"1", 5.0)
    assert raised.value.errno == errno.EIO


def test_a_missing_object_and_a_missing_right_stay_what_they_are() -> None:
    missing = FsspecFiles(Refusing("NoSuchKey", FileNotFoundError("x")), "bucket")
    assert isinstance(read(missing, "x"), FileNotFoundError)
    denied = FsspecFiles(Refusing("AccessDenied", PermissionError("x")), "bucket")
    assert isinstance(read(denied, "x"), PermissionError)


def test_a_missing_folder_has_no_names_and_what_cannot_be_listed_is_an_error() -> None:
    missing = FsspecFiles(Refusing("NoSuchKey", FileNotFoundError("x")), "bucket")
    assert missing.names("v1/", 5.0) == []
    denied = FsspecFiles(Refusing("AccessDenied", PermissionError("x")), "bucket")
    with pytest.raises(PermissionError):
        denied.names("v1/", 5.0)
    error = FileNotFoundError("The specified bucket does not exist")
    gone = FsspecFiles(Refusing("NoSuchBucket", error), "bucket")
    with pytest.raises(OSError, match="bucket does not exist") as raised:
        gone.names("v1/", 5.0)
    assert raised.value.errno == errno.EIO


def test_a_store_without_conditional_requests_is_written_to_and_nothing_is_replaced() -> None:
    refused = OSError(errno.ENOSYS, "A header you provided implies functionality ...")
    system = Refusing("NotImplemented", refused, "create")
    files = FsspecFiles(system, "bucket")
    files.create("x", b"one", 5.0)
    assert system.objects == {"bucket/x": b"one"}
    with pytest.raises(FileExistsError):
        files.create("x", b"two", 5.0)
    assert system.objects == {"bucket/x": b"one"}
