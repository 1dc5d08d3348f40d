"""Whose a temporary folder is, and which ones may go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inductor_plugin.tuning import scratch
from inductor_plugin.tuning.scratch import ProcessId

HIGHEST_PID = 1 << 22  # Linux gives no process this number or a higher one


def me() -> ProcessId:
    process = scratch.process_id(os.getpid())
    assert process is not None
    return process


def folder(parent: Path, process: ProcessId) -> Path:
    path = parent / f"{process.prefix}abc_1"
    path.mkdir()
    (path / "0.bin").write_bytes(b"weights")
    return path


def test_a_folder_names_the_process_that_made_it(tmp_path: Path) -> None:
    path = scratch.make_folder(tmp_path)
    assert scratch.named_process(path.name) == me()
    assert path.stat().st_mode & 0o777 == 0o700
    assert scratch.sweep(tmp_path) == []


def test_a_build_folder_is_swept_as_one_of_operands(tmp_path: Path) -> None:
    path = scratch.make_folder(tmp_path, scratch.BUILD)
    assert path.name.startswith("inductor-plugin-build-")
    assert scratch.named_process(path.name) == me()
    left = tmp_path / f"{ProcessId(me().place, HIGHEST_PID, 1).prefix_of(scratch.BUILD)}x"
    left.mkdir()
    scratch.sweep_once(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    left.mkdir()
    scratch.sweep_once(tmp_path)  # once a process
    assert left.exists()


def test_the_start_time_is_field_22_also_behind_an_awkward_command(tmp_path: Path) -> None:
    program = tmp_path / "a ) b (c"
    program.symlink_to("/bin/sleep")
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    child = subprocess.Popen([str(program), "60"])
    try:
        started = scratch.start_ticks(child.pid)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert started is not None
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        assert before - tick_s <= started * tick_s <= after + tick_s
    finally:
        child.kill()
        child.wait()
    assert scratch.start_ticks(child.pid) is None


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # closed at its end; nobody has waited for it
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    assert scratch.start_ticks(child.pid) is None
    child.communicate()


def test_folders_of_the_dead_go_and_all_others_stay(tmp_path: Path) -> None:
    mine = me()
    dead = folder(tmp_path, ProcessId(mine.place, HIGHEST_PID, mine.started))
    reused = folder(tmp_path, ProcessId(mine.place, mine.pid, mine.started - 1))
    stays = [
        folder(tmp_path, mine),
        folder(tmp_path, ProcessId("0" * 12, HIGHEST_PID, mine.started)),  # another container's
    ]
    for name in ("inductor-plugin-abc", f"{dead.name}.d", "other-1-1-1"):
        stays.append(tmp_path / name)
        stays[-1].mkdir()
    link = tmp_path / f"{ProcessId(mine.place, HIGHEST_PID + 1, 1).prefix}x"
    link.symlink_to(stays[0])
    file = tmp_path / f"{ProcessId(mine.place, HIGHEST_PID + 2, 1).prefix}x"
    file.write_text("no folder")
    assert set(scratch.sweep(tmp_path)) == {dead, reused}
    assert set(tmp_path.iterdir()) == {*stays, link, file}
    assert (stays[0] / "0.bin").exists()


def test_folders_of_another_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path, ProcessId(me().place, HIGHEST_PID, 1))
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert scratch.sweep(tmp_path) == []
    assert path.exists()


def test_without_proc_nothing_is_named_or_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = folder(tmp_path, ProcessId(me().place, HIGHEST_PID, 1))
    monkeypatch.setattr(scratch, "boot_and_namespace", lambda: None)
    path = scratch.make_folder(tmp_path)
    assert scratch.named_process(path.name) is None
    assert scratch.sweep(tmp_path) == []
    assert path.exists()
    assert left.exists()


def test_a_parent_that_is_not_there_has_no_orphans(tmp_path: Path) -> None:
    assert scratch.sweep(tmp_path / "none") == []


def test_a_build_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def build() -> None:
        with scratch.build_folder() as folder:
            (folder / "half").write_bytes(b"x")
            raise RuntimeError("compiler")

    with pytest.raises(RuntimeError, match="compiler"):
        build()
    assert list(tmp_path.iterdir()) == []
