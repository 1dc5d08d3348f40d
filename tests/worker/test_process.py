from __future__ import annotations

import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.errors import WorkerDiedError, WorkerError
from inductor_plugin.worker.child import main
from inductor_plugin.worker.jobs import CallJob, Event, JobFailed, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
from tests.support.processes.worker import GET_PID, SETTINGS, a_worker, until
from tests.support.repository import REPOSITORY

__all__ = ["a_worker"]  # the fixture


BROKEN = """
import sys, types
def fails(*_):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\\nCompile with DSA")
cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=fails)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
sys.modules["inductor_plugin.worker.child.bench"] = types.SimpleNamespace(release=fails)
"""


def test_a_worker_says_that_its_device_is_broken_though_nothing_can_be_freed(
    worker: WorkerProcess,
) -> None:
    worker.run(CallJob("builtins", "exec", (BROKEN,)), 10.0)
    failed = worker.run(CallJob("math", "sqrt", (-1,)), 10.0)
    assert isinstance(failed, JobFailed)
    assert failed.status == "sticky_error"
    assert failed.reason == (
        "ValueError: math domain error; CUDA error: an illegal memory access was encountered"
    )
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2


HOLDING = """
import sys, types, weakref
class Tensor:
    pass
held = []
def job():
    tensor = Tensor()
    held.append(weakref.ref(tensor))
    raise ValueError(tensor)
def release():
    module.alive.append(held[-1]() is not None)
module = types.ModuleType("inductor_plugin.worker.child.bench")
module.job, module.release, module.alive, module.count = job, release, [], lambda: list(module.alive)
sys.modules[module.__name__] = module
"""


def test_what_a_failed_job_has_held_is_free_when_its_memory_is_given_back(
    worker: WorkerProcess,
) -> None:
    """A traceback refers to the tensors of each of its frames: freed before they are, a GPU's memory stays taken."""
    worker.run(CallJob("builtins", "exec", (HOLDING, {})), 10.0)
    bench = "inductor_plugin.worker.child.bench"
    assert isinstance(worker.run(CallJob(bench, "job"), 10.0), JobFailed)
    assert worker.run(CallJob(bench, "count"), 10.0) == [False]


def test_a_worker_is_another_process_and_keeps_running_between_jobs(worker: WorkerProcess):
    first = worker.run(GET_PID, 10.0)
    assert first not in (os.getpid(), None)
    assert worker.run(GET_PID, 10.0) == first == worker.pid
    assert worker.starts == 1


def test_a_worker_gives_way_as_it_is_told():
    """So that compilers, which inherit it, do not take the core of what is measured meanwhile."""
    nice = min(19, os.nice(0) + 3)
    worker = WorkerProcess(replace(SETTINGS, nice=nice - os.nice(0)), "nice worker")
    try:
        assert worker.run(CallJob("os", "nice", (0,)), 30.0) == nice
    finally:
        worker.close()


def test_what_a_job_raises_comes_back_as_a_value(worker: WorkerProcess):
    failed = worker.run(CallJob("math", "sqrt", (-1,)), 10.0)
    assert isinstance(failed, JobFailed)
    assert failed.status == "raised"
    assert failed.reason.startswith("ValueError: ")
    assert "Traceback" in failed.traceback
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2
    assert worker.starts == 1


def test_a_result_that_does_not_pickle_is_a_failed_job(worker: WorkerProcess):
    assert isinstance(worker.run(CallJob("threading", "Lock"), 10.0), JobFailed)
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2


def test_an_event_can_set_a_new_limit(worker: WorkerProcess):
    events: list[Event] = []

    def longer(event: Event) -> float:
        events.append(event)
        return 30.0

    worker.start()
    assert worker.run(CallJob("time", "sleep", (0.35,)), 0.3, longer) is None
    assert [event.what for event in events] == ["accepted"]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (CallJob("os", "abort"), "SIGABRT"),
        (CallJob("os", "_exit", (3,)), "exit code 3"),
        (CallJob("os", "_exit", (0,)), "exit code 0"),
    ],
)
def test_a_death_is_named_and_costs_one_job(worker: WorkerProcess, job: CallJob, words: str):
    with pytest.raises(WorkerDiedError, match=words):
        worker.run(job, 10.0)
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2
    assert worker.starts == 2


def test_the_last_words_of_a_worker_are_quoted(worker: WorkerProcess):
    job = CallJob("os", "system", ("echo these are my last words; kill -9 $PPID",))
    with pytest.raises(WorkerDiedError, match="these are my last words"):
        worker.run(job, 10.0)
    failed = worker.attempt(job, 10.0)
    assert failed.status == "out_of_memory"
    assert "\n" not in failed.reason


