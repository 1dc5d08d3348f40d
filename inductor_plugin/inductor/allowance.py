"""How many seconds comparing graphs may take: a share of compiles, saved up in the cache for later ones. Pure but for the sums."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import Store
from inductor_plugin.cache.folder import ALLOWANCE_PREFIX

START_S = 4.0
"""Seconds in which a worker imports Inductor (3.4 s on a quiet machine) and loads a graph, beside a compile of the graph."""
LEAST_RUN_S = 0.5
"""Seconds in which two graphs are run in turns, at least."""
MOST_S = 300.0
"""Seconds that are left to later compiles at most: as long as comparing a graph takes that Inductor compiles in a minute, and the
search in it; a process that pays for more at once would seem to hang."""

_DIGITS = 12
_GUARD = threading.Lock()
_UNWRITTEN: dict[tuple[Path, str], int] = {}
"""Milliseconds that could not be written into a cache: they count for this process."""


@dataclass(frozen=True)
class Cost:
    """What a comparison is expected to take.

    Attributes:
        compile_s: Seconds to compile the graph again, with library kernels: those of the tuned graph without tuning.
            Kernels that both have are compiled already.
        start_s: Seconds in which the worker gets ready meanwhile; 0 if it has run graphs before.
        run_s: Seconds in which both run.
        runs: Further compiles and runs, in which the choices that cost time are searched.
    """

    compile_s: float
    start_s: float = START_S
    run_s: float = LEAST_RUN_S
    runs: int = 0

    @property
    def again_s(self) -> float:
        """Seconds of each further compile and run."""
        return self.compile_s + self.run_s

    @property
    def total_s(self) -> float:
        """All seconds."""
        return max(self.compile_s, self.start_s) + self.run_s + self.runs * self.again_s

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

    def runs_in(self, left_s: float, most: int) -> int:
        """Return for how many further compiles and runs there is time, ``most`` at most, and for one more run of what they find."""
        return max(0, min(most, int((left_s - self.run_s) / max(self.again_s, 1e-3))))


def balance_s(saved_s: float, earned_s: float) -> float:
    """Return the seconds that are left once a compile has earned more: of those from before it `MOST_S` at most.

    Args:
        saved_s: Seconds that compiles before have left; below 0 if a comparison took longer than expected.
        earned_s: Seconds that this compile earns.
    """
    return min(saved_s, MOST_S) + earned_s


def account_of(environment: str) -> str:
    """Return the name of an environment's seconds among the sums of a cache."""
    return f"{ALLOWANCE_PREFIX}{environment[:_DIGITS]}"


class Allowance:
    """What compiles of one environment have earned and comparisons have spent, in all processes that share a cache."""

    def __init__(self, store: Store, account: str) -> None:
        """Use the sums of ``store`` under the name ``account``."""
        self._store = store
        self._account = account

    @property
    def left_s(self) -> float:
        """The seconds that comparisons may still take; below 0 if some took longer than expected."""
        with _GUARD:
            own_ms = _UNWRITTEN.get(self._place, 0)
        return (self._store.counters().get(self._account, 0) + own_ms) / 1e3

    def earn(self, seconds: float) -> None:
        """Add the share of a compile, tuning included."""
        left_s = self.left_s
        self._add(balance_s(left_s, seconds) - left_s)

    def spend(self, seconds: float) -> None:
        """Subtract the seconds of a comparison."""
        self._add(-seconds)

    @property
    def _place(self) -> tuple[Path, str]:
        return self._store.root, self._account

    def _add(self, seconds: float) -> None:
        added_ms = round(1e3 * seconds)
        if self._store.degraded is None:
            self._store.add_counts(**{self._account: added_ms})
            return
        with _GUARD:
            _UNWRITTEN[self._place] = _UNWRITTEN.get(self._place, 0) + added_ms
