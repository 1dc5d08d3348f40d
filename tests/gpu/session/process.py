"""Runs one step as a process group of its own, and leaves nothing of it behind.

A session that is killed by SIGKILL cannot clean up: its step dies with it (`tied`), and the next session ends what the
step had started (`abandoned`). Steps are started by the main thread, since the kernel ties a process to a thread.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "GPU_SESSION_STEP"
"""Variable by which the processes of a step are found, whatever group or session they are in.

Its value is ``PID.START.TOKEN``: the session's process, when that began, and a token of the step.
"""
GRACE_S = 6.0
"""After SIGINT, with which pytest prints what failed and benchmarks end their arms; then SIGKILL."""
DEATH_S = 10.0
"""Wait after SIGKILL: a process that waits for a GPU's driver does not die, and the session must not wait for it."""
_TAIL_BYTES = 20_000
_TIED = Path(__file__).with_name("tied.py")


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit status, negative for a signal; None if it was killed at its limit.
        seconds: Seconds it took.
        output: The end of what it printed.
        survivors: Processes that could not be killed.
    """

    code: int | None
    seconds: float
    output: str
    survivors: tuple[int, ...] = ()


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    grace_s: float = GRACE_S,
) -> Ended:
    """Run a command to its end, or to its limit; what it prints is added to ``log``.

    The grace is a part of the limit where that leaves it half of its time. Whatever it started is killed.

    Raises:
        RuntimeError: This is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("steps are started by the main thread: they end with the one that does")
    pid = os.getpid()
    mark = f"{pid}.{began_at(pid)}.{secrets.token_hex(8)}"
    began = time.monotonic()
    grace_s = min(grace_s, limit_s / 2)
    with log.open("ab") as stream:
        start = stream.tell()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_TIED), str(pid), *command],
            cwd=folder,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        survivors: tuple[int, ...] = ()
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s - grace_s)
            if code is None:
                code = _interrupted(process, grace_s)
        finally:
            survivors = _kill(process, mark)
    return Ended(code, time.monotonic() - began, _end_of(log, start), survivors)


def _interrupted(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Ask a process group to end, and wait a while for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)


def _kill(process: subprocess.Popen[Any], mark: str) -> tuple[int, ...]:
    """Kill the group, and what has left it; return what still runs after `DEATH_S` and a second."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(DEATH_S)
    _kill_until(lambda: marked(mark), 1.0)
    return tuple(marked(mark))


def _kill_until(find: Callable[[], Iterator[int]], limit_s: float) -> None:
    """Kill the processes that are found, until none is, or the seconds are over."""
    ends = time.monotonic() + limit_s
    while (pids := list(find())) and time.monotonic() < ends:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def end_abandoned(limit_s: float = DEATH_S) -> list[int]:
    """Kill what steps of sessions have started that run no more; return what it was."""
    pids = list(abandoned())
    _kill_until(abandoned, limit_s)
    return pids


def abandoned() -> Iterator[int]:
    """Yield the processes of steps whose session has ended."""
    for pid, mark in _marks():
        owner, start, _ = (*mark.split("."), "", "")[:3]
        if not owner.isdigit() or began_at(int(owner)) != start:
            yield pid


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that have the mark of a step."""
    return (pid for pid, value in _marks() if value == mark)


def _marks() -> Iterator[tuple[int, str]]:
    """Yield the processes of this user's steps with their marks; a zombie has none."""
    name = f"{MARK}=".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                for variable in (entry / "environ").read_bytes().split(b"\0"):
                    if variable.startswith(name):
                        yield int(entry.name), variable.removeprefix(name).decode(errors="replace")


def began_at(pid: int) -> str:
    """Return when a process began, in clock ticks since the machine's start; empty if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[
        2
    ].split()  # proc(5): state is the third field, starttime the 22nd
    return "" if state == "Z" else fields[18]


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Let SIGTERM raise an exception in the block, so that the running step is killed with the session."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_of(log: Path, start: int) -> str:
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(start, stream.tell() - _TAIL_BYTES))
        return stream.read().decode(errors="replace")
