"""Whom a build waits for: other processes, the budget, a quiet block."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import KernelKey, open_store
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.budget import SHARE, Budget
from inductor_plugin.tuning.builds import builder as builder_module
from inductor_plugin.tuning.task import CppBuild
from tests.support.fakes.builder import cpp_entries, rig, status
from tests.support.fakes.tasks import budget, cpp_build, entry, problem, task, triton_job
from tests.support.fakes.waiting import LIMIT_S, until


def test_a_kernel_whose_other_builder_is_silent_is_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "_SILENCE_S", 0.05)
    monkeypatch.setattr(builder_module, "TOUCH_S", 0.01)
    bench = rig(tmp_path, timeout_s=0.02)
    (k,) = entries = cpp_entries("k")
    assert isinstance(k.build, CppBuild)
    with open_store(tmp_path).lock_kernel(k.build.key.digest):
        bench.build(entries)
    assert status(k) == "ready"
    assert len(bench.pool.jobs) == 1


def test_a_kernel_that_another_process_is_building_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "_SILENCE_S", 0.2)
    monkeypatch.setattr(builder_module, "TOUCH_S", 0.01)
    bench, other = rig(tmp_path, timeout_s=0.2), rig(tmp_path)
    other.pool.gate.clear()
    (theirs,), (mine,) = cpp_entries("k"), cpp_entries("k")
    other.builder.add(task([theirs]), theirs, lambda: None)
    other.builder.flush()
    until(lambda: bool(other.pool.jobs))
    threading.Timer(
        0.5, other.pool.gate.set
    ).start()  # more than twice the silence that is waited for
    bench.build([mine])
    assert (status(mine), bench.pool.jobs) == ("ready", [])


def test_a_kernel_that_another_process_builds_is_not_waited_for_after_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "TOUCH_S", 0.05)
    bench = rig(tmp_path)
    (k,) = entries = cpp_entries("k")
    assert isinstance(k.build, CppBuild)
    with open_store(tmp_path).lock_kernel(k.build.key.digest):
        bench.build(entries, budget(0.1))
    assert status(k) == "skipped"
    assert bench.pool.jobs == []


def test_a_kernel_that_another_process_builds_is_waited_for_and_read(tmp_path: Path) -> None:
    bench, other = rig(tmp_path), open_store(tmp_path)
    mine, theirs = entries = cpp_entries("mine", "theirs")
    assert isinstance(theirs.build, CppBuild)
    key: KernelKey = theirs.build.key
    lock = other.lock_kernel(key.digest)
    lock.__enter__()

    def publish() -> None:
        until(lambda: mine.ready)
        other.put_kernel(key, {"kernel.so": b"theirs", "source.cpp": b""})
        lock.__exit__(None, None, None)

    threading.Thread(target=publish).start()
    bench.build(entries)
    assert (status(mine), status(theirs)) == ("ready", "ready")
    assert sum(bench.batches()) == 1


def test_nothing_is_compiled_once_the_budget_has_ended(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    (k,) = entries = cpp_entries("k")
    bench.build(entries, budget(0.0))
    assert status(k) == "skipped"
    assert bench.pool.jobs == []


def test_with_a_budget_the_heaviest_problems_are_compiled_first(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    limit = Budget(100.0)
    tasks = [task(cpp_entries(f"k{i}"), budget=limit, digest=str(i)) for i in range(4)]
    for rows, each in zip((64, 512, 128, 256), tasks, strict=True):
        each.problem = problem(rows=rows)
        bench.builder.add(each, each.entries[0], lambda: None)
    assert limit.ends == float("inf")
    bench.builder.flush()
    until(lambda: all(each.entries[0].ready for each in tasks))
    assert bench.batches() == [2, 2]
    first = max(range(2), key=lambda i: bench.pool.ranks[i])
    assert "// k1" in str(bench.pool.jobs[first])
    assert "// k3" in str(bench.pool.jobs[first])
    earliest = limit.ends - SHARE * 100
    assert all(earliest < moment < limit.ends for moment in bench.pool.limits)


def test_a_short_budget_has_two_waves_of_units(tmp_path: Path) -> None:
    for total_s, sizes in ((3.0, [1, 1, 1, 1]), (100.0, [2, 2])):
        bench, limit = rig(tmp_path / str(total_s)), Budget(total_s)
        tasks = [task(cpp_entries(f"k{i}"), budget=limit, digest=str(i)) for i in range(4)]
        for rows, each in zip((64, 512, 128, 256), tasks, strict=True):
            each.problem = problem(rows=rows)
            bench.builder.add(each, each.entries[0], lambda: None)
        bench.builder.flush()
        until(lambda each=tasks: all(t.entries[0].ready for t in each))
        assert bench.batches() == sizes
        heaviest = max(range(len(sizes)), key=lambda i: bench.pool.ranks[i])
        assert "// k1" in str(bench.pool.jobs[heaviest])


def test_what_was_held_back_is_busy_from_the_moment_it_is_taken(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.gate.clear()
    k = cpp_entries("k")[0]
    bench.builder.add(task([k]), k, lambda: None)
    bench.builder.flush()
    assert bench.builder.busy()
    bench.pool.gate.set()
    until(lambda: not bench.builder.busy())
    assert k.ready


def test_no_compile_starts_inside_a_quiet_block(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    k = cpp_entries("k")[0]
    with bench.builder.quiet() as quiet:
        assert quiet
        bench.builder.add(task([k]), k, lambda: None)
        bench.builder.flush()
        time.sleep(0.1)
        assert bench.pool.jobs == []
        with bench.builder.quiet() as again:
            assert not again  # something is about to compile
    until(lambda: k.ready)


def test_there_is_no_quiet_while_something_compiles(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.gate.clear()
    k = cpp_entries("k")[0]
    bench.builder.add(task([k]), k, lambda: None)
    bench.builder.flush()
    with bench.builder.quiet() as quiet:
        assert not quiet
    bench.pool.gate.set()
    until(lambda: k.ready)


def test_who_waits_is_told_again_when_nothing_compiles_any_more(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    busy: list[bool] = []
    k = cpp_entries("k")[0]
    bench.builder.add(task([k]), k, lambda: busy.append(bench.builder.busy()))
    bench.builder.flush()
    until(lambda: len(busy) == 2)
    assert busy == [True, False]


def test_builds_that_no_thread_runs_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A benchmark that waits until nothing compiles would wait for ever."""
    bench, (k,) = rig(tmp_path), [entry("k", build=triton_job("k"))]

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="start new thread"):
        bench.builder.add(task([k]), k, lambda: None)
    assert not bench.builder.busy()
    reported: list[str] = []
    collected = cpp_entries("a", "b")
    for each in collected:
        bench.builder.add(task([each]), each, partial(reported.append, each.candidate_id))
    bench.builder.flush()
    assert reported == [each.candidate_id for each in collected]
    for each in collected:
        assert each.outcome is not None
        assert (each.outcome.status, "start new thread" in each.outcome.reason) == ("skipped", True)
    assert not bench.builder.busy()