def test_a_job_that_a_stopped_worker_does_not_read_ends_at_its_limit(worker: WorkerProcess):
    worker.start()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    started = time.monotonic()
    failed = worker.attempt(CallJob("builtins", "len", (b"x" * 5_000_000,)), 0.25)
    assert failed.status == "hung"
    assert time.monotonic() - started < 5.0
    assert worker.run(CallJob("builtins", "len", (b"x" * 5_000_000,)), 30.0) == 5_000_000


@pytest.mark.parametrize(
    ("code", "limit_s", "status", "words"),
    [
        ("os.write(fd, struct.pack('!i', 100) + b'half'); time.sleep(600)", 1.0, "hung", "1.0 s"),
        (
            "os.write(fd, struct.pack('!i', 4) + b'junk'); time.sleep(600)",
            60.0,
            "crashed",
            "cannot be read",
        ),
        (
            "os.write(fd, struct.pack('!i', -7) + b'junk'); time.sleep(600)",
            60.0,
            "crashed",
            "no message",
        ),
        (
            "os.write(fd, struct.pack('!i', 5) + pickle.dumps(7)); time.sleep(600)",
            60.0,
            "crashed",
            "no message",
        ),
        (
            "os.write(fd, struct.pack('!i', 100) + b'half'); os.close(fd); os._exit(0)",
            60.0,
            "crashed",
            "ended",
        ),
    ],
)
def test_a_broken_answer_ends_the_job_and_not_the_parent(
    worker: WorkerProcess, code: str, limit_s: float, status: str, words: str
):
    text = f"import os, pickle, struct, sys, time; fd = int(sys.argv[1]); {code}"
    started = time.monotonic()
    failed = worker.attempt(CallJob("builtins", "exec", (text,)), limit_s)
    assert (failed.status, words in failed.reason) == (status, True), failed.reason
    assert time.monotonic() - started < 20.0
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2


def test_without_a_limit_a_job_takes_its_time(worker: WorkerProcess):
    assert worker.run(CallJob("time", "sleep", (0.1,)), math.inf, lambda _: math.inf) is None


def test_a_worker_that_dies_by_its_memory_limit_names_the_option():
    settings = WorkerSettings(SETTINGS.sys_path, "compile", memory_bytes=1024)
    worker = WorkerProcess(settings, "tiny worker")
    failed = worker.attempt(CallJob("builtins", "bytearray", (1 << 20,)), 10.0)
    worker.close()
    assert failed.status in ("crashed", "out_of_memory")
    assert "worker_memory_bytes" in failed.reason or failed.status == "out_of_memory"


# Operator new, of a terabyte.
NEW_IN_CPP = "(c := __import__('ctypes')).CDLL('libstdc++.so.6')._Znwm(c.c_size_t(1 << 40))"


@pytest.mark.parametrize(
    ("job", "status"),
    [
        (CallJob("os", "abort", ()), "crashed"),
        (CallJob("ctypes", "string_at", (0,)), "crashed"),
        (CallJob("builtins", "eval", (NEW_IN_CPP,)), "out_of_memory"),
    ],
    ids=["aborts", "null pointer", "bad_alloc"],
)
def test_a_worker_that_a_signal_ends_names_its_memory_limit(job: CallJob, status: str):
    settings = WorkerSettings(SETTINGS.sys_path, "compile", memory_bytes=1 << 30)
    worker = WorkerProcess(settings, "limited worker")
    failed = worker.attempt(job, 20.0)
    worker.close()
    assert failed.status == status
    assert "killed by SIG" in failed.reason
    assert "option worker_memory_bytes lets it use 1,073,741,824 bytes" in failed.reason


