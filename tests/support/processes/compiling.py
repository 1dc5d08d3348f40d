"""A pool of compile workers, local or of a farm, and small kernels for it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin import errors
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm import cluster
from inductor_plugin.worker.farm import pool as farm_pool
from inductor_plugin.worker.farm.pool import FarmPool, Pool, on_farm
from inductor_plugin.worker.jobs import (
    Compiled,
    CppCompileJob,
    WorkerSettings,
)
from tests.support.fakes.waiting import wait_idle
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(sys_path=(str(REPOSITORY), *sys.path), kind="compile")
LIMIT_S = 300.0
"""Limit of what takes seconds: on a busy machine a node starts a worker in 20 s."""
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


class Pools:
    """Opens pools of one kind, local ones or those of a farm.

    Attributes:
        farm: The option ``compile_farm``; empty for local pools.
        may_compile_here: Whether a farm may leave jobs to this machine, as where all its nodes refuse them.
    """

    def __init__(self, farm: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.farm, self.may_compile_here = farm, False
        self._monkeypatch, self._opened = monkeypatch, list[Pool]()
        self._said = set[str]()
        monkeypatch.setattr(errors, "_SAID", self._said)
        monkeypatch.setattr(farm_pool, "_BEGIN_S", LIMIT_S)  # nodes of a busy machine begin late

    def open(
        self, workers: int = 2, settings: WorkerSettings = SETTINGS, memory_bytes: int = 0
    ) -> Pool:
        """Open a pool, with the local one that a farm has, too."""
        pool: Pool = CompilePool(workers, settings, memory_bytes)
        if self.farm:
            pool = on_farm(self.farm, settings, pool, memory_bytes)
            assert isinstance(pool, FarmPool)
        self._opened.append(pool)
        return pool

    def wrap(self, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap what runs a job beside its compile worker, in the process that does, on nodes too; for pools opened later.

        Args:
            wrapped: Returns a function in a function, which Ray sends as it is.
        """
        self._monkeypatch.setattr(compile_pool, "compile_all", wrapped(compile_pool.compile_all))
        self._monkeypatch.setattr(cluster, "compile_parcel", wrapped(cluster.compile_parcel))

    def close(self) -> None:
        """Close all, and check where jobs were compiled."""
        for pool in self._opened:
            pool.close()
        assert self.may_compile_here or "farm" not in self._said  # the topic of the warning


@pytest.fixture(name="pools", params=["local", pytest.param("farm", marks=pytest.mark.slow)])
def all_pools(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Generator[Pools, None, None]:
    """Local pools, and those of a farm: what one passes, the other passes."""
    is_farm = request.param == "farm"
    pools = Pools(request.getfixturevalue("ray_on_this_machine") if is_farm else "", monkeypatch)
    yield pools
    pools.close()


@pytest.fixture(name="pool")
def a_pool(pools: Pools) -> Pool:
    """A pool of two workers, or of a farm."""
    return pools.open()


class GatedJobs:
    """Compile jobs that write down when they begin and end, and wait until a test opens their gate; they share a disk with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log, self._gate = folder, folder / "log", folder / "gate"
        self._log.touch()

    def job(self, key: str) -> CppCompileJob:
        waits = f"while [ ! -e {self._gate} ]; do sleep 0.05; done; sleep 0.1"
        begins, ends = (f"echo {word} {key} >> {self._log}" for word in ("begins", "ends"))
        command = ("sh", "-c", f"{begins}; {waits}; {ends}; : > {{output}}")
        return CppCompileJob((source(key, 2),), command, str(self._folder), 2 * LIMIT_S)

    def open(self) -> None:
        """Let all jobs go on."""
        self._gate.touch()

    def begun(self) -> list[str]:
        """Return the keys of the jobs that have begun, in this order."""
        return [key for word, key in self._lines() if word == "begins"]

    def most(self) -> int:
        """Return how many have run at once."""
        running = [0]
        for word, _ in self._lines():
            running.append(running[-1] + (1 if word == "begins" else -1))
        return max(running)

    def _lines(self) -> list[list[str]]:
        return [line.split(maxsplit=1) for line in self._log.read_text().splitlines()]


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
    assert wait_idle(pool, LIMIT_S)
    assert len(answers) == 1
    return {compiled.key: compiled for compiled in answers[0]}


def shell_compiler(folder: Path, trap: str) -> tuple[str, ...]:
    """Return a compiler that falls into a trap when the word TRAP is in its source."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nif grep -q TRAP $1; then {trap}; fi\nexec {' '.join(GXX)}\n")
    script.write_text(script.read_text().replace("{source}", "$1").replace("{output}", "$2"))
    script.chmod(0o755)
    return (str(script), "{source}", "{output}")
