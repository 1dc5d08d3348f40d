"""A Chrome/Perfetto trace of the pipeline: when candidates were compiled, measured and waited for."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

MAIN_TRACK = "compile (main)"


class Trace:
    """Collects spans and writes them as JSON for chrome://tracing and ui.perfetto.dev."""

    def __init__(self, path: str = "") -> None:
        """Collect for ``path``; an empty path collects nothing."""
        self.path = path
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
                    "pid": 1,
                    "tid": tid,
                    "args": args,
                }
            )

    def add_parallel(self, kind: str, name: str, start_ns: int, end_ns: int) -> None:
        """Record a span on the first free track of a kind, as if the track were a worker."""
        with self._lock:
            free = (lane for lane, until in enumerate(self._lanes_ns) if until <= start_ns)
            lane = next(free, len(self._lanes_ns))
            self._lanes_ns[lane : lane + 1] = [end_ns]
        self.add(f"{kind} {lane + 1}", name, start_ns, end_ns)

    def write(self) -> None:
        """Write the spans collected so far; warn once if the path cannot be written."""
        if not self.path:
            return
        with self._lock:
            names = [
                {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": track}}
                for track, tid in self._tracks.items()
            ]
            text = json.dumps({"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"})
        try:
            Path(self.path).write_text(text, encoding="utf-8")
        except OSError as error:
            logger.warning(
                "inductor-plugin: the trace cannot be written to %s: %s", self.path, error
            )
            self.path = ""