def test_a_worker_is_as_isolated_as_its_parent(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
worker = WorkerProcess(WorkerSettings(tuple(sys.path), "compile"), "worker")
assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2
"""
    )
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for flags, ran in (["-I"], False), (["-E"], False), ([], True):
        command = [sys.executable, *flags, str(script)]
        subprocess.run(command, env=variables, check=True, timeout=60)
        assert (tmp_path / "ran").exists() is ran


def test_what_a_worker_prints_stays_small(worker: WorkerProcess):
    worker.run(CallJob("os", "system", ("head -c 5000000 /dev/zero",)), 10.0)
    child: Any = worker._child  # pyright: ignore[reportPrivateUsage]
    assert until(lambda: os.fstat(child.output.fileno()).st_size < 1 << 20)


def test_a_late_answer_never_reaches_the_next_job(worker: WorkerProcess):
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.run(CallJob("math", "sqrt", (9,)), 10.0, interrupt)
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2


def test_threads_take_turns(worker: WorkerProcess):
    results: list[float] = []

    def run(number: int) -> None:
        results.append(worker.run(CallJob("math", "sqrt", (number * number,)), 20.0) - number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert results == [0.0] * 8


def test_a_worker_that_cannot_start_is_an_error_that_says_why():
    worker = WorkerProcess(WorkerSettings(sys_path=(), kind="compile"), "lost worker")
    with pytest.raises(WorkerError, match="does not start") as caught:
        worker.run(GET_PID, 10.0)
    assert type(caught.value) is WorkerError
    assert "ModuleNotFoundError" in str(caught.value)
    worker.close()


def test_the_packages_own_files_do_not_hide_the_standard_library(worker: WorkerProcess):
    assert (REPOSITORY / "inductor_plugin" / "worker" / "child" / "compile.py").exists()
    assert worker.run(CallJob("importlib.util", "find_spec", ("compile",)), 10.0) is None


def test_the_plugin_is_off_in_a_worker(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", "1")
    monkeypatch.setenv("A_VARIABLE_OF_THE_PARENT", "here")
    assert worker.run(CallJob("os", "getenv", ("INDUCTOR_PLUGIN_ENABLE",)), 10.0) == "0"
    assert worker.run(CallJob("os", "getenv", ("A_VARIABLE_OF_THE_PARENT",)), 10.0) == "here"


def test_a_compile_worker_has_the_memory_limit_and_no_torch():
    settings = WorkerSettings(SETTINGS.sys_path, "compile", memory_bytes=1 << 30)
    worker = WorkerProcess(settings, "limited worker")
    limits = worker.run(CallJob("resource", "getrlimit", (resource.RLIMIT_DATA,)), 10.0)
    assert limits == (1 << 30, 1 << 30)
    loaded = worker.run(CallJob("sys", "getrefcount", ("torch",)), 10.0)
    assert isinstance(loaded, int)
    code = "assert 'torch' not in __import__('sys').modules"
    assert worker.run(CallJob("builtins", "exec", (code,)), 10.0) is None
    failed = worker.run(CallJob("builtins", "bytearray", (2 << 30,)), 10.0)
    assert failed.status == "out_of_memory"
    worker.close()


def test_a_benchmark_worker_works_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: chosen.append("its context"))
    with torch.set_grad_enabled(torch.is_grad_enabled()):  # restores it
        for device in ("cuda:1", "cpu"):
            main.apply_settings(WorkerSettings(sys_path=(), kind="bench", device=device))
    assert chosen == ["cuda:1", "its context"]


def test_a_fork_of_the_parent_does_not_wait_for_a_worker_that_is_not_its_own(
    worker: WorkerProcess,
) -> None:
    pid = worker.run(GET_PID, 10.0)
    child = worker._child  # pyright: ignore[reportPrivateUsage]
    assert child is not None
    child.owner = os.getppid()
    # The parent's end of the pipe is open in a fork's parent: else the worker ends by itself.
    parents = child.pipe._end.dup()  # pyright: ignore[reportPrivateUsage]
    started = time.monotonic()
    child.close()
    took_s = time.monotonic() - started
    child.owner = os.getpid()
    assert took_s < 5.0
    assert not child.ended.wait(0.3)
    assert Path(f"/proc/{pid}").exists()
    parents.close()
    assert child.ended.wait(10.0)


def test_a_worker_without_a_thread_that_waits_for_it_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []
    popen: Any = subprocess.Popen

    def kept(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", kept)
    monkeypatch.setattr(threading.Thread, "start", fails)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(WorkerError, match="can't start new thread"):
        WorkerProcess(SETTINGS, "a worker").start()
    (process,) = started
    process.wait(10.0)  # raises where it goes on
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_who_holds_a_gpus_memory_is_asked_before_the_jobs_own_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, jobs, shortage = list[Any](), ["fails", "works"], SimpleNamespace
    wire: Any = SimpleNamespace(poll=lambda _: jobs, recv=lambda: jobs.pop(0), send=done.append)  # pyright: ignore
    wire.send_bytes = lambda data: done.append(pickle.loads(data))  # pyright: ignore

    def execute(job: str, _emit: Any) -> str:
        if job == "fails":
            raise MemoryError("CUDA out of memory")
        return job

    monkeypatch.setattr(main, "execute", execute)
    monkeypatch.setattr(main, "recover", lambda: done.append("freed"))
    monkeypatch.setattr(main, "shortage_of", lambda _: shortage(reason="why", is_crowded=True))  # pyright: ignore
    main.serve(wire, 1.0)
    _, (failed,), freed, _, result = done
    assert (failed.status, failed.crowded) == ("out_of_memory", True)
    assert failed.reason.endswith("; why")
    assert (freed, result) == ("freed", ("works",))
