"""The emulated CUDA runtime that all tests of a process share.

A process has one: kernels are linked with the first library of its name that is loaded, and launches of another are none.
"""

import pytest

from tests.emulator.kernels import build
from tests.emulator.runtime.runtime import Runtime


@pytest.fixture(name="runtime", scope="session")
def a_runtime() -> Runtime:
    return Runtime(build.CACHE)
