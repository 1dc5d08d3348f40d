"""Runs one step as a process group of its own, and leaves nothing of it behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "GPU_SESSION_STEP"
"""Variable by which the processes of a step are found, whatever group or session they are in."""
GRACE_S = 6.0
"""After SIGINT, with which pytest prints what failed and benchmarks end their arms; then SIGKILL."""
_TAIL_BYTES = 20_000


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit status, negative for a signal; None if it was killed at its limit.
        seconds: Seconds it took.
        output: The end of what it printed.
    """

    code: int | None
    seconds: float
    output: str


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
    """
    mark = secrets.token_hex(8)
    began = time.monotonic()
    grace_s = min(grace_s, limit_s / 2)
    with log.open("ab") as stream:
        start = stream.tell()
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s - grace_s)
            if code is None:
                code = _interrupted(process, grace_s)
        finally:
            _kill(process, mark)
    return Ended(code, time.monotonic() - began, _end_of(log, start))


def _interrupted(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Ask a process group to end, and wait a while for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)


def _kill(process: subprocess.Popen[Any], mark: str) -> None:
    """Kill the group, and what has left it: until nothing with the mark runs, or a second is over."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ends = time.monotonic() + 1.0
    while (pids := list(marked(mark))) and time.monotonic() < ends:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that have the mark of a step."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


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
