"""A pool of compile workers, local or of a farm, and small kernels for it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm.pool import FarmPool, Pool, on_farm
from inductor_plugin.worker.jobs import (
    Compiled,
    CppCompileJob,
    WorkerSettings,
)
from tests.support.fakes.waiting import wait_idle
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(sys_path=(str(REPOSITORY), *sys.path), kind="compile")
GXX = ("g++", "{source}", "-O0", "-shared", "-fPIC", "-o", "{output}")


def source(key: str, factor: int, body: str = "") -> CppSource:
    text = f"""
#include <cstdint>
#include <vector>
{body}
template <int F> inline void kernel_helper(const int64_t* x, int64_t* y) {{ *y = F * *x; }}
extern "C"
void kernel(const int64_t* x, int64_t* y)
{{
    kernel_helper<{factor}>(x, y);
}}
"""
    return CppSource(key, text, "kernel")


def times(compiled: Compiled, value: int) -> int:
    """Call the kernel that was built."""
    assert compiled.library is not None
    x, y = ctypes.c_int64(value), ctypes.c_int64(0)
    getattr(ctypes.CDLL(compiled.library), compiled.symbol)(ctypes.byref(x), ctypes.byref(y))
    return y.value


@pytest.fixture(name="pool", params=["local", pytest.param("farm", marks=pytest.mark.slow)])
def a_pool(request: pytest.FixtureRequest) -> Generator[Pool, None, None]:
    """The local pool, and that of a farm: what one passes, the other passes."""
    local = CompilePool(2, SETTINGS, 0)
    pool: Pool = local
    if request.param == "farm":
        farm: str = request.getfixturevalue("ray_on_this_machine")
        pool = on_farm(farm, SETTINGS, local, 0)
        assert isinstance(pool, FarmPool)
    yield pool
    pool.close()


def build(
    pool: Pool,
    folder: Path,
    *sources: CppSource,
    command: tuple[str, ...] = GXX,
    limit_s: float = 60.0,
) -> dict[str, Compiled]:
    """Compile a batch and wait for its answer."""
    answers: list[list[Compiled]] = []
    pool.submit(CppCompileJob(sources, command, str(folder), limit_s), answers.append)
    assert wait_idle(pool, 300.0)  # on a busy machine a node starts a worker in 20 s
    assert len(answers) == 1
    return {compiled.key: compiled for compiled in answers[0]}


def shell_compiler(folder: Path, trap: str) -> tuple[str, ...]:
    """Return a compiler that falls into a trap when the word TRAP is in its source."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nif grep -q TRAP $1; then {trap}; fi\nexec {' '.join(GXX)}\n")
    script.write_text(script.read_text().replace("{source}", "$1").replace("{output}", "$2"))
    script.chmod(0o755)
    return (str(script), "{source}", "{output}")
