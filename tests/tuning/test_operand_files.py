"""Operands on their way to the worker: the same values, in files that do not stay."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.tuning import operand_files, scratch
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.worker.child.operands import build

KEEPER = """
import sys, tempfile, time
from pathlib import Path
import torch
from inductor_plugin.tuning import operand_files
operand_files._SHM = Path(sys.argv[1])
tempfile.tempdir = sys.argv[2]
files = operand_files.OperandFiles()
print(files.keep("w", torch.ones(1 << 10)).file, flush=True)
time.sleep(600)
"""


class Disk(NamedTuple):
    """What the module asks of `shutil.disk_usage`."""

    free: int


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """Give the test a memory disk and a temporary folder of its own."""
    memory, disk = tmp_path / "shm", tmp_path / "tmp"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(operand_files, "_SHM", memory)
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    return memory, disk


def path_of(layout: TensorSpec) -> Path:
    assert layout.file is not None
    return Path(layout.file)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24, dtype=torch.int32)[4:20:2],
        torch.randn(4, 4).to(torch.bfloat16),
        torch.zeros(0, 3),
        torch.tensor(3.5, requires_grad=True),
    ],
    ids=["dense", "transposed", "slice", "bfloat16", "empty", "scalar"],
)
def test_the_worker_builds_the_same_tensor(tensor: torch.Tensor) -> None:
    files = OperandFiles()
    result = build(files.keep("w", tensor))
    assert torch.equal(result, tensor.detach())
    assert result.dtype == tensor.dtype
    if tensor.numel():
        assert result.stride() == tensor.stride()
        assert result.storage_offset() == tensor.storage_offset()
    files.remove()


def test_a_name_is_written_once_and_nameless_tensors_each(places: tuple[Path, Path]) -> None:
    files = OperandFiles()
    weight = torch.randn(3)
    assert files.keep("w", weight) is files.keep("w", weight)
    first, second = files.keep_new(weight), files.keep_new(weight)
    assert len({path_of(spec) for spec in (files.keep("w", weight), first, second)}) == 3


def test_a_packed_weight_travels_as_the_plain_one(places: tuple[Path, Path]) -> None:
    files = OperandFiles()
    weight = torch.randn(3, 4)
    packed = files.keep_packed("w", weight, "mkldnn_linear", 7)
    assert (packed.packing, packed.packing_batch) == ("mkldnn_linear", 7)
    assert packed.size == (3, 4)
    assert path_of(packed) == path_of(files.keep_packed("w", weight, "mkldnn_linear", 8))


def test_files_are_for_this_user_alone(places: tuple[Path, Path]) -> None:
    folder = path_of(OperandFiles().keep("w", torch.ones(1))).parent
    gc.collect()
    files = OperandFiles()
    folder = path_of(files.keep("w", torch.ones(1))).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_are_removed_when_asked_and_can_be_made_again(places: tuple[Path, Path]) -> None:
    files = OperandFiles()
    path = path_of(files.keep("w", torch.ones(1)))
    files.remove()
    assert not path.parent.exists()
    assert path_of(files.keep("w", torch.ones(1))).exists()
    files.remove()


def test_files_of_a_compile_that_failed_do_not_stay(places: tuple[Path, Path]) -> None:
    files = OperandFiles()
    path = path_of(files.keep("w", torch.ones(1)))
    del files
    gc.collect()
    assert not path.parent.exists()


def test_each_file_goes_where_it_has_room(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, disk = places
    free = {"bytes": 1 << 40}

    def usage(_path: Path) -> Disk:
        return Disk(free["bytes"])

    monkeypatch.setattr(shutil, "disk_usage", usage)
    files = OperandFiles()
    assert path_of(files.keep("first", torch.ones(1))).is_relative_to(memory)
    free["bytes"] = 1 << 20
    second = path_of(files.keep("second", torch.ones(1)))
    assert second.is_relative_to(disk)
    assert second.exists()
    files.remove()
    assert list(memory.iterdir()) == list(disk.iterdir()) == []


def keeper(memory: Path, disk: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that keeps an operand, and return it with the file."""
    child = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(memory), str(disk)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_what_a_killed_process_left_goes_when_the_next_one_compiles(
    places: tuple[Path, Path],
) -> None:
    first, left = keeper(*places)
    second, used = keeper(*places)
    try:
        assert left.stat().st_size == 4 << 10
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert left.exists()
        assert scratch.orphans(places[0]) == [left.parent]
        files = OperandFiles()
        assert not left.parent.exists()
        mine = path_of(files.keep("w", torch.ones(1)))
        assert used.exists()
        assert mine.exists()
    finally:
        for child in (first, second):
            child.kill()
            child.communicate()
    files.remove()
    assert scratch.sweep(places[0]) == [used.parent]
    assert list(places[0].iterdir()) == []


def test_what_was_left_on_the_disk_goes_when_files_have_to_lie_there(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = places[1] / f"{scratch.ProcessId(str(scratch.boot_and_namespace()), 4194305, 7).prefix}x"
    left.mkdir()

    def full(_path: Path) -> Disk:
        return Disk(0)

    monkeypatch.setattr(shutil, "disk_usage", full)
    files = OperandFiles()
    assert left.exists()
    mine = path_of(files.keep("w", torch.ones(1)))
    assert mine.is_relative_to(places[1])
    assert not left.exists()
    files.remove()


def test_a_process_looks_for_what_others_left_once(places: tuple[Path, Path]) -> None:
    OperandFiles().keep("w", torch.ones(1))
    late = places[0] / f"{scratch.ProcessId(str(scratch.boot_and_namespace()), 4194305, 7).prefix}x"
    late.mkdir()
    OperandFiles().keep("w", torch.ones(1))
    assert late.exists()
    assert scratch.orphans(places[0]) == [late]


def test_a_fork_removes_nothing_of_the_process_it_comes_from(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OperandFiles()
    path = path_of(files.keep("w", torch.ones(1)))
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    files.remove()
    assert path.exists()
