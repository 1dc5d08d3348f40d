"""Triton kernels compiled for a named target by workers that see no GPU, and found again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.kernels.call import RequestKernel
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.jobs import (
    CallJob,
    Compiled,
    TritonCompileJob,
    TritonTarget,
    WorkerSettings,
)
from inductor_plugin.worker.process import WorkerProcess
from tests.support.fakes.tasks import task
from tests.support.fakes.waiting import until, wait_idle
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


def test_compile_workers_see_no_gpu() -> None:
    worker = WorkerProcess(WorkerSettings(sys_path=tuple(sys.path), kind="compile"), "compile")
    try:
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            assert worker.run(CallJob("os", "getenv", (name, "all")), 30) == ""
    finally:
        worker.close()


@pytest.mark.slow
def test_a_compile_worker_makes_a_kernel_that_the_benchmark_worker_finds(
    cache_dir: Path, inductor_cache: Path
) -> None:
    with Lab(library_first, cache_dir).open() as opened:
        opened.lower(lambda a, b: (torch.mm(a, b),), Arg((256, 128)), Arg((128, 512)))
    entries = opened.entries("triton")[:2]
    settings = WorkerSettings(sys_path=tuple(sys.path), kind="compile")
    pool = CompilePool(1, settings, memory_bytes_per_job=0)
    compiled: list[Compiled] = []
    try:
        for entry in entries:
            assert isinstance(entry.build, TritonCompileJob)
            pool.submit(entry.build, compiled.extend)
        assert wait_idle(pool, 120)
    finally:
        pool.close()
    assert [(compiled_kernel.status, compiled_kernel.reason) for compiled_kernel in compiled] == [
        ("ok", "")
    ] * 2
    cubins = list(inductor_cache.glob("triton/0/*/*.cubin"))
    assert len(cubins) == 2
    for path in cubins:
        assert path.read_bytes().startswith(b"\x7fELF")
        facts = json.loads(path.with_suffix(".json").read_text())
        assert facts["target"] == {"backend": "cuda", "arch": 90, "warp_size": 32}

    worker = WorkerProcess(WorkerSettings(sys_path=tuple(sys.path), kind="bench"), "bench")
    try:
        kernels: list[Any] = [
            candidate.candidate.kernel for candidate in entries if candidate.candidate is not None
        ]
        assert len(kernels) == 2
        for kernel in kernels:
            assert worker.run(CallJob("tests.support.gpu", "is_compiled", (kernel,)), 60) is True
        elsewhere = dict(kernels[0].environment) | {
            "TRITON_CACHE_DIR": str(inductor_cache / "other")
        }
        astray = RequestKernel(kernels[0].payload, tuple(elsewhere.items()))
        assert worker.run(CallJob("tests.support.gpu", "is_compiled", (astray,)), 60) is False
    finally:
        worker.close()


@pytest.mark.slow
def test_a_kernel_out_of_the_cache_is_found_without_a_compile(
    cache_dir: Path, tmp_path: Path
) -> None:
    with Lab(library_first, cache_dir).open() as opened:
        opened.lower(lambda a, b: (torch.mm(a, b),), Arg((256, 128)), Arg((128, 512)))
    first = opened.entries("triton")[0]
    assert isinstance(first.build, TritonCompileJob)
    pool = CompilePool(1, WorkerSettings(sys_path=tuple(sys.path), kind="compile"), 0)
    store, compiled = open_store(tmp_path / "kept"), []
    # One each: a process asks for a kernel once.
    settings = WorkerSettings(sys_path=tuple(sys.path), kind="bench")
    workers = {name: WorkerProcess(settings, "bench") for name in ("a", "b")}
    try:
        for name, worker in workers.items():
            folder = tmp_path / name
            environment = dict(first.build.environment) | {"TRITON_CACHE_DIR": str(folder)}
            job = replace(first.build, environment=tuple(environment.items()))
            changed = replace(first, build=job, ready=False, outcome=None)
            counters = Counters()
            builder = Builder(store, pool, counters, SpanTrace(), 120)
            builder.add(task([changed]), changed, lambda: None)
            until(lambda waiting=changed: waiting.ready or waiting.outcome is not None, 120)
            assert changed.outcome is None
            compiled.append(counters.snapshot().compiled)
            assert changed.candidate is not None
            kernel = replace(changed.candidate.kernel, environment=job.environment)
            assert worker.run(CallJob("tests.support.gpu", "is_compiled", (kernel,)), 60) is True
    finally:
        pool.close()
        for worker in workers.values():
            worker.close()
    assert compiled == [1, 0]


def test_code_that_asks_for_the_target_while_it_compiles_is_told() -> None:
    from inductor_plugin.worker.child import inductor

    reported: list[Any] = []
    with inductor.driver_of(TritonTarget("cuda", 80, 32)):
        from triton.language import target_info

        reported.append(target_info.current_target())
    assert (reported[0].backend, reported[0].arch, reported[0].warp_size) == ("cuda", 80, 32)
