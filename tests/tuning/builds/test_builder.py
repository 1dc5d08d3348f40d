"""Compiling what candidates need: batches, the cache, and every way to fail."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.errors import CacheError, WorkerError
from inductor_plugin.tuning import scratch
from inductor_plugin.tuning.builds import builder as builder_module
from inductor_plugin.tuning.builds.batches import MAX_BATCH, cuda_batch, spread
from inductor_plugin.worker.jobs import Compiled, CppCompileJob
from tests.support.fakes.builder import cpp_entries, keep_no_triton_files, rig, status
from tests.support.fakes.tasks import cpp_build, entry, task, triton_job
from tests.support.fakes.waiting import until


def test_a_kernel_is_built_once_and_found_afterwards(tmp_path: Path) -> None:
    first = rig(tmp_path)
    (candidate,) = entries = cpp_entries("k")
    first.build(entries)
    assert status(candidate) == "ready"
    assert first.counters.snapshot().compiled == 1
    second = rig(tmp_path)
    second.build(cpp_entries("k"))
    assert second.pool.jobs == []
    assert second.counters.snapshot().compiled == 0


def test_the_job_names_the_published_library_and_the_function_in_it(tmp_path: Path) -> None:
    rig_ = rig(tmp_path)
    seen: list[tuple[str, str]] = []
    (k,) = cpp_entries("k")
    bench = k.bench
    assert bench is not None
    k.bench = lambda library, symbol: (seen.append((library, symbol)), bench(library, symbol))[1]
    rig_.build([k])
    ((library, symbol),) = seen
    assert Path(library).read_bytes() == b"// k"
    assert str(tmp_path) in library
    assert symbol


def test_a_kernel_that_was_imported_meanwhile_lends_its_library_to_no_other(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.together = True
    bench.pool.gate.clear()
    names = "abcdefgh"
    building = threading.Thread(target=bench.build, args=(cpp_entries(*names),))
    building.start()
    until(lambda: sum(bench.batches()) == len(names))
    batch = next(job for job in bench.pool.jobs if isinstance(job, CppCompileJob))
    imported, *others = (cpp_build(name).key for name in names if f"// {name}" in one_text(batch))
    bench.store.put_kernel(imported, {"kernel.so": b"imported", "source.cpp": b""})
    bench.pool.gate.set()
    building.join()
    kernels = [bench.store.kernel(key.digest) for key in (imported, *others)]
    texts = [kernel.path("kernel.so").read_text() for kernel in kernels if kernel is not None]
    assert texts == ["imported", *[one_text(batch)] * 3]


def one_text(job: CppCompileJob) -> str:
    return "\n".join(source.source for source in job.sources)


def test_builds_happen_in_folders_that_name_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = scratch.make_folder(tmp_path / "temporary", scratch.BUILD)
    dead = left.rename(left.with_name(left.name.replace(f"-{os.getpid()}-", "-4194305-")))
    bench = rig(tmp_path / "cache")
    bench.build([*cpp_entries("k"), entry("t", build=triton_job("t", tmp_path / "triton"))])
    (cpp,) = [job.workdir for job in bench.pool.jobs if isinstance(job, CppCompileJob)]
    assert scratch.named_process(Path(cpp).name) == scratch.process_id(os.getpid())
    assert not dead.exists()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_kernels_held_back_fill_batches_that_keep_every_worker_busy(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.build(cpp_entries(*(f"k{i}" for i in range(5))))
    assert sorted(bench.batches()) == [2, 3]


def test_nothing_held_back_compiles_before_it_is_asked_for(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    k = cpp_entries("k")[0]
    bench.builder.add(task([k]), k, lambda: None)
    time.sleep(0.05)
    assert bench.pool.jobs == []
    assert not bench.builder.busy()
    bench.builder.flush()
    assert bench.builder.busy() or k.ready


def test_full_batches_start_by_themselves(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    entries = cpp_entries(*(f"k{i}" for i in range(2 * MAX_BATCH)))
    owner = task(entries)
    for each in entries:
        bench.builder.add(owner, each, lambda: None)
    until(lambda: all(e.ready for e in entries))
    assert bench.batches() == [MAX_BATCH, MAX_BATCH]


def test_kernels_wait_for_those_of_other_problems_and_share_units(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    entries = cpp_entries(*(f"k{i}" for i in range(4)))
    owner = task(entries)
    for each in entries:
        bench.builder.add(owner, each, lambda: None)
    time.sleep(0.05)
    assert bench.pool.jobs == []
    bench.builder.flush()
    until(lambda: all(e.ready for e in entries))
    assert bench.batches() == [2, 2]


def test_a_cuda_kernel_is_given_memory_and_time_and_keeps_its_source(tmp_path: Path) -> None:
    bench = rig(tmp_path, timeout_s=8)
    builds = [replace(cpp_build(f"k{i}"), language="cuda", memory_bytes=5 << 30) for i in range(10)]
    entries = [entry(f"k{i}", build=build) for i, build in enumerate(builds)]
    bench.build(entries)
    assert bench.pool.memory == [5 << 30] * 2
    # Five kernels in a unit: twice the time of one.
    assert [job.timeout_s for job in bench.pool.jobs] == [16.0, 16.0]
    kernel = bench.store.kernel(builds[0].key.digest)
    assert kernel is not None
    assert kernel.path("source.cu").read_text() == builds[0].source.source


def test_kernels_with_different_compilers_do_not_share_a_unit(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    entries = [entry(n, build=cpp_build(n, (n,))) for n in ("gcc", "clang")]
    bench.build(entries)
    assert bench.batches() == [1, 1]


@pytest.mark.parametrize(
    ("count", "workers", "sizes"), [(0, 2, []), (1, 4, [1]), (9, 1, [5, 4]), (17, 2, [6, 6, 5])]
)
def test_batches_are_even_and_as_few_as_keep_workers_busy(
    count: int, workers: int, sizes: list[int]
) -> None:
    items = list(range(count))
    batches = spread(items, workers, lambda _item: "")
    assert [len(batch) for batch in batches] == sizes
    assert sorted(i for batch in batches for i in batch) == items


@pytest.mark.parametrize(
    ("heads", "workers", "units"),
    [
        ("aaaaaabbbb", 2, ["aaaaaa", "bbbb"]),
        ("aaaaaabbbb", 1, ["aaaaaabbbb"]),
        ("abababab", 2, ["aaaa", "bbbb"]),
        ("a" * 9, 2, ["a" * 8, "a"]),
        ("a" * 40, 1, ["a" * 32, "a" * 8]),
        ("aab", 4, ["aa", "b"]),
    ],
)
def test_kernels_that_begin_alike_are_compiled_together(
    heads: str, workers: int, units: list[str]
) -> None:
    batches = spread(list(heads), workers, lambda item: item)
    assert ["".join(batch) for batch in batches] == units


@pytest.mark.parametrize(
    ("count", "workers", "size"),
    [(0, 2, 1), (1, 4, 1), (8, 1, 8), (16, 2, 8), (16, 16, 3), (64, 16, 7), (200, 16, 8)],
)
def test_cuda_units_trade_cpu_seconds_for_wall_seconds(count: int, workers: int, size: int) -> None:
    assert cuda_batch(count, workers, others=10_000) == size


@pytest.mark.parametrize(
    ("count", "workers", "others", "size"),
    [
        *((0, 2, 0, 1), (2, 2, 0, 1), (8, 1, 0, 8), (20, 2, 0, 5)),
        *((16, 16, 0, 1), (16, 16, 90, 1), (64, 16, 0, 4), (3, 1000, 200, 1)),
        (20, 2, 436, 8),  # a model on two cores
    ],
)
def test_cuda_kernels_of_one_unit_wait_for_each_other_only_where_workers_have_more_to_do(
    count: int, workers: int, others: int, size: int
) -> None:
    assert cuda_batch(count, workers, others) == size


def test_cuda_kernels_are_compiled_alone_by_workers_that_have_nothing_else(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.workers = 4
    builds = [replace(cpp_build(f"k{i}"), language="cuda") for i in range(4)]
    bench.build([entry(f"k{i}", build=build) for i, build in enumerate(builds)])
    assert bench.batches() == [1, 1, 1, 1]


def test_kernels_of_one_unit_share_the_file_of_their_library(tmp_path: Path) -> None:
    bench = rig(tmp_path / "cache")
    bench.pool.workers = 1
    library = tmp_path / "unit.so"

    def submit(job: Any, done: Any, *_how: Any) -> None:
        library.write_bytes(b"both")
        done([Compiled(each.key, "ok", library=str(library)) for each in job.sources])

    bench.pool.submit = submit  # pyright: ignore[reportAttributeAccessIssue]
    builds = [replace(cpp_build(f"k{i}"), language="cuda") for i in range(2)]
    bench.build([entry(f"k{i}", build=build) for i, build in enumerate(builds)])
    first, second = (bench.store.kernel(build.key.digest) for build in builds)
    assert first is not None
    assert second is not None
    assert first.path("kernel.so").samefile(second.path("kernel.so"))


def test_two_problems_that_need_one_kernel_build_it_once(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    entries = [*cpp_entries("same"), *cpp_entries("same"), *cpp_entries("same")]
    bench.build(entries)
    assert [status(e) for e in entries] == ["ready"] * 3
    assert sum(bench.batches()) == 1
    assert bench.counters.snapshot().compiled == 1


def test_one_kernel_that_does_not_compile_costs_itself(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.status = {"bad": "compile_failed"}
    good, bad = entries = cpp_entries("good", "bad")
    bench.build(entries)
    assert (status(good), status(bad)) == ("ready", "compile_failed")
    assert bad.outcome is not None
    assert "error" in bad.outcome.reason


def test_a_triton_kernel_needs_no_library(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.status = {"bad": "hung"}
    good, bad = entries = [entry(n, build=triton_job(n)) for n in ("good", "bad")]
    bench.build(entries)
    assert (status(good), status(bad)) == ("ready", "hung")
    assert good.candidate is not None


def test_a_triton_kernel_is_kept_and_put_where_triton_looks(tmp_path: Path) -> None:
    cache, first, second = (tmp_path / name for name in ("cache", "first", "second"))
    bench = rig(cache)
    good, bad = entries = [entry(n, build=triton_job(n, first)) for n in ("good", "bad")]
    bench.pool.status = {"bad": "compile_failed"}
    bench.build(entries)
    assert (status(good), status(bad)) == ("ready", "compile_failed")
    assert (first / "HASH" / "good.cubin").read_text() == "good"
    assert bench.counters.snapshot().compiled == 1
    again = rig(cache)
    (other,) = others = [entry("good", build=triton_job("good", second))]
    again.build(others)
    assert status(other) == "ready"
    assert again.pool.jobs == []
    assert (second / "HASH" / "good.cubin").read_text() == "good"


def test_a_triton_kernel_whose_files_cannot_be_kept_is_compiled_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_no_triton_files(monkeypatch)
    bench = rig(tmp_path / "cache")
    (k,) = entries = [entry("k", build=triton_job("k", tmp_path / "triton"))]
    bench.build(entries)
    assert status(k) == "ready"
    assert (tmp_path / "triton" / "HASH" / "k.cubin").exists()
    assert list(bench.store.iter_kernels()) == []


def test_workers_that_do_not_come_to_a_kernel_do_not_blame_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "SETUP_S", 0.0)
    monkeypatch.setattr(builder_module, "TOUCH_S", 0.01)
    bench = rig(tmp_path, timeout_s=0.002)
    bench.pool.answers = False
    (k,) = entries = cpp_entries("k")
    bench.build(entries)
    assert status(k) == "skipped"


def test_a_closed_pool_answers_for_every_kernel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = rig(tmp_path)
    bench.pool.error = WorkerError("the compile pool is closed")
    entries = [*cpp_entries("a", "b"), entry("c", build=triton_job("c"))]
    bench.build(entries)
    assert [status(e) for e in entries] == ["skipped"] * 3
    assert all(e.outcome and "closed" in e.outcome.reason for e in entries)


def test_a_cache_that_takes_no_kernel_answers_for_every_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = rig(tmp_path)

    def full(*_args: object) -> None:
        raise CacheError("no space left on device")

    monkeypatch.setattr(bench.store, "put_kernel", full)
    entries = cpp_entries("a", "b", "c")
    bench.build(entries)
    assert [status(e) for e in entries] == ["skipped"] * 3
    with open_store(tmp_path).lock_kernel(entries[0].build.key.digest, timeout_s=0):  # pyright: ignore
        pass  # its locks were given back


def test_compile_seconds_are_the_compilers_not_the_queues(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.compile_s = 0.05
    bench.pool.gate.clear()
    threading.Timer(0.4, bench.pool.gate.set).start()
    bench.build([entry(n, build=triton_job(n)) for n in "abcd"])
    assert bench.counters.snapshot().compile_s == pytest.approx(0.2)
    events = bench.trace._events  # pyright: ignore
    assert len(events) == 4
    assert all(event["dur"] == pytest.approx(0.05e6, rel=0.01) for event in events)
    assert len({event["tid"] for event in events}) > 1  # they overlap, so they have tracks
