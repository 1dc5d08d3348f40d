"""A graph that is recorded into a pin file, or decided by one: what is kept of it, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inductor_plugin.cache import Store
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.config import Config
from inductor_plugin.errors import PinError, warn_once
from inductor_plugin.inductor.candidates.offers import is_library
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.problem import Problem
from inductor_plugin.problem.description import described
from inductor_plugin.tuning.pins.pin import Pin
from inductor_plugin.tuning.pins.recording import active
from inductor_plugin.tuning.pins.replay import Pins, not_offered, read_pins
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)

_SHOWN = 10


def untimed(choices: Sequence[Any]) -> list[Any]:
    """Return the one of Inductor's choices that runs where none is measured: the library kernel, else the first."""
    return [choice for choice in choices if is_library(choice)][:1] or [*choices[:1]]


@dataclass
class Pinning:
    """The pins of a graph's compile, and the problems that they do not decide.

    Attributes:
        config: The options.
        pins: The pin file; None unless the policy is ``pinned``.
        unpinned: Problems that only the scheduler knows and that no pin decides, with the reason.
    """

    config: Config
    pins: Pins | None = None
    unpinned: dict[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def of(config: Config) -> Pinning:
        """Return the pins that the options name.

        Raises:
            OptionError: The pin file cannot be read.
        """
        return Pinning(config, read_pins(config.pin_file) if config.policy == "pinned" else None)

    def fusion(self, problem: Problem, selection: Selection) -> Pin | None:
        """Return the pin of a product with its epilogue; without one, record why, and return None."""
        assert self.pins is not None
        digest = problem_digest(problem)
        pin = self.pins.pin(selection.environment, problem.op, digest)
        if pin is None:
            here = selection.environment, selection.environment_fields
            why = self.pins.absence(*here, problem.op, digest)
            self.unpinned[described(problem.fields(), problem.describe())] = why
        return pin

    def only(self, problem: Problem, selection: Selection, candidate: str) -> None:
        """Record a problem with one candidate whose pin is another one, with one warning."""
        assert self.pins is not None
        pin = self.pins.pin(selection.environment, problem.op, problem_digest(problem))
        if pin is not None and pin.winner != candidate:
            why = not_offered(pin)
            self.unpinned[described(problem.fields(), problem.describe())] = why
            warn_once(logger, f"{problem.describe()}: {why}; {candidate}, the only candidate, runs")

    def keep_refused(
        self, problem: Problem, selection: Selection, winner: str, reason: str
    ) -> None:
        """Let recordings keep a decision for which nothing was measured."""
        for recording in active():
            recording.take_refused(
                problem, selection.environment, selection.environment_fields, winner, reason
            )

    def keep(self, tickets: Sequence[TuningTicket], trial: Trial | None) -> None:
        """Let recordings keep the decisions of a graph."""
        for recording in active():
            recording.take(tickets)
            if trial is not None and trial.store is not None:
                store: Store = trial.store
                pin = self._of_graph(trial)
                recording.take_graph(trial.environment, trial.digest, store, pin)

    def refuse(self, tickets: Sequence[TuningTicket]) -> None:
        """Raise an error if ``strict`` is on and a problem was decided without its pin.

        Raises:
            PinError: The problems, and why.
        """
        if not self.config.strict:
            return
        reasons = {
            described(t.problem.fields(), t.problem.describe()): t.unpinned
            for t in tickets
            if t.unpinned
        }
        lacking = [f"{text}: {why}" for text, why in {**reasons, **self.unpinned}.items()]
        if lacking:
            more = [f"{len(lacking) - _SHOWN} more"] if len(lacking) > _SHOWN else []
            raise PinError(
                f"option strict: {len(lacking)} problems of this graph are not decided by {self.config.pin_file}: "
                + "; ".join([*lacking[:_SHOWN], *more])
                + ". Record again (inductor_plugin.record), or set strict=off to run library kernels there; "
                f"`inductor-plugin check {self.config.pin_file}` compares environments and templates"
            )

    def _of_graph(self, trial: Trial) -> Pin | None:
        return None if self.pins is None else self.pins.pin(trial.environment, GRAPH, trial.digest)
