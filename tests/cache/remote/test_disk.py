"""Objects as files of a folder, which others may write to as well."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache.remote.disk import LocalFiles


def read(files: LocalFiles, name: str, limit: int = 100) -> bytes | OSError:
    (content,) = files.read([name], [limit], 5.0)
    return content


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


def test_a_link_among_folders_is_none_of_them(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "remote"
    (home / "own").mkdir(parents=True)
    (root / "v1" / "a").mkdir(parents=True)
    (root / "v1" / "link").symlink_to(home)
    files = LocalFiles(root)
    assert files.folders("v1/", 5.0) == ["a"]
    with pytest.raises(OSError, match="a link, which is not followed in a remote"):
        files.folders("v1/link/", 5.0)
