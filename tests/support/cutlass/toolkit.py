"""The CUDA toolkit that kernels are compiled with."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit


@pytest.fixture(name="toolkit", scope="module")
def a_toolkit() -> Toolkit:
    toolkit = nvcc.find("", dict(os.environ))
    if not isinstance(toolkit, Toolkit):
        pytest.skip(toolkit.reason)
    return toolkit


def load_runtime(toolkit: Toolkit) -> None:
    """Load the runtime that kernels are linked with, as a CUDA build of torch does when it is imported."""
    ctypes.CDLL(toolkit.cudart, mode=ctypes.RTLD_GLOBAL)


def toolkit_at(root: Path, *, lib: str = "lib64", cccl: bool = True, major: int = 13) -> Path:
    """Make the files of a toolkit that nobody can run; return its nvcc."""
    program = root / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (root / "include").mkdir()
    (root / "include" / "cuda_runtime.h").touch()
    if cccl:
        (root / "include" / "cccl" / "cuda" / "std").mkdir(parents=True)
    (root / lib).mkdir()
    (root / lib / f"libcudart.so.{major}").touch()
    return program