def test_a_kernel_is_locked_and_its_lock_touched_until_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "TOUCH_S", 0.01)
    bench, other, digest = rig(tmp_path), open_store(tmp_path), cpp_build("k").key.digest
    bench.pool.gate.clear()
    (k,) = cpp_entries("k")
    bench.builder.add(task([k]), k, lambda: None)
    bench.builder.flush()
    until(lambda: bool(bench.pool.jobs))
    with pytest.raises(CacheError), other.lock_kernel(digest, timeout_s=0):
        pass
    lock = other.layout.lock(digest)
    before_ns = lock.stat().st_atime_ns
    until(lambda: lock.stat().st_atime_ns > before_ns)
    bench.pool.gate.set()
    until(lambda: not bench.builder.busy())
    assert k.ready
    with other.lock_kernel(digest, timeout_s=0):
        pass


@pytest.mark.parametrize("language", ["cpp", "triton"])
def test_a_kernel_that_another_process_builds_is_waited_for_as_long_as_its_compile_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr(builder_module, "_SILENCE_S", 0.0)
    bench, other = rig(tmp_path / "cache"), open_store(tmp_path / "cache")
    build = cpp_build("k") if language == "cpp" else triton_job("k", tmp_path / "triton")
    files = {"kernel.so": b"", "source.cpp": b""} if language == "cpp" else {"HASH--k.cubin": b""}
    key = build.key if isinstance(build, CppBuild) else build.kernel
    assert key is not None
    k = entry("k", build=build)
    with other.lock_kernel(key.digest):
        bench.builder.add(task([k]), k, lambda: None)
        bench.builder.flush()
        time.sleep(0.05)
        other.put_kernel(key, files)
    until(lambda: not bench.builder.busy())
    assert (status(k), bench.pool.jobs) == ("ready", [])


def test_a_kernel_that_came_into_the_cache_before_its_build_began_is_not_built(
    tmp_path: Path,
) -> None:
    bench = rig(tmp_path)
    (k,) = cpp_entries("k")
    bench.builder.add(task([k]), k, lambda: None)
    theirs = {"kernel.so": b"theirs", "source.cpp": b""}
    open_store(tmp_path).put_kernel(cpp_build("k").key, theirs)
    bench.builder.flush()
    until(lambda: not bench.builder.busy())
    assert (status(k), bench.pool.jobs) == ("ready", [])


