"""Collects the decisions of the graphs that are compiled while it is active, from whichever thread compiles them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from inductor_plugin.cache import Store
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.errors import warn_once
from inductor_plugin.problem import Problem
from inductor_plugin.problem.description import described
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.pins.pin import Fields, Pin, PinFile, pin_file, pin_of, pin_of_record
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.tuning.ticket import TuningTicket, record_of

logger = logging.getLogger(__name__)

_ACTIVE: list[Recording] = []


class Recording:
    """The decisions of some compiles.

    Attributes:
        graphs: Number of graphs that were lowered meanwhile, those without a decision included.
    """

    def __init__(self) -> None:
        """Begin with no decision."""
        self.graphs = 0
        self._guard = threading.Lock()
        self._pins: dict[str, Pin] = {}
        self._environments: dict[str, Fields | None] = {}
        self._compared: dict[str, tuple[Store, Pin | None]] = {}

    def count(self) -> None:
        """Count a graph."""
        with self._guard:
            self.graphs += 1

    def take(self, tickets: Iterable[TuningTicket]) -> None:
        """Keep the decisions of a graph; of two about one problem the later."""
        for ticket in tickets:
            pin = _pin(ticket)
            if pin is not None:
                self._keep(pin, ticket.selection.environment_fields)

    def take_refused(
        self, problem: Problem, environment: str, fields: Fields, winner: str, reason: str
    ) -> None:
        """Keep a decision for which nothing was measured.

        Args:
            problem: The problem.
            environment: Digest of its environment.
            fields: The fields of that.
            winner: What runs.
            reason: Why.
        """
        describe = described(problem.fields(), problem.describe())
        digest = problem_digest(problem)
        pin = Pin(environment, problem.op, digest, describe, winner, reason=reason)
        self._keep(pin, fields)

    def take_graph(self, environment: str, digest: str, store: Store, pin: Pin | None) -> None:
        """Keep what is decided about a whole graph, which its record says when the recording ends.

        Args:
            environment: Digest of the environment.
            digest: Digest of the graph.
            store: The cache with the record.
            pin: The decision that was replayed; None if there is none.
        """
        with self._guard:
            self._compared[f"{environment}/{digest}"] = store, pin

    def file(self) -> PinFile:
        """Return the decisions so far."""
        with self._guard:
            pins = [*self._pins.values()]
            compared = {**self._compared}
        for place, (store, replayed) in compared.items():
            environment, _, digest = place.partition("/")
            record = store.record(environment, GRAPH, digest)
            pin = replayed or (pin_of_record(record) if record is not None else None)
            pins += [] if pin is None else [pin]
        return pin_file(pins, self._environments, default_registry().identity())

    def _keep(self, pin: Pin, fields: Fields | None) -> None:
        with self._guard:
            before = self._pins.get(pin.place)
            self._pins[pin.place] = pin
            self._environments[pin.environment] = fields
        if before is not None and before.winner != pin.winner:
            warn_once(
                logger,
                f"{pin.describe} was decided twice, for {before.winner} and for {pin.winner}; the later decision is recorded",
            )


@contextmanager
def recording(kept: Recording) -> Generator[Recording]:
    """Let a recording take all decisions inside the block."""
    _ACTIVE.append(kept)
    try:
        yield kept
    finally:
        _ACTIVE.remove(kept)


def active() -> Sequence[Recording]:
    """Return the recordings that take decisions now."""
    return tuple(_ACTIVE)


def _pin(ticket: TuningTicket) -> Pin | None:
    """Return the decision of a ticket; None if Inductor has not asked for one."""
    verdict = ticket.verdict
    if verdict is None or verdict.winner is None:
        return None
    if ticket.pin is not None and not ticket.unpinned:
        return ticket.pin
    # What a graph gives up is the graph's decision: in another graph the problem has its winner.
    winner, reason = verdict.winner, verdict.reason
    if verdict.given_up is not None:
        winner, reason = verdict.given_up, "the fastest alone; the pin of its graph gives it up"
    selection = ticket.selection
    record = record_of(ticket, None, ticket.measured, selection.environment, 1.0)
    offer = next((o for o in ticket.offers if o.candidate_id == winner), None)
    template = offer.identity.template if offer is not None else ""
    return pin_of(record, winner, verdict.library, reason, template)
