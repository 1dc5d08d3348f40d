"""Counters of this process: what `inductor_plugin.stats()` returns."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Stats:
    """Counters of the plugin in this process.

    Attributes:
        problems: Calls with more than one candidate that Inductor handed over.
        record_hits: Problems whose candidates all had a record.
        record_misses: Problems with at least one candidate to measure.
        candidates: Candidates of all problems.
        compiled: Kernels compiled for measuring.
        benchmarked: Candidates measured.
        failed: Candidates that did not compile, did not run, or had wrong results.
        quarantined: Candidates in quarantine, added now or before.
        fusions: Epilogues and prologues Inductor asked about.
        fusions_pruned: Fusions that static analysis refused for every candidate; nothing was compiled.
        ranks_tuned: Problems that this rank of a job has tuned for all of them.
        ranks_taken: Problems that another rank has decided.
        graphs_compared: Tuned graphs that were run in turns with the same graph of library kernels.
        graphs_reduced: Those of them that were slower, and gave up choices.
        graphs_left_out: Tuned graphs that were to be compared and were not; the log says why.
        tuned_graph_ms: Milliseconds per call of the compared graphs, as they run now.
        library_graph_ms: The same with library kernels.
        compile_s: Seconds spent compiling, summed over workers.
        benchmark_s: Seconds spent measuring.
        check_s: Seconds of them in which numbers were compared.
        wall_s: Seconds that compilation waited for tuning.
        compare_s: Seconds that compilation waited for the comparison of graphs, with compiles that were made only for it.
    """

    problems: int = 0
    record_hits: int = 0
    record_misses: int = 0
    candidates: int = 0
    compiled: int = 0
    benchmarked: int = 0
    failed: int = 0
    quarantined: int = 0
    fusions: int = 0
    fusions_pruned: int = 0
    ranks_tuned: int = 0
    ranks_taken: int = 0
    graphs_compared: int = 0
    graphs_reduced: int = 0
    graphs_left_out: int = 0
    tuned_graph_ms: float = 0.0
    library_graph_ms: float = 0.0
    compile_s: float = 0.0
    benchmark_s: float = 0.0
    check_s: float = 0.0
    wall_s: float = 0.0
    compare_s: float = 0.0

    @property
    def graph_speedup(self) -> float | None:
        """Time of the compared graphs with library kernels over their time as they run now; None if none was compared."""
        return self.library_graph_ms / self.tuned_graph_ms if self.tuned_graph_ms > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the counters as plain JSON values."""
        return asdict(self)

    def since(self, before: Stats) -> Stats:
        """Return the increase since an earlier snapshot."""
        return Stats(
            **{f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(Stats)}
        )


class Counters:
    """Mutable counters; safe to use from several threads."""

    def __init__(self) -> None:
        """Start from zero."""
        self._lock = threading.Lock()
        self._values: dict[str, float] = {f.name: 0 for f in fields(Stats)}

    def add(self, **amounts: float) -> None:
        """Add to counters by name.

        Raises:
            KeyError: There is no such counter.
        """
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount

    def snapshot(self) -> Stats:
        """Return the counters as they are now."""
        with self._lock:
            values = dict(self._values)
        return Stats(
            **{
                f.name: values[f.name] if f.name.endswith(("_s", "_ms")) else int(values[f.name])  # type: ignore[arg-type]
                for f in fields(Stats)
            }
        )


COUNTERS = Counters()
"""The counters of this process."""


def stats() -> Stats:
    """Return the plugin's counters of this process so far."""
    return COUNTERS.snapshot()
