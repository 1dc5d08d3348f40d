"""A worker ends with its job, its parent or its holder, and takes all that it started along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from inductor_plugin.errors import WorkerError, WorkerTimeoutError
from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
from tests.support.processes.worker import GET_PID, SETTINGS, a_worker, until
from tests.support.repository import REPOSITORY

__all__ = ["a_worker"]  # the fixture


def exists(pid: int) -> bool:
    """True for a process that runs or is a zombie."""
    return Path(f"/proc/{pid}").exists()


def runs(pid: int) -> bool:
    """True for a process that runs; what an ended parent leaves may stay a zombie for a while."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run_script(text: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a user's script, whose main part has no guard."""
    script = folder / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{text}")
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], cwd=folder, text=True, stdout=subprocess.PIPE
    )


def test_a_job_over_its_limit_is_killed_with_its_children(worker: WorkerProcess, tmp_path: Path):
    child = tmp_path / "pid"
    job = CallJob("os", "system", (f"sleep 600 & echo $! > {child}; wait",))
    started = time.monotonic()
    with pytest.raises(WorkerTimeoutError, match=r"1\.0 s"):
        worker.run(job, 1.0)
    assert time.monotonic() - started < 5
    assert until(lambda: not runs(int(child.read_text())))
    assert worker.run(CallJob("math", "sqrt", (4,)), 10.0) == 2


def test_a_process_that_leaves_the_group_is_ended_with_its_worker(
    worker: WorkerProcess, tmp_path: Path
):
    file = tmp_path / "pid"
    # A daemon: another session, and its parent has ended.
    command = f"(setsid sh -c 'echo $$ > {file}; exec sleep 600' &) ; true"
    worker.run(CallJob("os", "system", (command,)), 10.0)
    assert until(lambda: file.exists() and bool(file.read_text().strip()))
    pid = int(file.read_text())
    assert runs(pid)
    assert os.getpgid(pid) == pid
    worker.close()
    assert until(lambda: not runs(pid))


def test_an_idle_worker_ends_is_reaped_and_starts_again():
    settings = WorkerSettings(sys_path=SETTINGS.sys_path, kind="compile", idle_s=0.2)
    worker = WorkerProcess(settings, "idle worker")
    pid = worker.run(GET_PID, 10.0)
    assert until(lambda: not exists(pid))
    # The reaper sets this a moment after the process is gone.
    assert until(lambda: not worker.alive)
    assert worker.run(GET_PID, 10.0) != pid
    worker.close()


def test_closing_ends_a_job_that_is_running_and_leaves_no_process(worker: WorkerProcess):
    pid = worker.run(GET_PID, 10.0)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run(CallJob("time", "sleep", (600,)), 600.0)
        except WorkerError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    worker.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert type(errors[0]) is WorkerError
    assert not exists(pid)
    with pytest.raises(WorkerError, match="closed"):
        worker.run(GET_PID, 10.0)


def test_a_worker_that_nobody_holds_is_ended():
    worker = WorkerProcess(SETTINGS, "forgotten worker")
    pid = worker.run(GET_PID, 10.0)
    del worker
    assert until(lambda: not exists(pid))


def test_the_users_main_part_does_not_run_again(tmp_path: Path):
    script = run_script(
        """
from pathlib import Path
from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
with Path("runs").open("a") as file:
    file.write("run\\n")
worker = WorkerProcess(WorkerSettings(tuple(sys.path), "compile"), "worker")
print(worker.run(CallJob("os", "getpid"), 10.0))
""",
        tmp_path,
    )
    output, _ = script.communicate(timeout=30)
    assert script.returncode == 0
    assert (tmp_path / "runs").read_text() == "run\n"
    assert until(lambda: not exists(int(output)))  # ended with the interpreter, unasked


@pytest.mark.parametrize("fork_holds_the_pipe", [False, True])
@pytest.mark.claim
def test_a_killed_parent_takes_worker_and_compiler_along(tmp_path: Path, fork_holds_the_pipe: bool):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho $$ > compiler.pid\nsleep 600\n")
    compiler.chmod(0o755)
    script = run_script(
        f"""
import os, threading, time
from inductor_plugin.worker.jobs import CallJob, CppCompileJob, CppSource, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
worker = WorkerProcess(WorkerSettings(tuple(sys.path), "compile"), "worker")
print(worker.run(CallJob("os", "getpid"), 10.0))
if {fork_holds_the_pipe}:
    child = os.fork()
    if not child:
        time.sleep(600)
    print(child, flush=True)
job = CppCompileJob((CppSource("key", "", "f"),), ({str(compiler)!r},), {str(tmp_path)!r}, 600.0)
print(flush=True)
worker.run(job, 600.0)
""",
        tmp_path,
    )
    assert script.stdout is not None
    pids = [int(script.stdout.readline()) for _ in range(1 + fork_holds_the_pipe)]
    pid_file = tmp_path / "compiler.pid"
    assert until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
    doomed = [pids[0], int(pid_file.read_text())]
    assert all(runs(pid) for pid in doomed)
    script.kill()
    script.wait(10)
    script.stdout.close()
    gone = until(lambda: not any(runs(pid) for pid in doomed), 5.0)
    if fork_holds_the_pipe:
        os.kill(pids[1], signal.SIGKILL)
    assert gone


def test_a_fork_of_the_parent_does_not_end_its_worker(tmp_path: Path):
    script = run_script(
        """
import os
from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
worker = WorkerProcess(WorkerSettings(tuple(sys.path), "compile"), "worker")
first = worker.run(CallJob("os", "getpid"), 10.0)
if not os.fork():
    assert not worker.alive
    sys.exit(0)  # runs the exit handlers
os.wait()
assert worker.run(CallJob("os", "getpid"), 10.0) == first
""",
        tmp_path,
    )
    script.communicate(timeout=30)
    assert script.returncode == 0
