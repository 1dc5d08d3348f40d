"""Operands from files: what is no such file is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.operands import build


def spec(path: Path) -> TensorSpec:
    return TensorSpec((2, 3), (3, 1), "float32", "cpu", file=str(path))


def test_a_file_is_the_operand(tmp_path: Path) -> None:
    path = tmp_path / "0.bin"
    path.write_bytes(torch.arange(6.0).numpy().tobytes())
    assert torch.equal(build(spec(path)), torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("odd", ["pipe", "folder", "cut"])
def test_what_is_no_whole_file_is_refused(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "0.bin"
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(23))
    with pytest.raises(ValueError, match="is not a file of 24 bytes"):
        build(spec(path))
