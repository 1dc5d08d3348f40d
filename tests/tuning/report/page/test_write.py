from __future__ import annotations

import os
from pathlib import Path

import pytest

from inductor_plugin.tuning.report.page.write import write_page


def test_a_page_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    for text in ("one", "é"):
        assert write_page(file, text) == len(text.encode())
        assert file.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [file]


def test_links_of_others_are_neither_followed_nor_written_through(tmp_path: Path) -> None:
    file, other = tmp_path / "out.html", tmp_path / "other"
    other.write_text("kept")
    file.symlink_to(other)
    for name in (f".{file.name}.{os.getpid()}", f".{file.name}.{os.getppid()}"):
        (tmp_path / name).symlink_to(other)
    write_page(file, "page")
    assert other.read_text() == "kept"
    assert file.read_text() == "page"
    assert not file.is_symlink()


def test_a_page_that_cannot_take_its_place_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    file.mkdir()
    with pytest.raises(OSError, match="no plain file"):
        write_page(file, "page")
    assert list(tmp_path.iterdir()) == [file]
