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
from inductor_plugin.cache.layout import place_of
from inductor_plugin.errors import CacheError, OptionError, expanded, warn_once
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.gather import cache_source, peak_here, read_json
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CacheSource, CompiledGraphRow, title
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
        return place_of(self.environment, self.op, self.digest)


class RunPage:
    """The page of this process."""

    def __init__(self, file: Path, trace: str = "") -> None:
        """Write to ``file``; draw the spans in the file ``trace`` if it is not empty."""
        self._file = file
        self._trace = trace
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._graphs: list[tuple[Path | None, CompiledGraphRow]] = []
        self._problems: dict[Path, dict[str, DecidedProblem]] = {}
        self._next_s = 0.0
        self._pending = False

    def add(
        self, kind: str, problems: Sequence[DecidedProblem], spent: Mapping[str, float]
    ) -> None:
        """Add a graph: ``inference``, ``forward`` or ``backward``; the page is written unless that was done a moment ago.

        All problems of a graph are of one cache, and those of two graphs may be of two.
        """
        with self._lock:
            graph = CompiledGraphRow(
                f"{len(self._graphs) + 1} {kind}",
                tuple(problem.place for problem in problems),
                sum(problem.hit for problem in problems),
                spent,
                time.time(),
            )
            self._graphs.append((problems[0].store.root if problems else None, graph))
            for problem in problems:
                self._problems.setdefault(problem.store.root, {})[problem.place] = problem
            self._pending = True
        if time.monotonic() >= self._next_s:
            self.write()

    def write_to(self, file: Path) -> None:
        """Write to another file from now on; the one before stays as it is."""
        with self._lock:
            self._file = file

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
        if not self._problems:
            return document(page_model([], None, time.time()), "nothing was tuned")
        sources = [self._source(root) for root in self._problems]
        model = page_model(sources, self._spans(), time.time(), peak_here, compares=False)
        return document(model, title(sources, " and "))

    def _source(self, root: Path) -> CacheSource:
        """Return what the process used of a cache. Graphs without a problem are of the first."""
        problems = list(self._problems[root].values())
        records = [record for each in problems if (record := _record(each))]
        first = next(iter(self._problems))
        graphs = [graph for where, graph in self._graphs if (where or first) == root]
        return cache_source(problems[-1].store, records, graphs)

    def _spans(self) -> Any:
        if not self._trace:
            return None
        with suppress(CacheError, OSError):
            return read_json(expanded(self._trace, "option trace_path", CacheError))
        return None


def _record(problem: DecidedProblem) -> Record | None:
    return problem.store.record(problem.environment, problem.op, problem.digest)


_PAGES: dict[str, RunPage] = {}
_GUARD = threading.Lock()


def run_page(file: str, trace: str = "", rank: int | None = None) -> RunPage:
    """Return this process's page that is written to a file, at the end of the process, too.

    Args:
        file: The file.
        trace: A file with spans to draw; empty for none.
        rank: The rank of this process in its job, None if it has none. It may be known only from some compile on.

    Raises:
        OptionError: It is below the folder of a user who is not known here.
    """
    path = of_rank(expanded(file, "option report", OptionError).absolute(), rank)
    with _GUARD:
        page = _PAGES.get(file)
        if page is None:
            page = _PAGES[file] = RunPage(path, trace)
            atexit.register(page.write)
        elif rank:
            page.write_to(path)
    return page


def of_rank(file: Path, rank: int | None) -> Path:
    """Return the file of a rank: ``out.rank3.html``; ``out.html`` itself for rank 0, and without a job.

    Each rank compiles graphs of its own, so none may write over the page of another.
    """
    return file.with_name(f"{file.stem}.rank{rank}{file.suffix}") if rank else file
