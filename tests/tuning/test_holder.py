"""Who holds a lock, and how long that process has been silent."""

from __future__ import annotations

import functools
import logging
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.tuning import holder as holder_module
from inductor_plugin.tuning.holder import (
    HolderWatch,
    Holds,
    ProblemLocks,
    holder_pid,
    silence_s,
    touch,
    wait_s,
)
from tests.support.fakes.tasks import task
from tests.support.fakes.waiting import FakeClock, until


class Clock(FakeClock):
    """A clock for silences; the time of day stays."""

    def time(self) -> float:
        return time.time()

    def time_ns(self) -> int:
        return time.time_ns()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(holder_module, "time", fake)
    return fake


def config(**options: Any) -> Config:
    return Config.load(options, environ={})


def test_the_silence_waited_for_is_that_of_one_step_not_of_all() -> None:
    assert silence_s(config()) == 120 + 2 * 30
    assert silence_s(config(compile_timeout_s=5, bench_timeout_s=5)) == 15
    assert silence_s(config(bench_timeout_s=0)) == math.inf
    assert silence_s(config()) < wait_s(config()) == 60 + 4 * 120 + 180
    assert wait_s(config(compile_timeout_s=0)) == math.inf


def test_silence_begins_anew_with_each_touch(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "k.lock"
    path.write_bytes(b"")
    os.utime(path, (0, 0))
    watch = HolderWatch(path)
    clock.now += 50.0
    assert watch.silent_s() == 50.0
    touch(path)
    assert watch.silent_s() == 0.0
    assert path.stat().st_mtime == 0  # older versions of filelock change that one
    clock.now += 7.0
    assert watch.silent_s() == 7.0


def test_a_file_that_is_not_there_is_silent(tmp_path: Path, clock: Clock) -> None:
    watch = HolderWatch(tmp_path / "none")
    touch(tmp_path / "none")
    clock.now += 3.0
    assert watch.silent_s() == 3.0


def test_the_holder_is_named_by_the_table_of_the_kernel(tmp_path: Path) -> None:
    path, table = tmp_path / "k.lock", tmp_path / "locks"
    path.write_bytes(b"")
    status = path.stat()
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    table.write_text(
        f"1: POSIX  ADVISORY  WRITE 11 {name} 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 00:01:1 0 EOF\n"
        f"3: FLOCK  ADVISORY  WRITE 4321 {name} 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 9 {name} 0 EOF\n"
    )
    assert holder_pid(path, table) == 4321
    table.write_text(f"1: FLOCK  ADVISORY  WRITE 0 {name} 0 EOF\n")  # of another PID namespace
    assert holder_pid(path, table) is None
    assert holder_pid(path, tmp_path / "none") is None
    assert holder_pid(tmp_path / "none", table) is None


def test_a_problem_is_measured_by_one_process_at_a_time(tmp_path: Path) -> None:
    mine = ProblemLocks(open_store(tmp_path), 60.0)
    other = ProblemLocks(open_store(tmp_path), 60.0)
    release = mine(task([], digest="d" * 64))
    assert release is not None
    assert other(task([], digest="d" * 64)) is None
    free = other(task([], digest="e" * 64))
    assert free is not None
    free()
    release()
    again = other(task([], digest="d" * 64))
    assert again is not None
    again()


def test_a_holder_that_makes_progress_is_waited_for_and_a_silent_one_is_not(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    holder = ProblemLocks(open_store(tmp_path), 60.0)
    waiter = ProblemLocks(open_store(tmp_path), 60.0)
    pending = task([], digest="d" * 64)
    release = holder(pending)
    assert release is not None
    for _ in range(5):
        assert waiter(pending) is None
        clock.now += 40.0
        holder.touch(pending)
    assert waiter(pending) is None
    clock.now += 61.0
    alone = waiter(pending)
    assert alone is not None
    alone()
    release()
    notices = [r.getMessage() for r in caplog.records if "waits for" in r.getMessage()]
    assert notices == [f"inductor-plugin: mm(64x32, 32x48) waits for process {os.getpid()}"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "silent for 61 s" in warnings[0]


def test_a_stopped_process_is_a_silent_holder(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom inductor_plugin.cache import open_store\n"
        "lock = open_store(sys.argv[1]).lock_kernel('measure-' + 'd' * 64, timeout_s=0)\n"
        "lock.__enter__()\nprint('held', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            locks = ProblemLocks(open_store(tmp_path), 0.2)
            pending = task([], digest="d" * 64)
            assert locks(pending) is None
            until(lambda: locks(pending) is not None)
        finally:
            process.kill()


class Locks:
    """Keeps which problems made progress."""

    def __init__(self) -> None:
        self.touched: list[str] = []

    def touch(self, task: Any) -> None:
        self.touched.append(task.digest)


@pytest.mark.parametrize("waiting", [True, False])
def test_a_lock_is_given_back_where_the_task_waits_for_a_thread_that_is_gone(
    waiting: bool,
) -> None:
    """A task that measures whether or not a thread waits keeps its lock: it makes progress."""
    locks: Any = Locks()
    holds, released = Holds(locks), list[str]()
    tasks = [task([], exclusive=kind == "cpu", digest=kind) for kind in ("cpu", "cuda")]
    for held in tasks:
        holds.add(held, functools.partial(released.append, held.digest))
    holds.keep_or_give_back(waiting=waiting)
    assert released == ([] if waiting else ["cpu"])
    assert locks.touched == (["cpu", "cuda"] if waiting else ["cuda"])
    assert [holds.has(held) for held in tasks] == [True if waiting else None, True]


def test_problems_that_make_progress_say_so_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline looks at each news: with 10,000 problems each look at all of them would take its time."""
    locks: Any = Locks()
    holds = Holds(locks)
    for digest in ("a", "b"):
        held = task([], exclusive=digest == "a", digest=digest)
        holds.add(held, lambda: None)
    now = [100.0]
    monkeypatch.setattr(holder_module.time, "monotonic", lambda: now[0])
    for now[0], waiting in ((100.0, True), (100.9, True), (101.0, True), (101.1, False)):
        holds.keep_or_give_back(waiting=waiting)
    assert locks.touched == ["a", "b", "a", "b", "b"]  # what is given back is given back at once


def test_lines_of_the_table_that_are_cut_short_name_nobody(tmp_path: Path) -> None:
    path, table = tmp_path / "k.lock", tmp_path / "locks"
    path.write_bytes(b"")
    table.write_text("\n1:\n1: FLOCK\n1: FLOCK  ADVISORY  WRITE 7\n")
    assert holder_pid(path, table) is None
