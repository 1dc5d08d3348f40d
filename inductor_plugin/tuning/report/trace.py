"""A Chrome/Perfetto trace of the pipeline: when candidates were compiled, measured and waited for."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

logger = logging.getLogger(__name__)

MAIN_TRACK = "compile (main)"
_LOCK_S = 5.0


class SpanTrace:
    """Collects spans and writes them as JSON for chrome://tracing and ui.perfetto.dev."""

    def __init__(self, path: str = "") -> None:
        """Collect for ``path``; an empty path collects nothing."""
        self.path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._tracks: dict[str, int] = {}
        self._lanes_ns: list[int] = []

    @contextmanager
    def span(self, track: str, name: str, **args: Any) -> Generator[None]:
        """Record the duration of the block on a track."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(track, name, start, time.perf_counter_ns(), **args)

    def add(self, track: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Record a span by its start and end, in nanoseconds of ``time.perf_counter_ns``."""
        if not self.path:
            return
        with self._lock:
            tid = self._tracks.setdefault(track, len(self._tracks) + 1)
            self._events.append(
                {
                    "name": name,
                    "cat": track.split()[0],
                    "ph": "X",
                    "ts": start_ns / 1e3,
                    "dur": (end_ns - start_ns) / 1e3,
                    "pid": self._pid,
                    "tid": tid,
                    "args": args,
                }
            )

    def add_parallel(self, kind: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Record a span on the first free track of a kind, as if the track were a worker."""
        with self._lock:
            free = (lane for lane, until in enumerate(self._lanes_ns) if until <= start_ns)
            lane = next(free, len(self._lanes_ns))
            self._lanes_ns[lane : lane + 1] = [end_ns]
        self.add(f"{kind} {lane + 1}", name, start_ns, end_ns, **args)

    def write(self) -> None:
        """Write the spans of this process, beside those that other processes have written.

        Nothing is written where nothing was tuned. Warns once if the path cannot be written.
        """
        with self._lock:
            if not self.path or not self._events:
                return
            events = [*self._names(), *self._events]
        try:
            with Path(self.path).open("a+b") as file, _locked(file):
                others = [e for e in _read(file) if e.get("pid") != self._pid]
                text = json.dumps({"traceEvents": [*others, *events], "displayTimeUnit": "ms"})
                file.truncate(0)
                file.write(text.encode())
        except OSError as error:
            logger.warning(
                "inductor-plugin: the trace cannot be written to %s: %s", self.path, error
            )
            self.path = ""

    def _names(self) -> list[dict[str, Any]]:
        """Return the names of the process and of its tracks."""
        name = f"{Path(sys.argv[0]).name or 'python'} ({self._pid})"
        process = {
            "name": "process_name",
            "ph": "M",
            "pid": self._pid,
            "tid": 0,
            "args": {"name": name},
        }
        tracks = [
            {
                "name": "thread_name",
                "ph": "M",
                "pid": self._pid,
                "tid": tid,
                "args": {"name": track},
            }
            for track, tid in self._tracks.items()
        ]
        return [process, *tracks]


@contextmanager
def _locked(file: IO[bytes]) -> Generator[None]:
    """Hold a file's lock; without it if another process keeps it for long, or the disk knows no locks."""
    ends = time.monotonic() + _LOCK_S
    while time.monotonic() < ends:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            break
    yield  # closing the file gives the lock back


def _read(file: IO[bytes]) -> list[dict[str, Any]]:
    """Return the events in a file; none if it is no trace, which is then replaced."""
    file.seek(0)
    try:
        events: Any = json.loads(file.read())["traceEvents"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    if not isinstance(events, list):
        return []
    return [e for e in cast("list[Any]", events) if isinstance(e, dict)]
