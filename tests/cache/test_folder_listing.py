"""Names in a folder: read again when it has changed, and only then."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from inductor_plugin.cache import folder
from inductor_plugin.cache.folder import SETTLED_S, Listing


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record how often a folder is read."""
    folders: list[Path] = []
    listdir = os.listdir

    def listed(folder: Path) -> list[str]:
        folders.append(folder)
        return listdir(folder)

    monkeypatch.setattr(folder.os, "listdir", listed)
    return folders


def age(folder: Path, seconds: float) -> None:
    """Set the time of a folder's last change."""
    then = time.time() - seconds
    os.utime(folder, (then, then))


def test_a_missing_folder_has_no_names_until_it_is_there(tmp_path: Path) -> None:
    names = Listing()
    assert names.names(tmp_path / "new") == frozenset()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a").touch()
    assert names.names(tmp_path / "new") == {"a"}


def test_a_folder_that_stays_as_it_is_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    names = Listing()
    (tmp_path / "a").touch()
    age(tmp_path, 60)
    assert [names.names(tmp_path) for _ in range(3)] == [{"a"}] * 3
    assert len(reads) == 1


def test_each_change_is_seen(tmp_path: Path) -> None:
    names = Listing()
    age(tmp_path, 60)
    assert names.names(tmp_path) == frozenset()
    (tmp_path / "a").touch()
    assert names.names(tmp_path) == {"a"}
    (tmp_path / "a").unlink()
    assert names.names(tmp_path) == frozenset()


def test_a_second_change_within_one_step_of_the_file_system_is_seen(
    tmp_path: Path, reads: list[Path]
) -> None:
    names = Listing()
    age(tmp_path, SETTLED_S / 2)
    before = tmp_path.stat().st_mtime_ns
    assert names.names(tmp_path) == frozenset()
    (tmp_path / "a").touch()
    os.utime(tmp_path, ns=(before, before))  # as if both had happened in one step
    assert names.names(tmp_path) == {"a"}
    assert len(reads) == 2


def test_a_folder_that_cannot_be_listed_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Path) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(folder.os, "listdir", refuses)
    assert Listing().names(tmp_path) is None
