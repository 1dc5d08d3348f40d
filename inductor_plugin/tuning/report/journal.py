"""Writes what happens to candidates to the counters of their problem and of the process, the trace and the log.

The summary line, the table, ``stats()`` and the trace say the same because all are written here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.jobs import Compiled, Outcome

if TYPE_CHECKING:
    from inductor_plugin.tuning.builds.item import BuildItem

logger = logging.getLogger(__name__)


class Journal:
    """The counters, the trace and the log of one device."""

    def __init__(self, counters: Counters, trace: SpanTrace) -> None:
        """Count in ``counters`` for the process, and draw in ``trace``."""
        self._counters = counters
        self._trace = trace

    def count(self, task: Task, **amounts: float) -> None:
        """Add to counters by name, for a problem and for the process."""
        self._counters.add(**amounts)
        task.spent.add(**amounts)

    @contextmanager
    def measuring(
        self, task: Task, device: str, names: Sequence[str], step: str
    ) -> Generator[None]:
        """Log what is measured before it runs, since it may end the worker, and draw how long it took."""
        problem = task.problem.describe()
        logger.info("measuring %s for %s (%s)", ", ".join(names), problem, step)
        title = names[0] if step == "screen" else f"{step} of {len(names)}"
        with self._trace.span(
            f"measure {device}", title, problem=problem, step=step, candidates=list(names)
        ):
            yield

    def measured(self, task: Task, name: str, outcome: Outcome) -> None:
        """Count a screened candidate, and log why it is out, or what of it was not compared."""
        self.count(task, benchmarked=1, benchmark_s=outcome.elapsed_s, check_s=outcome.check_s)
        if outcome.status != "ok" or outcome.reason:
            problem = task.problem.describe()
            logger.info("%s for %s: %s: %s", name, problem, outcome.status, outcome.reason)

    def compiling(self, items: Sequence[BuildItem]) -> None:
        """Log what is compiled together."""
        logger.info("compiling %s", ", ".join(_text(item) for item in items))

    def compiled(self, items: Sequence[BuildItem], results: Sequence[Compiled]) -> float:
        """Count and draw a job that has ended; return the seconds that its compiler took.

        Only the compiler's time counts, not the time in the queue.
        """
        spent_s = sum(result.elapsed_s for result in results)
        ended = time.perf_counter_ns()
        self._trace.add_parallel(
            "compile",
            " + ".join(item.candidate.name for item in items),
            ended - int(spent_s * 1e9),
            ended,
            problem="; ".join(dict.fromkeys(item.task.problem.describe() for item in items)),
            status=[result.status for result in results],
        )
        for item in items:
            self.count(item.task, compile_s=spent_s / len(items))
        return spent_s


def _text(item: BuildItem) -> str:
    return f"{item.candidate.name} for {item.task.problem.describe()}"
