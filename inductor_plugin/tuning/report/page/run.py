"""The page of one process: its graphs and their problems, written as they are decided (option ``report``)."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store
from inductor_plugin.errors import CacheError, warn_once
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.gather import cache_source, peak_here, read_json
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CompiledGraphRow
from inductor_plugin.tuning.report.page.write import write_page

logger = logging.getLogger(__name__)

_PAUSE = 20
"""A page is written again when this many times as long has passed as writing it took; and when the process ends."""


@dataclass(frozen=True)
class DecidedProblem:
    """A problem of a graph, decided.

    Attributes:
        store: The cache that has its record.
        environment: Digest of the environment.
        op: Operator.
        digest: Digest of the problem.
        hit: Whether every candidate was known.
    """

    store: Store
    environment: str
    op: str
    digest: str
    hit: bool

    @property
    def place(self) -> str:
        """As of `Record.place`."""
        return f"{self.environment}/{self.op}/{self.digest}"


class RunPage:
    """The page of this process."""

    def __init__(self, file: Path, trace: str = "") -> None:
        """Write to ``file``; draw the spans in the file ``trace`` if it is not empty."""
        self._file = file
        self._trace = trace
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._graphs: list[CompiledGraphRow] = []
        self._problems: dict[str, DecidedProblem] = {}
        self._next_s = 0.0
        self._pending = False

    def add(
        self, kind: str, problems: Sequence[DecidedProblem], spent: Mapping[str, float]
    ) -> None:
        """Add a graph: ``forward``, ``backward`` ...; the page is written unless that was done a moment ago."""
        with self._lock:
            self._graphs.append(
                CompiledGraphRow(
                    f"{len(self._graphs) + 1} {kind}",
                    tuple(problem.place for problem in problems),
                    sum(problem.hit for problem in problems),
                    spent,
                    time.time(),
                )
            )
            self._problems |= {problem.place: problem for problem in problems}
            self._pending = True
        if time.monotonic() >= self._next_s:
            self.write()

    def write(self) -> None:
        """Write the page. Warns once if it cannot be written, whatever the reason."""
        with self._lock:
            # A process that was forked has its parent's graphs, and would write them over the parent's page.
            if not self._pending or os.getpid() != self._pid:
                return
            self._pending = False
            began = time.monotonic()
            try:
                write_page(self._file, self._page())
            # A compile that is over, or a process that ends, does not fail because of its report.
            except Exception as error:
                logger.debug("the report cannot be written", exc_info=True)
                reason = str(error) or type(error).__name__
                warn_once(
                    logger, f"the report cannot be written to {self._file}: {reason}", "report"
                )
            self._next_s = time.monotonic() + _PAUSE * (time.monotonic() - began)

    def _page(self) -> str:
        records = [record for each in self._problems.values() if (record := _record(each))]
        store = next(iter(self._problems.values())).store if self._problems else None
        if store is None:
            return document(page_model([], None, time.time()), "nothing was tuned")
        source = cache_source(store, records, self._graphs)
        model = page_model([source], self._spans(), time.time(), peak_here)
        return document(model, source.name)

    def _spans(self) -> Any:
        with suppress(CacheError, OSError):
            return read_json(Path(self._trace).expanduser()) if self._trace else None
        return None


def _record(problem: DecidedProblem) -> Record | None:
    return problem.store.record(problem.environment, problem.op, problem.digest)


_PAGES: dict[str, RunPage] = {}
_GUARD = threading.Lock()


def run_page(file: str, trace: str = "") -> RunPage:
    """Return this process's page that is written to a file, at the end of the process, too."""
    with _GUARD:
        page = _PAGES.get(file)
        if page is None:
            page = _PAGES[file] = RunPage(Path(file).expanduser().absolute(), trace)
            atexit.register(page.write)
        return page