def test_a_unit_is_compiled_as_long_as_somebody_waits_for_a_kernel_of_it(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    bench.pool.workers = 1
    gone, waiting = (task(cpp_entries(name), digest=name) for name in "ab")
    for each in (gone, waiting):
        bench.builder.add(each, each.entries[0], lambda: None)
    gone.done.set()
    bench.builder.flush()
    until(lambda: not bench.builder.busy())
    assert bench.batches() == [2]
    assert bench.pool.limits == [math.inf]
    assert waiting.entries[0].ready


def test_builds_that_are_being_distributed_do_not_look_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU measuring begins once nothing compiles."""
    bench, busy, asking = rig(tmp_path), list[bool](), list[threading.Thread]()
    distribute = builder_module.spread
    bench.pool.gate.clear()

    def look_meanwhile(*arguments: Any) -> Any:
        asking.append(threading.Thread(target=lambda: busy.append(bench.builder.busy())))
        asking[0].start()
        asking[0].join(0.05)
        return distribute(*arguments)

    monkeypatch.setattr(builder_module, "spread", look_meanwhile)
    (k,) = cpp_entries("k")
    bench.builder.add(task([k]), k, lambda: None)
    bench.builder.flush()
    asking[0].join(LIMIT_S)
    bench.pool.gate.set()
    until(lambda: not bench.builder.busy())
    assert busy == [True]


def test_only_what_compiled_tells_a_budget_how_long_compiles_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error ends a compile early."""
    bench, limit, noted_s = rig(tmp_path), Budget(100.0), list[float]()
    monkeypatch.setattr(limit, "compiled", noted_s.append)
    bench.pool.status = {"bad": "compile_failed"}
    bench.build(cpp_entries("good", "bad"), limit)
    assert bench.batches() == [1, 1]
    assert noted_s == [0.0]


def test_in_a_budget_too_short_for_units_each_kernel_is_compiled_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit_s, sizes in ((100.0, [3, 3]), (101.0, [1] * 6)):
        monkeypatch.setattr(builder_module, "UNIT_S", unit_s)
        bench = rig(tmp_path / str(unit_s))
        bench.build(cpp_entries(*"abcdef"), Budget(100.0))
        assert bench.batches() == sizes


def test_with_a_budget_the_heaviest_cuda_kernels_are_compiled_first(tmp_path: Path) -> None:
    bench, limit = rig(tmp_path), Budget(100.0)
    for i in range(10):
        k = entry(f"k{i}", build=replace(cpp_build(f"k{i}"), language="cuda"))
        each = task([k], budget=limit, digest=str(i))
        each.problem = problem(rows=1024 * (i + 1))
        bench.builder.add(each, k, lambda: None)
    bench.builder.flush()
    until(lambda: not bench.builder.busy())
    assert bench.batches() == [5, 5]
    lightest = min(range(2), key=lambda i: bench.pool.ranks[i])
    text = str(bench.pool.jobs[lightest])
    assert [name in text for name in ("// k0", "// k4", "// k5")] == [True, True, False]


def test_of_a_unit_only_the_kernel_that_another_process_builds_is_left_out(tmp_path: Path) -> None:
    bench, other = rig(tmp_path), open_store(tmp_path)
    bench.pool.workers = 1
    keys = sorted((cpp_build(name).key for name in "abc"), key=lambda key: key.digest)
    entries = {cpp_build(name).key.digest: entry(name, build=cpp_build(name)) for name in "abc"}
    theirs, *mine = (entries[key.digest] for key in keys)  # as a unit takes their locks
    owner = task([theirs, *mine])
    with other.lock_kernel(keys[0].digest):
        for each in owner.entries:
            bench.builder.add(owner, each, lambda: None)
        bench.builder.flush()
        until(lambda: all(each.ready for each in mine))
        other.put_kernel(keys[0], {"kernel.so": b"theirs", "source.cpp": b""})
    until(lambda: not bench.builder.busy())
    assert (status(theirs), bench.batches()) == ("ready", [2])


def test_without_a_limit_of_time_kernels_are_built(tmp_path: Path) -> None:
    bench = rig(tmp_path, timeout_s=0.0)
    entries = [*cpp_entries("k"), entry("t", build=triton_job("t"))]
    owner = task(entries)
    with bench.builder.quiet():
        for each in entries:
            bench.builder.add(owner, each, lambda: None)
        bench.builder.flush()
        time.sleep(0.02)
        assert bench.pool.jobs == []
    until(lambda: not bench.builder.busy())
    assert [status(each) for each in entries] == ["ready", "ready"]


def test_a_quiet_block_holds_a_compile_up_for_the_limit_of_one_at_most(tmp_path: Path) -> None:
    bench = rig(tmp_path, timeout_s=0.02)
    (k,) = cpp_entries("k")
    with bench.builder.quiet() as quiet:
        assert quiet
        bench.builder.add(task([k]), k, lambda: None)
        bench.builder.flush()
        until(lambda: k.ready)
