"""Folders of processes that are killed do not stay on a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inductor_plugin.worker.farm.folder import NodeFolder, is_abandoned
from tests.support.repository import REPOSITORY

KILLED = """
import os, signal
from inductor_plugin.worker.farm.folder import NodeFolder
folder = NodeFolder("node")
(folder.path / "weights").write_bytes(bytes(1 << 16))
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the place of temporary files of this process, and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    hour_ago = time.time() - 3600.0
    os.utime(folder / "lock", (hour_ago, hour_ago))


def test_the_next_process_removes_the_folder_of_one_that_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = Path(done.stdout.strip())
    assert (left / "weights").exists()
    NodeFolder("farm").remove()
    assert left.exists()  # its process might be about to lock it
    age(left)
    NodeFolder("farm").remove()
    assert not left.exists()


def test_the_folder_of_a_process_that_runs_stays(root: Path) -> None:
    first = NodeFolder("node")
    age(first.path)
    second = NodeFolder("node")
    assert first.path.is_dir()
    for folder in (first, second, second):
        folder.remove()
    assert list(root.iterdir()) == []


def test_what_is_no_such_folder_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("inductor-plugin-node-a", "inductor-plugin-node-b", "another"):
        (root / name).mkdir()
    for name in ("inductor-plugin-node-b", "another"):
        (root / name / "lock").write_text("")
        age(root / name)
    (root / "inductor-plugin-node-c").symlink_to(root / "another")
    assert is_abandoned(root / "inductor-plugin-node-b")
    assert not is_abandoned(root / "inductor-plugin-node-a")
    assert not is_abandoned(root / "inductor-plugin-node-c")
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: -1)
        assert not is_abandoned(root / "inductor-plugin-node-b")  # another user's
    NodeFolder("farm").remove()
    left = {path.name for path in root.iterdir()}
    assert left == {"inductor-plugin-node-a", "inductor-plugin-node-c", "another"}
