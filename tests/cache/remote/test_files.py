"""Objects by fsspec, in memory and on a disk."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache.remote.files import Files, FsspecFiles, LocalFiles, open_files, shown
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


def test_what_is_no_file_is_an_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    """Whoever may write there may put a folder or a pipe in the place of an object."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    files = LocalFiles(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        assert isinstance(read(files, "folder"), OSError)
        assert read(files, "pipe") == b""
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    os.close(writer)


def test_names_are_listed_below_a_folder(files: Files) -> None:
    for name in ("v1/a/x", "v1/a/b/y", "v2/z"):
        files.create(name, b"1", 5.0)
    assert sorted(files.names("v1/", 5.0)) == ["v1/a/b/y", "v1/a/x"]
    assert files.names("v3/", 5.0) == []


def test_of_many_writers_of_a_file_one_wins_and_nobody_reads_a_part(tmp_path: Path) -> None:
    files, won, seen = LocalFiles(tmp_path), list[int](), set[bytes | str]()
    contents = [bytes([65 + n]) * 1_000_000 for n in range(8)]

    def write(n: int) -> None:
        try:
            files.create("x", contents[n], 5.0)
        except FileExistsError:
            pass
        else:
            won.append(n)
        there = read(files, "x", 2_000_000)
        seen.add(there if isinstance(there, bytes) else repr(there))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert seen == {contents[won[0]]}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_where_a_disk_has_no_links_a_file_is_still_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **_more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    files = LocalFiles(tmp_path)
    files.create("x", b"one", 5.0)
    with pytest.raises(FileExistsError):
        files.create("x", b"two", 5.0)
    assert read(files, "x") == b"one"


def test_a_pipe_in_the_place_of_an_object_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    assert read(LocalFiles(tmp_path), "x") == b""


@pytest.mark.parametrize("place", ["v1", "v1/environment", "v1/environment/records"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path, place: str) -> None:
    """Whoever may write to the remote could have other users write into their own folders."""
    home, root = tmp_path / "home", tmp_path / "remote"
    home.mkdir()
    (home / "own").write_bytes(b"secret")
    (root / place).parent.mkdir(parents=True)
    (root / place).symlink_to(home)
    files = LocalFiles(root)
    for write in (files.create, files.replace):
        with pytest.raises(OSError, match="a link, which is not followed in a remote"):
            write("v1/environment/records/x/0000.json", b"1", 5.0)
        with pytest.raises(OSError, match="a link, which is not followed in a remote"):
            write(f"{place}/own", b"1", 5.0)
    assert "a link, which is not followed" in str(read(files, f"{place}/own"))
    assert files.names("", 5.0) == []
    with pytest.raises(OSError, match="a link, which is not followed in a remote"):
        files.names(f"{place}/", 5.0)
    assert [(path.name, path.read_bytes()) for path in home.iterdir()] == [("own", b"secret")]


def test_a_link_in_the_place_of_an_object_is_not_followed(tmp_path: Path) -> None:
    home, root = tmp_path / "own", tmp_path / "remote"
    home.write_bytes(b"secret")
    root.mkdir()
    (root / "x").symlink_to(home)
    files = LocalFiles(root)
    assert isinstance(read(files, "x"), OSError)
    assert files.names("", 5.0) == []
    with pytest.raises(FileExistsError):
        files.create("x", b"1", 5.0)
    files.replace("x", b"1", 5.0)  # the link, and not what it leads to
    assert (read(files, "x"), home.read_bytes()) == (b"1", b"secret")


def test_the_folder_that_is_named_may_be_a_link(tmp_path: Path) -> None:
    """As /mnt/shared, which an administrator has made."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "shared").symlink_to(tmp_path / "disk")
    files = LocalFiles(tmp_path / "shared" / "remote")
    files.create("v1/x", b"1", 5.0)
    assert (files.names("v1/", 5.0), read(files, "v1/x")) == (["v1/x"], b"1")
    assert (tmp_path / "disk" / "remote" / "v1" / "x").exists()


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


def test_a_file_that_a_full_disk_cuts_leaves_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **_more: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    opening = os.fdopen

    def opened(descriptor: int, mode: str) -> Any:
        file = opening(descriptor, mode)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name != "x":
            return file
        file.close()
        return Full()

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fdopen", opened)
    with pytest.raises(OSError, match="No space"):
        LocalFiles(tmp_path).create("x", b"one", 5.0)
    assert list(tmp_path.iterdir()) == []


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


def test_a_url_is_shown_without_its_password() -> None:
    assert shown("ftp://me:secret@host/x") == "ftp://host/x"
    assert shown("s3://bucket/x") == "s3://bucket/x"
    assert "secret" not in shown("ftp://me:secret@[host/x")
