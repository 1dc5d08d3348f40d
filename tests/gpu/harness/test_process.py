"""Nothing of a step runs on after it, nor after its session, however that ends."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.resume import Budget
from tests.gpu.session import process
from tests.gpu.session.run import Session, environment, opened, run
from tests.gpu.session.step import Step
from tests.support.fakes.waiting import until

SLEEP = "import os, time, pathlib; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)"
# The child of a step that has left its group; it has the step's mark.
LEAVES = (
    """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
pathlib.Path("child").write_text(str(child.pid))
"""
    + SLEEP
)
SESSION = """
import sys; sys.path.insert(0, {repository!r})
from pathlib import Path
from tests.gpu.session.process import ended_by_signals, run
with ended_by_signals():
    run([sys.executable, "-S", "-c", {code!r}], limit_s=50, log=Path("log"), folder=Path(), environment={{}})
"""


def started(folder: Path, repository: Path, code: str) -> tuple[subprocess.Popen[bytes], int]:
    """Return a session that runs a step, and the step's process."""
    text = SESSION.format(repository=str(repository), code=code)
    session = subprocess.Popen([sys.executable, "-S", "-c", text], cwd=folder)
    try:
        return session, number(folder / "pid")
    except BaseException:
        session.terminate()
        raise


def number(path: Path) -> int:
    """Return the number that a process writes into a file."""
    until(lambda: path.is_file() and path.read_text() != "", 20.0)
    return int(path.read_text())


def gone(pid: int) -> Callable[[], bool]:
    return lambda: process.began_at(pid) == ""


def test_a_step_is_killed_with_its_session(tmp_path: Path, repository: Path) -> None:
    session, pid = started(tmp_path, repository, SLEEP)
    try:
        session.send_signal(signal.SIGTERM)
        assert session.wait(20) == 128 + signal.SIGTERM
    finally:
        session.kill()
    assert not Path(f"/proc/{pid}").exists()


def test_a_session_that_is_killed_leaves_no_step_running(tmp_path: Path, repository: Path) -> None:
    session, pid = started(tmp_path, repository, SLEEP)
    session.kill()
    session.wait(20)
    until(gone(pid), 5.0)


def test_the_next_session_ends_what_a_killed_one_has_left(tmp_path: Path, repository: Path) -> None:
    session, pid = started(tmp_path, repository, LEAVES)
    child = number(tmp_path / "child")
    try:
        assert not {pid, child} & set(process.abandoned())  # their session runs
        session.kill()
        session.wait(20)
        until(gone(pid), 5.0)
        assert child in process.abandoned()
        said: list[str] = []
        nothing = Session((), tmp_path, environment(tmp_path / "kernels"), "now")
        run(nothing, opened(tmp_path, {}), Budget(100.0), say=said.append)
        until(gone(child), 5.0)
        assert said[0].startswith("Ended what a killed session had left running: ")
        assert str(child) in said[0]
    finally:
        session.kill()
        if not gone(child)():
            os.kill(child, signal.SIGKILL)


def test_a_mark_of_a_process_number_that_was_given_again_is_abandoned() -> None:
    own = f"{os.getpid()}.{process.began_at(os.getpid())}.token"
    before = f"{os.getpid()}.1.token"
    code = "import time; time.sleep(60)"
    both = [
        subprocess.Popen([sys.executable, "-S", "-c", code], env={process.MARK: mark})
        for mark in (own, before)
    ]
    try:
        until(lambda: both[1].pid in process.abandoned(), 20.0)
        assert both[0].pid not in process.abandoned()
    finally:
        for each in both:
            each.kill()
            each.wait()


def test_a_step_is_started_by_the_main_thread(tmp_path: Path) -> None:
    errors: list[str] = []

    def start() -> None:
        try:
            process.run(["true"], limit_s=1, log=tmp_path / "log", folder=tmp_path, environment={})
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert errors == ["steps are started by the main thread: they end with the one that does"]


def test_a_process_that_cannot_be_killed_ends_the_session_and_not_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a driver; here SIGKILL is not sent."""
    monkeypatch.setattr(process, "DEATH_S", 0.1)
    monkeypatch.setattr(process.os, "killpg", lambda pid, number: None)  # pyright: ignore
    monkeypatch.setattr(process.os, "kill", lambda pid, number: None)  # pyright: ignore
    kept: list[subprocess.Popen[Any]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **more: Any) -> Any:
        kept.append(popen(*arguments, **more))
        return kept[-1]

    monkeypatch.setattr(process.subprocess, "Popen", start)
    hung = Step("hung", "", ("-S", "-c", SLEEP), 0.6, least_s=0.1)
    said: list[str] = []
    session = Session(
        (hung, replace(hung, name="next")),
        tmp_path,
        environment(tmp_path / "kernels"),
        "now",
        grace_s=0.1,
        repository=tmp_path,
    )
    rows = opened(tmp_path, {})
    try:
        began = time.monotonic()
        assert run(session, rows, Budget(100.0), say=said.append) == 1
        assert time.monotonic() - began < 10.0
    finally:
        monkeypatch.undo()
        for each in kept:
            each.kill()
            each.wait()
    (row,) = rows.rows
    assert (row["status"], row["survivors"]) == ("hung", [kept[0].pid])
    assert any(f"hung cannot be killed: process {kept[0].pid}" in line for line in said)
