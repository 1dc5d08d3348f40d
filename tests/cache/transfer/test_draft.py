from __future__ import annotations

import errno
import os
import secrets
import threading
import zipfile
from pathlib import Path
from unittest.mock import patch

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.lock import HeldLock
from inductor_plugin.cache.transfer import tape
from inductor_plugin.cache.transfer.archive import export_archive
from inductor_plugin.cache.transfer.draft import draft_of, exclusive
from inductor_plugin.cache.transfer.wheel import write_wheel
from inductor_plugin.errors import ArchiveError, CacheError
from tests.support.cache.packs import pack_file
from tests.support.cache.records import kernel_key


def test_a_file_appears_whole_with_the_mode_of_any_file(tmp_path: Path) -> None:
    file = tmp_path / "x"
    with draft_of(file) as draft:
        draft.write_bytes(b"new")
        assert not file.exists()
    assert file.read_bytes() == b"new"
    (tmp_path / "y").touch()
    assert file.stat().st_mode == (tmp_path / "y").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_two_drafts_of_a_file_are_two_files(tmp_path: Path) -> None:
    with draft_of(tmp_path / "x") as first, draft_of(tmp_path / "x") as second:
        assert first != second


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit])
def test_nothing_is_left_of_a_draft_that_was_interrupted(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def write() -> None:
        with draft_of(tmp_path / "x") as draft:
            draft.write_bytes(b"new")
            raise error

    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(error):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_an_export_that_was_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "cache")
    store.put_kernel(kernel_key(), {"kernel.so": b"library"})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tape, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_archive(store, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_link_with_the_name_of_an_old_draft_is_not_followed(tmp_path: Path) -> None:
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    victim.write_bytes(b"precious")
    shared.mkdir()
    store = open_store(tmp_path / "cache")
    store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    (shared / ".x.pack.part").symlink_to(victim)
    export_archive(store, shared / "x.pack")
    pack = pack_file(tmp_path)
    name = write_wheel(pack, tmp_path).file.name
    (shared / f".{name}.part").symlink_to(victim)
    assert zipfile.is_zipfile(write_wheel(pack, shared).file)
    assert victim.read_bytes() == b"precious"
    assert not (shared / "x.pack").is_symlink()


def _zero(length: int) -> str:
    del length
    return "0"


def test_a_link_with_the_name_of_a_draft_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / ".x.0.part").symlink_to(tmp_path / "victim")
    monkeypatch.setattr(secrets, "token_hex", _zero)  # as if the name were guessed
    with pytest.raises(FileExistsError), draft_of(tmp_path / "x"):
        pass
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="no plain file"):
        export_archive(store, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_one_at_a_time_replaces_a_file_and_no_lock_file_is_left(tmp_path: Path) -> None:
    file, refused = tmp_path / "x", list[str]()

    def replace() -> None:
        try:
            with exclusive(file, 0.0):
                refused.append("")
        except CacheError as error:
            refused.append(str(error))

    with exclusive(file):
        other = threading.Thread(target=replace)
        other.start()
        other.join(10.0)
        assert f"{file} was being written" in refused.pop()
    replace()
    assert refused == [""]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "error", [NotImplementedError("flock"), OSError(errno.ENOLCK, "no locks available")]
)
def test_a_file_system_without_locks_is_written_to_after_a_warning(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "x"
    with patch.object(HeldLock, "__enter__", side_effect=error), exclusive(file):
        file.touch()
    assert f"inductor-plugin: {file} cannot be locked" in caplog.text


def test_a_folder_that_may_not_be_written_to_is_an_error(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "permission denied")
    with (
        patch.object(HeldLock, "__enter__", side_effect=error),
        pytest.raises(PermissionError),
        exclusive(tmp_path / "x"),
    ):
        pass
