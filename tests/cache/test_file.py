from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from inductor_plugin.cache.file import exists, is_folder, open_regular, read


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read(path, 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read(path, 4)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="more than"):
        read(path)


def test_what_has_no_content_of_its_own_is_refused_at_once(tmp_path: Path):
    pipe, door, link = tmp_path / "pipe", tmp_path / "socket", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(door))
        for path in (pipe, door, link):
            with pytest.raises(ValueError, match="not a file"):
                read(path)
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


def test_a_link_is_followed_only_if_it_may_be(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    assert read(tmp_path / "link") == b"content"
    with pytest.raises(ValueError, match="it is a link"):
        open_regular(tmp_path / "link", follow=False)
    with pytest.raises(ValueError, match="link to itself"):
        read(tmp_path / "loop")


def test_looking_where_one_may_not_look_is_no_error(tmp_path: Path):
    assert exists(tmp_path)
    assert is_folder(tmp_path)
    assert not exists(tmp_path / ("n" * 300))  # ENAMETOOLONG, which Path.exists raises
    assert not is_folder(tmp_path / ("n" * 300))
