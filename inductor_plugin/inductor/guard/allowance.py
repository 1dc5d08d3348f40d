"""How many seconds comparing graphs may take: a share of the compiles of this process. Pure but for the sums."""

from __future__ import annotations

import threading
from dataclasses import dataclass

START_S = 4.0
"""Seconds in which a worker imports Inductor (3.4 s on a quiet machine) and loads a graph, beside a compile of the graph."""
LEAST_RUN_S = 0.5
"""Seconds in which two graphs are run in turns, at least."""


@dataclass(frozen=True)
class Cost:
    """What a comparison is expected to take.

    Attributes:
        compile_s: Seconds to compile the graph again, with library kernels: those of the tuned graph without tuning.
            Kernels that both have are compiled already.
        start_s: Seconds in which the worker gets ready meanwhile.
        run_s: Seconds in which both run.
    """

    compile_s: float
    start_s: float = START_S
    run_s: float = LEAST_RUN_S

    @property
    def total_s(self) -> float:
        """All seconds."""
        return max(self.compile_s, self.start_s) + self.run_s

    def why_left_out(self, left_s: float, share: float) -> str:
        """Return why there is no time for it, empty if there is.

        Args:
            left_s: Seconds that are left.
            share: The share of compile time that comparisons may take.
        """
        if self.total_s <= left_s:
            return ""
        return (
            f"it would take about {self.total_s:.1f} s, and {left_s:.1f} s are left of the {share:.0%} of compile time "
            "that option verify_graph_share allows"
        )


class Allowance:
    """What compiles have earned and comparisons have spent; safe to use from several threads."""

    def __init__(self) -> None:
        """Start from zero."""
        self._lock = threading.Lock()
        self._compiled_s = self._spent_s = 0.0

    def earn(self, compiled_s: float) -> None:
        """Count the seconds of a compile, tuning included."""
        with self._lock:
            self._compiled_s += compiled_s

    def spend(self, compared_s: float) -> None:
        """Count the seconds of a comparison."""
        with self._lock:
            self._spent_s += compared_s

    def left_s(self, share: float) -> float:
        """Return the seconds that comparisons may still take."""
        with self._lock:
            return share * self._compiled_s - self._spent_s


ALLOWANCE = Allowance()
"""That of this process."""
