"""What is measured: each network, trained or not, on one and two threads, tuned on a quiet machine and beside other work. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MODES = ("inference", "training")
THREADS = (2, 1)
TUNED_BESIDE = ("quiet", "2 busy")
ARMS = ("plain", "stock", "ours")
GUARDED = "guarded"
"""The plugin that compares each graph whatever that takes. A first compile earns too little time for it: what comparing costs, and
what it is worth, would else be said of graphs that were never compared."""


@dataclass(frozen=True)
class Run:
    """One network in one configuration.

    Attributes:
        network: Its name.
        mode: One of `MODES`.
        threads: Threads of each process.
        load: The load beside which it is compiled and tuned; it is sampled without.
    """

    network: str
    mode: str = MODES[0]
    threads: int = THREADS[0]
    load: str = TUNED_BESIDE[0]

    @property
    def configuration(self) -> str:
        """What it has in common with the runs of other networks."""
        many = "s" if self.threads > 1 else ""
        return f"{self.mode}, {self.threads} thread{many}, {self.load}"

    @property
    def name(self) -> str:
        """The name of its row."""
        return f"{self.configuration}, {self.network}"

    @property
    def arms(self) -> tuple[str, ...]:
        """What runs it: the guarded arm in one configuration, since it takes as long as all the others of a run."""
        usual = (MODES[0], THREADS[0], TUNED_BESIDE[0])
        return (*ARMS, GUARDED) if (self.mode, self.threads, self.load) == usual else ARMS

    @property
    def parts(self) -> frozenset[str]:
        """The words of its name, of which `chosen` takes any."""
        return frozenset(self.name.split(", "))


def planned(networks: Sequence[str]) -> list[Run]:
    """Return all runs, one configuration after the other."""
    return [
        Run(network, mode, threads, load)
        for threads in THREADS
        for mode in MODES
        for load in TUNED_BESIDE
        for network in networks
    ]


def chosen(runs: Sequence[Run], only: Iterable[str]) -> list[Run]:
    """Return the runs that have all parts of at least one text; all runs of no text.

    Args:
        runs: The runs.
        only: Parts of names, with commas between them: ``"training, 1 thread"``, ``"bert"``.

    Raises:
        ValueError: No run has one of them.
    """
    wanted = [frozenset(part.strip() for part in text.split(",")) for text in only]
    for parts in wanted:
        if not any(parts <= run.parts for run in runs):
            raise ValueError(f"no run has {', '.join(sorted(parts))} in its name")
    return [run for run in runs if not wanted or any(parts <= run.parts for parts in wanted)]
