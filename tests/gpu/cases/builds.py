"""Builds kernels into a cache directory, in parallel through the compile workers, or finds them there.

What is ready stays in the cache: the next run builds nothing, and a pack that was imported serves too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import KernelKey, Store, open_store
from inductor_plugin.inductor.candidates.cuda import cuda_major, machine
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import CppBuild, TaskCandidate
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.jobs import TritonCompileJob, WorkerSettings
from tests.support.fakes.tasks import task

Build = CppBuild | TritonCompileJob
COMPILE_S = 200.0
"""Limit of one kernel: nvcc takes 11 to 25 s for one of CUTLASS in a batch, three times that on busy cores."""
_BYTES = 2 << 30


@dataclass(frozen=True)
class Place:
    """Where a kernel is after its build; both are empty for Triton's, which Triton finds itself.

    Attributes:
        symbol: Its C function.
        library: Path of the file with it.
    """

    symbol: str
    library: str

    @property
    def called(self) -> str:
        """What operators call it."""
        return f"{self.symbol}@{self.library}"


def settings(kind: str) -> WorkerSettings:
    """Return the settings of a worker of the GPU tests."""
    if kind == "compile":
        return WorkerSettings(sys_path=tuple(sys.path), kind="compile")
    return WorkerSettings(sys_path=tuple(sys.path), kind="bench", device="cuda:0")


def placed(
    builds: Sequence[Build],
    folder: Path,
    workers: int,
    timeout_s: float,
    compile_s: float = COMPILE_S,
) -> list[Place | str]:
    """Return where each kernel is, or why it could not be built; a failure costs its own kernel alone.

    Args:
        builds: The kernels.
        folder: The cache directory.
        workers: Compilers at once.
        timeout_s: What is not ready by then is not waited for; what is ready stays in the cache.
        compile_s: Seconds one kernel may take; a batch has a quarter of that for each further one.
    """
    pool = CompilePool(workers, settings("compile"), memory_bytes_per_job=_BYTES)
    ends = time.monotonic() + timeout_s
    store = open_store(folder)
    builder = Builder(store, pool, Counters(), SpanTrace(), min(compile_s, timeout_s))
    waiting = [_Waiting(f"{at}", packed_or_own(build, store)) for at, build in enumerate(builds)]
    try:
        for each in waiting:
            builder.add(task([each.entry]), each.entry, each.note)
        builder.flush()
        return [each.place(ends - time.monotonic()) for each in waiting]
    finally:
        pool.close()


class _Waiting:
    """One kernel that is being built."""

    def __init__(self, name: str, build: Build) -> None:
        self._ended = threading.Event()
        self._place: Place | None = None
        self.entry = TaskCandidate(CandidateId(name, name, "template", ""), build=build)
        self.entry.bench = self._bench

    def note(self) -> None:
        """Notice that something has changed."""
        if self.entry.ready or self.entry.outcome is not None:
            self._ended.set()

    def place(self, limit_s: float) -> Place | str:
        """Return where it is, or why it is not there, after ``limit_s`` at most."""
        self._ended.wait(max(0.0, limit_s))
        if self.entry.ready:
            return self._place or Place("", "")
        return self.entry.outcome.reason if self.entry.outcome else "not built in time"

    def _bench(self, library: str, symbol: str) -> Any:
        self._place = Place(symbol, library)


def packed_or_own(build: Build, store: Store) -> Build:
    """Return a build whose kernel is there: its own, else the same text that another compiler has built.

    As the plugin does with packs (`inductor.candidates.cuda`): patch levels of nvcc differ between machines.
    """
    if not isinstance(build, CppBuild) or build.language != "cuda":
        return build
    if store.kernel(build.key.digest) is not None:
        return build
    for entry in store.kernels_like(build.key.template, build.key.config, build.key.target):
        if serves(entry.key, build.key) and store.kernel(entry.digest) is not None:
            return replace(
                build, key=entry.key, source=replace(build.source, key=entry.digest, source="")
            )
    return build


def serves(built: KernelKey, wanted: KernelKey) -> bool:
    """Return whether a kernel is the wanted one, built by another compiler for this torch and processor."""
    return (
        built.source == wanted.source
        and built.toolchain.startswith(f"nvcc {cuda_major()}.")
        and built.toolchain.endswith(f"; {machine()}")
    )
