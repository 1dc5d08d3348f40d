"""A compiled kernel that spills, or that its candidate refuses, is kept and not measured."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from inductor_plugin.cache import Resources, open_store
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.task import CppBuild
from tests.support.fakes.builder import cpp_entries, keep_no_triton_files, rig, status
from tests.support.fakes.tasks import entry, triton_job
from tests.support.fakes.waiting import until

SPILLING, SMALL = Resources(255, 4096), Resources(168, 64)
WIDE = Resources(64, 0, shared_bytes=200 << 10, threads=256)


def test_a_kernel_that_spills_is_kept_and_not_measured(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.target = target("H100")
    bench.pool.resources = {"bad": SPILLING, "good": SMALL}
    good, bad, unknown = entries = cpp_entries("good", "bad", "unknown")
    bench.build(entries)
    assert [status(e) for e in (good, bad, unknown)] == ["ready", "pruned", "ready"]
    assert bad.outcome is not None
    assert "spills 4096 bytes" in bad.outcome.reason
    assert isinstance(bad.build, CppBuild)
    kept = bench.store.kernel(bad.build.key.digest)
    assert kept is not None
    assert kept.resources == SPILLING


def test_a_candidate_judges_its_own_compiled_kernel(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.pool.resources = {"bad": Resources(200, 0), "good": Resources(64, 0)}
    for builder in (first, rig(tmp_path)):  # compiled, and read from the cache
        entries = cpp_entries("bad", "good")
        for each in entries:
            each.judge = lambda resources: "too many" if resources.registers == 200 else None
        builder.build(entries)
        assert [status(each) for each in entries] == ["pruned", "ready"]
        assert entries[0].outcome is not None
        assert entries[0].outcome.reason == "too many"


def test_without_a_library_kernel_what_spills_is_measured(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.target, bench.op = target("H100"), "flex_attention_backward"
    bench.pool.resources = {"bad": SPILLING, "huge": Resources(64, 0, shared_bytes=300 << 10)}
    entries = cpp_entries("bad", "huge")
    bench.build(entries)
    assert [status(e) for e in entries] == ["ready", "pruned"]


def test_a_kernel_out_of_the_cache_is_judged_for_the_gpu_of_its_problem(tmp_path: Path) -> None:
    first = rig(tmp_path)
    first.target = target("H100")
    first.pool.resources = {"wide": WIDE, "bad": SPILLING}
    first.build(cpp_entries("wide", "bad"))
    for gpu, wanted in (
        (target("H100"), ["ready", "pruned"]),
        (target("L40S"), ["pruned", "pruned"]),
        (None, ["ready", "ready"]),
    ):
        again = rig(tmp_path)
        again.target = gpu
        entries = cpp_entries("wide", "bad")
        again.build(entries)
        assert [status(e) for e in entries] == wanted
        assert again.pool.jobs == []


def test_a_kernel_that_another_process_built_is_judged_too(tmp_path: Path) -> None:
    bench, other = rig(tmp_path), open_store(tmp_path)
    bench.target = target("H100")
    mine, theirs = entries = cpp_entries("mine", "theirs")
    assert isinstance(theirs.build, CppBuild)
    key = theirs.build.key
    lock = other.lock_kernel(key.digest)
    lock.__enter__()

    def publish() -> None:
        until(lambda: mine.ready)
        other.put_kernel(key, {"kernel.so": b"theirs", "source.cpp": b""}, SPILLING)
        lock.__exit__(None, None, None)

    threading.Thread(target=publish).start()
    bench.build(entries)
    assert [status(e) for e in entries] == ["ready", "pruned"]


def test_a_triton_kernel_that_spills_is_kept_and_not_measured(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "triton"
    for compiled in (1, 0):  # built, and out of the cache
        bench = rig(cache)
        bench.target = target("H100")
        bench.pool.resources = {"bad": SPILLING, "wide": WIDE}
        entries = [entry(n, build=triton_job(n, folder)) for n in ("bad", "wide", "good")]
        bench.build(entries)
        assert [status(e) for e in entries] == ["pruned", "ready", "ready"]
        assert len(bench.pool.jobs) == 3 * compiled
        assert not (folder / "HASH" / "bad.cubin").exists()
        assert {e.resources for e in bench.store.iter_kernels()} == {SPILLING, WIDE, Resources()}


def test_a_triton_kernel_that_is_not_kept_is_judged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_no_triton_files(monkeypatch)
    bench = rig(tmp_path / "cache")
    bench.target = target("H100")
    bench.pool.resources = {"bad": SPILLING}
    entries = [entry("bad", build=triton_job("bad", folder)) for folder in (None, tmp_path / "t")]
    bench.build(entries)
    assert [status(e) for e in entries] == ["pruned", "pruned"]
    assert len(bench.pool.jobs) == 2
