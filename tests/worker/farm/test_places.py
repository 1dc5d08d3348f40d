"""What a node makes of paths and settings of the machine that sends a job."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

import inductor_plugin
from inductor_plugin.worker.farm import places
from inductor_plugin.worker.farm.places import folders, is_writable, moved, settings_here
from inductor_plugin.worker.jobs import WorkerSettings


def test_folders_that_commands_name_are_known_without_an_import() -> None:
    known = folders()
    assert Path(known["torch"], "include").is_dir()
    assert known["inductor_plugin"] == str(Path(inductor_plugin.__file__).resolve().parent)
    assert known["headers of Python"] == sysconfig.get_path("include")


def test_the_innermost_folder_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("outer", "inner"):
        (tmp_path / name / "lib").mkdir(parents=True)
    ours = {"nvidia": str(tmp_path / "outer"), "torch": str(tmp_path / "inner")}
    monkeypatch.setattr(places, "folders", lambda: ours)
    theirs = {"nvidia": "/a", "torch": "/a/b"}
    assert moved("/a/b/lib", theirs) == f"{tmp_path}/inner/lib"
    assert moved("/a/lib", theirs) == f"{tmp_path}/outer/lib"
    assert moved("/a", theirs) == f"{tmp_path}/outer"
    assert moved("/another/lib", theirs) == "/another/lib"
    assert moved("/ab/lib", theirs) == "/ab/lib"


def test_a_folder_of_the_system_is_moved_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of CUDA beside Python's is not looked for beside the node's Python."""
    (tmp_path / "libcudart.so").write_text("")
    monkeypatch.setattr(places, "folders", lambda: {"libraries of Python": str(tmp_path)})
    theirs = {"libraries of Python": "/usr/lib"}
    assert moved("/usr/lib", theirs) == str(tmp_path)
    assert moved("/usr/lib/libcudart.so", theirs) == "/usr/lib/libcudart.so"


def test_settings_hold_as_far_as_they_can(tmp_path: Path) -> None:
    sent = WorkerSettings(
        (str(tmp_path), "/only/at/the/sender"),
        "compile",
        cache_dir=str(tmp_path / "cache"),
        kernel_folder="/only/at/the/sender",
    )
    here = settings_here(sent)
    assert here.sys_path[0] == str(tmp_path)
    assert "/only/at/the/sender" not in here.sys_path
    assert set(sys.path) - {""} <= set(here.sys_path)
    assert (here.cache_dir, here.kernel_folder) == (str(tmp_path / "cache"), "")
    (tmp_path / "cache").write_text("a file")
    assert settings_here(sent).cache_dir == ""


def test_a_sender_none_of_whose_folders_is_here_still_gets_a_worker() -> None:
    here = settings_here(WorkerSettings(("/only/at/the/sender",), "compile"))
    assert set(sys.path) - {""} <= set(here.sys_path)


def test_what_can_be_created_can_be_written_to(tmp_path: Path) -> None:
    assert is_writable(str(tmp_path / "a" / "b"))
    assert not is_writable("")
    (tmp_path / "file").write_text("")
    assert not is_writable(str(tmp_path / "file" / "a"))
