"""The parent's side of a worker process: start, run one job at a time, kill, restart.

The child is a fresh interpreter on `child/main.py`, in a separate session: it inherits no state by
fork, the user's script does not run again, and one signal ends the worker together with the
compilers it started. The child exits when it is idle, and when the parent is gone.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from inductor_plugin.errors import WorkerDiedError, WorkerError, WorkerTimeoutError
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.failure import one_line, says_no_memory
from inductor_plugin.worker.interpreter import isolation, variables_of
from inductor_plugin.worker.jobs import Event, JobFailed, WorkerSettings
from inductor_plugin.worker.pipe import Pipe

_LOG = logging.getLogger(__name__)
_ENTRY = Path(__file__).with_name("child") / "main.py"
_TAIL_BYTES = 2000

_WITHOUT_MEMORY = (signal.SIGABRT, signal.SIGSEGV)
"""Signals that end a process which gets no memory: C++ aborts for a bad_alloc that nothing catches, and C that does not
check its allocations uses a null pointer. Python ends with a status, often without a word, as a MemoryError needs memory."""

START_S = 180.0
"""Limit for the start of a worker: importing torch from a cold network disk takes a minute."""

EventHandler = Callable[[Event], float | None]
"""Called with each event; may return a new limit in seconds, counted from now."""


class _Child:
    """A running worker: its process, our ends of the pipes, its output.

    A separate thread waits for the end of the process. It kills the rest of the process group before
    it reaps the leader, while the group's number cannot be reused.
    """

    def __init__(self, name: str, settings: WorkerSettings) -> None:
        self.name = name
        self.owner = os.getpid()
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._doomed = False
        self.output: IO[bytes] = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115 - closed in _reap
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()  # the child's end closes when we are gone
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *isolation(),
                    str(_ENTRY),
                    str(theirs.fileno()),
                    str(lifeline),
                    str(self.owner),
                    ",".join(map(str, own_cores())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                close_fds=True,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,
                env=variables_of(settings),
            )
            reaper = threading.Thread(target=self._reap, name=f"{name} reaper", daemon=True)
            reaper.start()
        except (OSError, RuntimeError):  # no process, or no thread that waits for its end
            ours.close()
            self.output.close()
            os.close(self._lifeline)  # by which a process ends
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.pipe = Pipe(ours, name)
        self.memory_bytes = settings.memory_bytes

    @property
    def pid(self) -> int:
        """Its process number, and that of its group."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while it runs and may be used; False in a fork of the process that started it."""
        return self.owner == os.getpid() and not self._doomed and not self.ended.is_set()

    def kill(self) -> None:
        """Kill it and all processes it started."""
        if self.owner != os.getpid():
            return
        self._doomed = True
        with self._lock:
            if not self.ended.is_set():
                others = _descendants(self.pid)
                _kill_group(self.pid)
                for pid in others:  # those that have left the group
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)

    def tail(self) -> str:
        """Return the end of its standard output and error."""
        try:
            size = os.fstat(self.output.fileno()).st_size
            text = os.pread(self.output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        except (OSError, ValueError):  # closed
            return ""
        return text.decode(errors="replace").strip()

    def close(self) -> None:
        """Kill it, wait until it is reaped, and close our ends; in a fork of the process that started it, close the ends alone."""
        if self.owner == os.getpid():
            self.kill()
            self.ended.wait(10.0)
        self.pipe.close()
        self.output.close()

    def _reap(self) -> None:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            _LOG.debug("someone else has reaped worker %s", self.pid)
        with self._lock:
            _kill_group(self.pid)
            self.process.wait()
            self.ended.set()
        os.close(self._lifeline)


_exiting = threading.Event()
_children: weakref.WeakSet[_Child] = weakref.WeakSet()


def _end_all() -> None:
    """Kill all workers when the interpreter exits, and prevent threads from starting others."""
    _exiting.set()
    for child in list(_children):
        child.kill()


atexit.register(_end_all)


class WorkerProcess:
    """A process that runs jobs; it is started for the first job, and again after it has died.

    One job runs at a time; other threads wait. `close()` may be called from any thread at any time:
    a running job then ends with `WorkerError`.
    """

    def __init__(self, settings: WorkerSettings, name: str) -> None:
        self.settings = settings
        self.name = name
        self._lock = threading.RLock()
        self._child: _Child | None = None
        self._finalizer: Any = None
        self._closed = False
        self.starts = 0

    @property
    def alive(self) -> bool:
        """True if its process is running."""
        child = self._child
        return child is not None and child.alive

    @property
    def pid(self) -> int | None:
        """Number of its process and process group; None if it is not running."""
        child = self._child
        return child.pid if child is not None and child.alive else None

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the jobs of other threads out, so that `stop` ends no process that runs one of theirs."""
        with self._lock:
            yield

    def start(self) -> None:
        """Start the process unless it runs, and wait until it is ready for a job.

        Raises:
            WorkerError: It could not be started.
        """
        with self._lock:
            self._ready_child()

    def run(self, job: object, timeout_s: float, on_event: EventHandler | None = None) -> Any:
        """Run one job and return its result, or a `JobFailed` if it raised in the worker.

        Args:
            job: One of the records in `jobs`.
            timeout_s: Seconds until the first event that sets another limit, or until the result.
                The start of the process is not part of it.
            on_event: Called in this thread for each event of the job.

        Raises:
            WorkerTimeoutError: The limit has passed; the process and all its children were killed.
            WorkerDiedError: The process died.
            WorkerError: The process could not be started.
        """
        with self._lock:
            for _ in range(3):
                child = self._ready_child()
                done, result = self._exchange(child, job, timeout_s, on_event)
                if done:
                    return result
            raise WorkerError(f"{self.name} ended three times before it took a job")

    def attempt(self, job: object, timeout_s: float, on_event: EventHandler | None = None) -> Any:
        """Run one job; the end of the worker becomes a `JobFailed` too, with its likely cause.

        Raises:
            WorkerError: The process could not be started, or was closed.
        """
        try:
            return self.run(job, timeout_s, on_event)
        except WorkerTimeoutError as error:
            return JobFailed("hung", one_line(str(error)), str(error))
        except WorkerDiedError as error:
            text = str(error)
            # A SIGKILL that is not ours comes from a kernel that is out of memory.
            no_memory = "SIGKILL" in text.partition("\n")[0] or says_no_memory(text)
            return JobFailed("out_of_memory" if no_memory else "crashed", one_line(text), text)

    def stop(self) -> None:
        """Kill the process, if it runs; the next job starts a new one."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Kill the process; no other is started."""
        self._closed = True
        self.stop()
        with self._lock:
            self._drop()

    def _ready_child(self) -> _Child:
        if self._child is not None and self._child.alive:
            return self._child
        self._drop()
        if self._closed or _exiting.is_set():
            raise WorkerError(f"{self.name} is closed")
        started = time.monotonic()
        try:
            child = _Child(self.name, self.settings)
        except (OSError, RuntimeError) as error:
            raise WorkerError(f"cannot start {self.name}: {error}") from error
        self.starts += 1
        _children.add(child)
        self._child = child
        self._finalizer = weakref.finalize(self, child.close)
        self._finalizer.atexit = False
        if self._closed:  # closed since the check above: `close` has not seen this child
            child.kill()
        self._initialize(child)
        _LOG.debug("%s runs as %s (%.1f s)", self.name, child.pid, time.monotonic() - started)
        return child

    def _initialize(self, child: _Child) -> None:
        """Send the settings to the child, and wait until it is ready."""
        ready = False
        try:
            deadline = time.monotonic() + START_S
            child.pipe.send(self.settings.sys_path, deadline)
            child.pipe.send(self.settings, deadline)
            ready = child.pipe.receive(deadline) == "ready"
        except TimeoutError as error:
            raise WorkerError(f"{self.name} was not ready within {START_S:.0f} s") from error
        except (EOFError, OSError) as error:
            raise WorkerError(f"{self.name} does not start: {_died(child)}") from error
        finally:
            if not ready:
                child.kill()

    def _exchange(
        self, child: _Child, job: object, timeout_s: float, on_event: EventHandler | None
    ) -> tuple[bool, Any]:
        """Send the job and follow it; return (False, None) if the idle child exited before it."""
        accepted = answered = False
        deadline = time.monotonic() + timeout_s
        try:
            child.pipe.send(job, deadline)
            while True:
                message = child.pipe.receive(deadline)
                if isinstance(message, tuple):
                    answered = True
                    return True, cast("tuple[Any, ...]", message)[0]
                event = self._event(message)
                accepted = True
                limit_s = on_event(event) if on_event is not None else None
                if limit_s is not None:
                    deadline, timeout_s = time.monotonic() + limit_s, limit_s
        except TimeoutError:
            tail = child.tail()
        except (EOFError, OSError) as error:
            reason = _died(child)
            if not accepted and child.process.returncode == 0:
                return False, None
            if self._closed or _exiting.is_set():
                raise WorkerError(f"{self.name} was closed") from error
            raise WorkerDiedError(f"{self.name} {reason}") from error
        finally:
            if not answered:  # also on KeyboardInterrupt: a late answer must not reach the next job
                child.kill()
        self._drop()
        raise WorkerTimeoutError(f"{self.name} was ended after {timeout_s:.1f} s{_quote(tail)}")

    def _event(self, message: object) -> Event:
        if not isinstance(message, Event):
            raise WorkerDiedError(
                f"{self.name} sent a {type(message).__name__}, which is no message"
            )
        return message

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.owner == os.getpid():
            self._finalizer.detach()
            child.close()


def _descendants(pid: int) -> list[int]:
    """Return the processes that a worker has started, also those whose own parent has ended.

    A worker is their "child subreaper": the system gives it the children of its ended children.
    """
    pids: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listing.read_text(encoding="ascii").split()):
                pids += [child, *_descendants(child)]
    return pids


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone already; macOS says EPERM for a zombie
        return


def _died(child: _Child) -> str:
    """Return how a child ended after its end of the pipe has closed."""
    if not child.ended.wait(5.0):
        child.kill()
        child.ended.wait(5.0)
        return f"closed its pipe and went on; it was killed{_quote(child.tail())}"
    code = child.process.returncode
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    if child.memory_bytes and code is not None and (code > 0 or -code in _WITHOUT_MEMORY):
        how += f" (option worker_memory_bytes lets it use {child.memory_bytes:,} bytes)"
    return how + _quote(child.tail())


def _quote(tail: str) -> str:
    return f"\nIt wrote:\n{tail}" if tail else ""
