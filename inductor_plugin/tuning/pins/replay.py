"""What a pin file decides in a compile with ``policy=pinned``: the pinned candidate, or why not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inductor_plugin.cache import differences
from inductor_plugin.cache.layout import place_of
from inductor_plugin.cache.lookup.near import differences_text
from inductor_plugin.errors import warn_once
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.measurement import NOT_FAILED
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.pins.document import read_named
from inductor_plugin.tuning.pins.pin import Fields, Pin, PinFile, brief, environment_name
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import DISTURBED, NOT_CHECKED

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pins:
    """The pins of a file, by `Pin.place`.

    Attributes:
        path: The file they came from.
        pins: The decisions by ``environment/op/digest``.
        environments: Fields of their environments by digest, as far as the file has them.
        lost: Why a problem that the file has decided once has no pin, by `Pin.place`.
    """

    path: str
    pins: Mapping[str, Pin]
    environments: Mapping[str, Fields] = field(default_factory=dict[str, Fields])
    lost: Mapping[str, str] = field(default_factory=dict[str, str])

    def pin(self, environment: str, op: str, digest: str) -> Pin | None:
        """Return the pin of a problem, or None."""
        return self.pins.get(place_of(environment, op, digest))

    def winner(self, environment: str, op: str, digest: str) -> str | None:
        """Return the pinned winner of a problem, or None."""
        pin = self.pin(environment, op, digest)
        return None if pin is None else pin.winner

    def has(self, op: str) -> bool:
        """Return True if any pin is of an operator."""
        return any(pin.op == op for pin in self.pins.values())

    def absence(self, environment: str, fields: Mapping[str, Any], op: str, digest: str) -> str:
        """Return why a problem of an environment has no pin, in a few words.

        Args:
            environment: Digest of the environment.
            fields: Its fields.
            op: Operator of the problem.
            digest: Digest of the problem.
        """
        lost = self.lost.get(place_of(environment, op, digest))
        if lost:
            return lost
        digests = {pin.environment for pin in self.pins.values()}
        if environment in digests:
            return "it is not in the pin file"
        if not digests:
            return "the pin file has no pins"
        known = [digest for digest in sorted(digests) if digest in self.environments]
        here = brief(fields)
        changes = {digest: tuple(differences(self.environments[digest], here)) for digest in known}
        nearest = min(known, key=lambda digest: len(changes[digest]), default=None)
        if nearest is None:
            return "the pin file is of another environment"
        name = environment_name(nearest, self.environments[nearest])
        return (
            f"the pin file is of another environment ({name}); from there to here "
            f"{differences_text(changes[nearest])}"
        )


def read_pins(path: str) -> Pins:
    """Return the pins of the file that the option ``pin_file`` names.

    Raises:
        OptionError: There is no such file, or it is not a pin file.
    """
    content = read_named(path)
    return Pins(path, content.pins, content.environments, lost(content))


def lost(file: PinFile) -> dict[str, str]:
    """Return why problems of a pin file have no pin though the file has decided them, by `Pin.place`."""
    undecided = {place: pins for place, pins in file.spare.items() if place not in file.pins}
    failed = {
        place: [
            f"{pin.winner} ({file.failed[pin.tried]})" for pin in pins if pin.tried in file.failed
        ]
        for place, pins in undecided.items()
    }
    return {
        place: f"what the pin file had for it was seen to fail: {', '.join(names)}"
        for place, names in failed.items()
        if names
    }


def not_offered(pin: Pin) -> str:
    """Return the sentence about a pinned candidate that is not among those that are offered."""
    why = "it is not offered any more"
    if pin.template and pin.template not in default_registry().names():
        why = f"template {pin.template!r} is not registered"
    elif pin.template:
        why = f"template {pin.template!r} does not offer it any more"
    return f"pinned {pin.winner} is not used: {why}"


def pinned(ticket: TuningTicket, absence: str) -> Verdict:
    """Return the decision by a pin file: the pinned candidate, else a library kernel, whatever was measured.

    Where there is no library kernel, the first candidate that has not failed runs.

    Args:
        ticket: The problem.
        absence: Why the file does not name it, used if it does not.
    """
    library = next((o.candidate_id for o in ticket.offers if o.library), None)
    problem, pin = ticket.problem.describe(), ticket.pin
    if pin is None:
        ticket.unpinned = absence
    elif pin.winner in {o.candidate_id for o in ticket.offers}:
        reason = _why_not_pinned(ticket, pin.winner) if library is not None else None
        if reason is None or pin.winner == library:
            return Verdict(pin.winner, library, "pinned")
        ticket.unpinned = f"pinned {pin.winner} is not used: {reason}"
    else:
        ticket.unpinned = not_offered(pin)
    runs = library or next((o.candidate_id for o in ticket.offers if not _failed(ticket, o)), None)
    what = "the library kernel" if library is not None else f"{runs}, offered first,"
    # One warning where no pin of the file is for this machine, instead of one for each problem.
    topic = absence if pin is None and "environment" in absence else ""
    warn_once(logger, f"{problem} has no pinned decision: {ticket.unpinned}; {what} runs", topic)
    return Verdict(runs, library, f"{what} runs: {ticket.unpinned}")


def _failed(ticket: TuningTicket, offer: CandidateOffer) -> bool:
    measured = ticket.measured.get(offer.candidate_id)
    return measured is not None and measured.status not in NOT_FAILED


def _why_not_pinned(ticket: TuningTicket, candidate_id: str) -> str | None:
    """Return why a pinned candidate must not run, None if it may."""
    row = ticket.measured.get(candidate_id)
    if row is not None and row.status not in NOT_FAILED:
        return f"{row.status} ({row.reason})"
    void = ticket.void.get(candidate_id)
    if void == DISTURBED:  # its numbers are right
        return None
    return "its numbers were not checked here" if void == NOT_CHECKED else void
