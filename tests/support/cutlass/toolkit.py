"""The CUDA toolkit that kernels are compiled with."""

from __future__ import annotations

import os

import pytest

from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit


@pytest.fixture(name="toolkit", scope="module")
def a_toolkit() -> Toolkit:
    toolkit = nvcc.find("", dict(os.environ))
    if not isinstance(toolkit, Toolkit):
        pytest.skip(toolkit.reason)
    return toolkit
