"""Objects by fsspec, in memory and on a disk."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from pathlib import Path

import pytest

from inductor_plugin.cache.remote.files import Files, LocalFiles, open_files, shown
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
    def refuse(*_: object) -> None:
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


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(CacheError, match=r'pip install "inductor-plugin\[s3\]"'):
        open_files("s3://bucket/folder")


def test_a_url_is_shown_without_its_password() -> None:
    assert shown("ftp://me:secret@host/x") == "ftp://host/x"
    assert shown("s3://bucket/x") == "s3://bucket/x"
    assert "secret" not in shown("ftp://me:secret@[host/x")
