"""What a process keeps while it tunes; no worker starts here."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from inductor_plugin.config import Config
from inductor_plugin.tuning import runtime as runtime_module
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.runtime import Runtime
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from tests.support.fakes.tasks import entry, task, triton_job
from tests.support.fakes.waiting import until
from tests.support.fakes.workers import FakeBench, FakePool


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    opened = Runtime()
    yield opened
    opened.forget()


def config(path: Path, **options: Any) -> Config:
    return Config.load({"cache_dir": str(path), **options}, environ={})


def test_equal_settings_share_a_site(runtime: Runtime, cache_dir: Path) -> None:
    first = runtime.context(config(cache_dir), "cpu", {"cpp": "g++ 12"})
    assert runtime.context(config(cache_dir), "cpu", {"cpp": "g++ 12"}) is first
    assert first.pipeline is first.pipeline
    assert first.device == "cpu"


def test_a_device_that_measures_nothing_is_absent_until_the_next_compile(
    runtime: Runtime, cache_dir: Path
) -> None:
    context = runtime.context(config(cache_dir), "cpu", {})
    assert context.absence == ""
    context.pipeline.leave("out of memory")
    assert context.absence == "out of memory"
    context.renew()
    assert context.absence == ""


def test_other_options_are_another_site_on_the_same_store(
    runtime: Runtime, cache_dir: Path
) -> None:
    first = runtime.context(config(cache_dir), "cpu", {})
    other = runtime.context(config(cache_dir, bench_timeout_s=3), "cpu", {})
    assert other is not first
    assert other.store is first.store
    assert other.environment == first.environment
    behind_another = config(cache_dir, cache_read=str(cache_dir.with_name("shared")))
    assert runtime.store(behind_another) is not first.store


@pytest.mark.parametrize(
    ("options", "on_host", "ranks", "most"),
    [
        ({}, False, "", [8]),
        ({"gemm_backends": "ATEN,TRITON"}, False, "4", [2]),
        ({}, False, "16", [1]),
        ({}, True, "", []),
        ({"gemm_backends": "ATEN,CUTLASS"}, False, "", []),
        ({"compile_farm": "ray:nowhere:1"}, False, "", []),
    ],
)
def test_workers_that_compile_triton_for_a_gpu_are_started_ahead(
    runtime: Runtime,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    on_host: bool,
    ranks: str,
    most: list[int],
) -> None:
    started: list[tuple[CallJob, int]] = []
    monkeypatch.setattr(runtime_module.CompilePool, "prewarm", lambda _, *job: started.append(job))
    monkeypatch.setattr(runtime_module, "on_host", lambda _device: on_host)
    monkeypatch.setattr(runtime_module.BenchWorker, "prewarm", lambda _self: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    runtime.context(config(cache_dir, **options), "cpu", {}).prewarm()
    assert [count for _, count in started] == most
    for job, _ in started:
        assert callable(getattr(importlib.import_module(job.module), job.function))


def test_another_compiler_is_another_environment(runtime: Runtime, cache_dir: Path) -> None:
    first = runtime.context(config(cache_dir), "cpu", {"cpp": "g++ 12"})
    other = runtime.context(config(cache_dir), "cpu", {"cpp": "g++ 13"})
    assert other.environment != first.environment
    fields = first.store.environment(first.environment)
    assert fields is not None
    assert fields["software"]["cpp"] == "g++ 12"


def test_other_threads_are_another_environment(runtime: Runtime, cache_dir: Path) -> None:
    before = torch.get_num_threads()
    first = runtime.context(config(cache_dir), "cpu", {})
    try:
        torch.set_num_threads(before + 1)
        assert runtime.context(config(cache_dir), "cpu", {}).environment != first.environment
    finally:
        torch.set_num_threads(before)


def test_threads_that_come_together_get_one_pipeline(runtime: Runtime, cache_dir: Path) -> None:
    site = runtime.context(config(cache_dir), "cpu", {})
    pipelines: list[Pipeline] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait(10)
        pipelines.append(site.pipeline)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(pipelines) == 8
    assert len(set(map(id, pipelines))) == 1


@pytest.mark.parametrize(
    ("device", "policy", "farm", "nice"),
    [
        ("cuda:0", "tune", "", 19),
        ("cuda:0", "build", "", 0),
        ("cpu", "tune", "", 0),
        ("cuda:0", "tune", "ray:auto", 0),  # nodes measure
    ],
)
def test_compiling_gives_way_to_what_is_measured_on_a_gpu(
    runtime: Runtime,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    policy: str,
    farm: str,
    nice: int,
) -> None:
    seen: list[int] = []
    real = runtime_module.CompilePool

    def pool(workers: int, settings: WorkerSettings, memory_bytes_per_job: int) -> Any:
        seen.append(settings.nice)
        return real(workers, settings, memory_bytes_per_job)

    monkeypatch.setattr(runtime_module, "CompilePool", pool)
    monkeypatch.setattr(runtime_module, "on_nodes", lambda _farm, there, *_: Unreachable(there))
    facts: dict[str, Any] = {"device": {}, "software": {}, "numerics": {}}
    monkeypatch.setattr(runtime_module, "environment", lambda _: facts)
    options = config(cache_dir, policy=policy, bench_farm=farm)
    assert runtime.context(options, device, {}).pipeline
    assert seen == [nice]


def test_a_farm_compiles_for_the_pipeline_and_gives_way_to_what_a_gpu_measures(
    runtime: Runtime, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []  # a node that compiles may measure: for this process, or another one
    monkeypatch.setattr(runtime_module, "on_farm", lambda *each: asked.append(each) or each[2])
    options: dict[str, Any] = {"compile_farm": "ray:auto", "worker_memory_bytes": 1 << 30}
    with_farm = config(cache_dir, **options)
    nodes_measure = config(cache_dir, **options, bench_farm="ray:auto")
    local, again = (runtime.compile_pool(with_farm, "cuda:0") for _ in range(2))
    ((name, settings, *beside),) = asked  # connected once
    assert (name, settings.nice, settings.memory_bytes) == ("ray:auto", 19, 1 << 30)
    assert local is again is beside[0]
    assert runtime.compile_pool(config(cache_dir), "cuda:0") is not local
    for each, device in ((nodes_measure, "cuda:0"), (nodes_measure, "cpu"), (with_farm, "cpu")):
        runtime.compile_pool(each, device)
    runtime.compile_pool(config(cache_dir, **options, policy="build"), "cuda:0")
    assert [settings.nice for _, settings, *_ in asked] == [19, 19, 0]


def test_while_a_farm_is_connected_other_compiles_go_on_and_the_process_may_end(
    runtime: Runtime, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = list[str](), threading.Event()

    def farm(name: str, _settings: WorkerSettings, local: CompilePool, _bytes: int) -> Any:
        asked.append(name)
        return answer.wait(10.0) and local

    monkeypatch.setattr(runtime_module, "on_farm", farm)
    context = runtime.context(config(cache_dir, compile_farm="ray:auto"), "cpu", {})
    thread = threading.Thread(target=lambda: context.pipeline)
    thread.start()
    until(lambda: bool(asked))
    assert runtime.context(config(cache_dir), "cpu", {}).pipeline
    runtime.close()
    assert thread.is_alive()
    answer.set()
    until(lambda: context.started is not None)


def test_nodes_measure_where_a_cluster_is_named_and_are_asked_before_anything_is_compiled(
    runtime: Runtime, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, WorkerSettings, Any]] = []

    def on_nodes(name: str, settings: WorkerSettings, facts: Any, _cached: Any) -> Any:
        asked.append((name, settings, facts))
        return Unreachable(settings)

    pool = FakePool()
    monkeypatch.setattr(runtime_module, "on_nodes", on_nodes)
    monkeypatch.setattr(runtime, "compile_pool", lambda *_: pool)
    nodes = config(cache_dir, bench_farm="ray:auto", worker_memory_bytes=1 << 30)
    context = runtime.context(nodes, "cpu", {})
    bench = context.bench()
    assert context.bench() is bench
    ((name, settings, facts),) = asked
    assert (name, settings.kind, settings.memory_bytes) == ("ray:auto", "bench", 1 << 30)
    assert context.store.environment(context.environment) == facts
    build = entry("kernel", build=triton_job("kernel"))
    pending = task([entry("library", library=True), build], digest="problem")
    pending.measured = True
    context.submit(cast("Any", SimpleNamespace(task=pending)))
    assert Unreachable.reason in context.absence
    assert pool.jobs == []


class Unreachable(FakeBench):
    """A worker that may not get to its GPU."""

    reason = "CUDA-capable device(s) is/are busy or unavailable"

    def __init__(self, _settings: WorkerSettings) -> None:
        super().__init__()
        self.tried = 0

    def why_not_available(self) -> str | None:
        self.tried += 1
        return self.reason or None

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("scarce", "reason", "measured", "tried", "compiled"),
    [
        ("its compute mode is exclusive", Unreachable.reason, True, 1, 0),
        ("its compute mode is exclusive", "", True, 1, 4),  # under MPS
        ("", Unreachable.reason, True, 0, 4),  # others are compiled for while the worker starts
        ("its compute mode is exclusive", Unreachable.reason, False, 0, 4),  # policy=build
    ],
    ids=["no worker gets there", "a worker gets there", "it should be free", "nothing is measured"],
)
def test_nothing_is_compiled_for_a_gpu_that_another_process_has_for_itself(
    runtime: Runtime,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    scarce: str,
    reason: str,
    *,
    measured: bool,
    tried: int,
    compiled: int,
) -> None:
    pool, facts = FakePool(), {"device": {}, "software": {}, "numerics": {}}
    workers: list[Unreachable] = []

    def worker(settings: WorkerSettings) -> Unreachable:
        workers.append(Unreachable(settings))
        return workers[-1]

    monkeypatch.setattr(runtime_module, "environment", lambda _: facts)
    monkeypatch.setattr(runtime_module, "why_scarce", lambda _: scarce)
    monkeypatch.setattr(runtime_module, "BenchWorker", worker)
    monkeypatch.setattr(runtime, "compile_pool", lambda *_: pool)
    monkeypatch.setattr(Unreachable, "reason", reason)
    context = runtime.context(config(cache_dir), "cuda:0", {})
    for digest in ("first", "second"):
        builds = [entry(f"{digest} {i}", build=triton_job(f"{digest} {i}")) for i in range(2)]
        pending = task([entry("library", library=True), *builds], digest=digest)
        pending.measured = measured
        context.submit(cast("Any", SimpleNamespace(task=pending)))
    until(lambda: len(pool.jobs) == compiled)
    assert [fake_worker.tried for fake_worker in workers] == [tried]
    said = [r.message for r in caplog.records if "nothing can be measured" in r.message]
    assert len(said) == (0 if compiled else 1)
    assert all(scarce in text and reason in text for text in said)
    context.renew()  # the next compile
    assert not context.pipeline.absence
    later = task([entry("library", library=True)], digest="later")
    later.measured = measured
    context.start(cast("Any", SimpleNamespace(task=later)))  # as the thread of ranks does
    assert [fake_worker.tried for fake_worker in workers] == [tried]


def test_closing_ends_pipelines_before_the_workers_they_use(
    runtime: Runtime, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("BenchWorker", "CompilePool", "Pipeline"):
        real = getattr(runtime_module, name)

        def close(self: Any, name: str = name, real: Any = real.close) -> None:
            order.append(name)
            real(self)

        monkeypatch.setattr(real, "close", close)
    assert runtime.context(config(cache_dir), "cpu", {}).pipeline
    runtime.close()
    assert order[0] == "Pipeline"
    assert sorted(order) == ["BenchWorker", "CompilePool", "Pipeline"]


def test_after_closing_everything_is_made_anew(runtime: Runtime, cache_dir: Path) -> None:
    first = runtime.context(config(cache_dir), "cpu", {})
    pipeline, store = first.pipeline, first.store
    runtime.close()
    again = runtime.context(config(cache_dir), "cpu", {})
    assert again is not first
    assert again.pipeline is not pipeline
    assert again.store is store
    runtime.forget()
    assert runtime.context(config(cache_dir), "cpu", {}).store is not store


def test_closing_twice_is_closing_once(runtime: Runtime, cache_dir: Path) -> None:
    assert runtime.context(config(cache_dir), "cpu", {}).pipeline
    runtime.close()
    runtime.close()


def test_what_cannot_be_closed_keeps_nothing_else_open(runtime: Runtime) -> None:
    still_open = ["first"]
    for close in (still_open.clear, lambda: still_open.remove("what is not there")):
        runtime.at_close(close)
    runtime.close()
    assert still_open == []


def test_what_belongs_to_the_parent_is_left_alone_after_a_fork(
    runtime: Runtime, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = runtime.context(config(cache_dir), "cpu", {})
    closed: list[int] = []
    runtime._closers.append(lambda: closed.append(1))  # pyright: ignore[reportPrivateUsage]
    # A thread of the parent may have held the lock when it forked; nobody will give it back.
    runtime.lock = _Held()  # pyright: ignore
    monkeypatch.setattr(os, "getpid", lambda: -1)
    runtime.close()
    assert closed == []
    assert runtime.context(config(cache_dir), "cpu", {}) is not site


class _Held:
    """A lock that is never free."""

    def __enter__(self) -> None:
        raise AssertionError("this would wait for ever")

    def __exit__(self, *_error: object) -> None:
        return


def test_compile_workers_are_shared_by_sites_that_ask_for_the_same(
    runtime: Runtime, cache_dir: Path
) -> None:
    pool = runtime.compile_pool  # pyright: ignore[reportPrivateUsage]
    first = pool(config(cache_dir, compile_workers=1), "cpu")
    assert pool(config(cache_dir, compile_workers=1, bench_timeout_s=3), "cpu") is first
    large = config(cache_dir, compile_workers=1, worker_memory_bytes="2GiB")
    assert pool(large, "cpu") is not first
    build = config(cache_dir, compile_workers=1, policy="build")
    assert pool(build, "cuda:0") is pool(build, "cpu")
    assert pool(config(cache_dir, compile_workers=1), "cuda:0") is not pool(build, "cuda:0")


def test_a_refused_cache_is_replaced_by_memory_with_one_warning(
    runtime: Runtime, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache_dir.mkdir(mode=0o777)
    cache_dir.chmod(0o777)
    store = runtime.store(config(cache_dir))
    assert store.degraded
    assert runtime.store(config(cache_dir)) is store
    said = [r.levelno for r in caplog.records if "nothing is remembered" in r.message]
    assert said == [logging.WARNING]
    assert list(cache_dir.iterdir()) == []
