"""Is a tuned graph slower than with library kernels, and which choices cost it? Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from inductor_plugin.worker.graph_job import FEWEST_TURNS

MOST_RUNS = 4
"""Compiles in which the choices that cost time are searched; what is still suspected then is held."""


@dataclass(frozen=True)
class Comparison:
    """Two compiled graphs, run in turns.

    Attributes:
        tuned_ms: Milliseconds per call of the tuned graph, one entry a turn.
        library_ms: The same of the graph with library kernels.
        disturbed: True if other work on the machine has prolonged a call of all turns but too few.
        plain_ms: As ``tuned_ms``, of the graph without any autotuning; empty if it was not run.
        run_s: Seconds that all this took, without loading the graphs.
    """

    tuned_ms: tuple[float, ...]
    library_ms: tuple[float, ...]
    disturbed: bool = False
    plain_ms: tuple[float, ...] = ()
    run_s: float = 0.0

    @property
    def speedup(self) -> float:
        """Time with library kernels over time of the tuned graph: the median of turns."""
        return median(self._ratios)

    @property
    def speedup_over_plain(self) -> float | None:
        """Time without autotuning over time of the tuned graph; None if the former was not run."""
        if not self.plain_ms:
            return None
        return median(
            plain / max(tuned, 1e-9)
            for plain, tuned in zip(self.plain_ms, self.tuned_ms, strict=True)
        )

    @property
    def is_firm(self) -> bool:
        """Whether it is known which graph is slower: enough turns were calm."""
        return not self.disturbed and len(self._ratios) >= FEWEST_TURNS

    @property
    def is_as_fast(self) -> bool:
        """Whether the tuned graph was as fast: that it is not proven slower, in a few turns, is no evidence."""
        return self.is_firm and self.speedup >= 1.0

    def is_slower(self, margin: float) -> bool:
        """Return True if the tuned graph is slower by more than a margin, and not by chance in a few turns.

        Args:
            margin: Factor by which a choice had to be faster than its library kernel.
        """
        if not self.is_firm:
            return False
        _, middle, high = quantiles(self._ratios, n=4, method="inclusive")
        return middle < 1 / margin and high < 1

    @property
    def _ratios(self) -> list[float]:
        pairs = zip(self.tuned_ms, self.library_ms, strict=True)
        return [library / tuned for tuned, library in pairs if tuned > 0]


def search(
    suspects: Sequence[str], is_fast: Callable[[frozenset[str]], bool], runs: int = MOST_RUNS
) -> frozenset[str]:
    """Return which choices to give up, by halves, so that the graph is no slower than with library kernels.

    Args:
        suspects: The choices other than library kernels, the most suspicious first. Without all of them the graph is
            that with library kernels.
        is_fast: Compiles and runs the graph without these choices; True if it was as fast.
        runs: Calls of ``is_fast`` at most.
    """
    given_up: frozenset[str] = frozenset()
    rest: list[str] = list(suspects)
    while len(rest) > 1 and runs > 0:
        half = (len(rest) + 1) // 2
        halves: tuple[list[str], list[str]] = rest[:half], rest[half:]
        for part in halves:
            runs -= 1
            if runs >= 0 and is_fast(given_up | set(part)):
                rest = part  # the other half is not to blame
                break
        else:
            given_up, rest = given_up | set(halves[0]), halves[1]
    return given_up | set(rest)
