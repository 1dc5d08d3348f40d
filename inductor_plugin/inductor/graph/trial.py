"""The compile of a graph that this thread is in: the user's, or one more, to be compared with it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inductor_plugin.cache import Record, Store
from inductor_plugin.cache.graph import LIBRARY, HeldProblems, held_by, held_in
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.pins.replay import Pins
from inductor_plugin.tuning.ranks.agreed import of_verdict
from inductor_plugin.tuning.ranks.share import RankShare
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.tuning.ticket import TuningTicket

_THREAD = threading.local()


@dataclass
class Trial:
    """One compile of a graph.

    Attributes:
        digest: Digest of the graph.
        held: Problems whose library kernel runs, whatever was chosen; None for those of the graph's record.
        is_extra: True for a compile that is only compared: it is decided by what is known, decides nothing for a job, reports and counts nothing.
        tickets: The graph's problems, once they are decided.
        store: The cache of the graph's first problem.
        environment: Digest of the environment of that.
        contexts: What the graph's problems were tuned on, by device.
        share: This rank's part in its job, if it has one.
    """

    digest: str
    held: HeldProblems | None = None
    is_extra: bool = False
    tickets: tuple[TuningTicket, ...] = ()
    store: Store | None = None
    environment: str = ""
    contexts: dict[str, DeviceContext] = field(default_factory=dict[str, "DeviceContext"])
    share: RankShare | None = None
    _known: HeldProblems = field(default_factory=HeldProblems)

    @property
    def is_reduced(self) -> bool:
        """Whether the graph's record, or its pin, has held any problem: what was compiled is not the tuned graph."""
        return self.held is None and self._known != HeldProblems()

    @property
    def context(self) -> DeviceContext:
        """What the graph runs on: a GPU rather than the host beside it."""
        return self.contexts[max(self.contexts, key=lambda device: (device != "cpu", device))]

    @property
    def place(self) -> DeviceContext | None:
        """What the graph's first problem was tuned on, whose ranks decide what the graph gives up; None if it has no problem."""
        contexts = self.contexts.values()
        return next((each for each in contexts if each.environment == self.environment), None)

    @property
    def name(self) -> str:
        """The graph as a problem that ranks decide."""
        return f"{GRAPH}/{self.digest}"

    @property
    def record(self) -> Record | None:
        """The graph's record; None if it has none, or no problem of the graph has been looked up."""
        if self.store is None:
            return None
        return self.store.record(self.environment, GRAPH, self.digest)

    @property
    def in_effect(self) -> HeldProblems:
        """The problems whose library kernel runs in what was compiled."""
        return self._known if self.held is None else self.held

    def agreed(self, own: HeldProblems) -> HeldProblems:
        """Return what the ranks of the job give up in the graph: ``own``, unless they have decided before, or there is no job."""
        if self.share is None:
            return own
        verdict = Verdict(own.candidate, LIBRARY, "the graph was compared with library kernels")
        decision = of_verdict(verdict, None, self.share.rank)
        return held_by(self.share.decide(self.name, decision).winner)

    def holds(
        self,
        problem_digest: str,
        store: Store,
        environment: str,
        pins: Pins | None,
        share: RankShare | None = None,
    ) -> bool:
        """Return True if a problem's library kernel runs in this compile.

        Args:
            problem_digest: The problem's digest.
            store: The cache in use.
            environment: Digest of the environment in it.
            pins: Pinned decisions, which replace the record's, with ``policy=pinned``.
            share: This rank's part in its job, whose decision replaces the record's, too.
        """
        if self.store is None:
            self.store, self.environment, self.share = store, environment, share
            known = None if share is None else share.look_up(self.name)
            if known is not None:
                self._known = held_by(known.winner)
            elif pins is not None:
                self._known = held_by(pins.winner(environment, GRAPH, self.digest))
            else:
                self._known = held_in(self.record)
        return problem_digest in self.in_effect


def current() -> Trial | None:
    """Return the trial that this thread compiles; None outside of one."""
    return getattr(_THREAD, "trial", None)


@contextmanager
def compiling(trial: Trial) -> Generator[Trial]:
    """Compile a graph of this thread as this trial inside the block."""
    before = current()
    _THREAD.trial = trial
    try:
        yield trial
    finally:
        _THREAD.trial = before
