"""What the record of a whole graph says of the graph's problems. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from inductor_plugin.cache.document import is_object
from inductor_plugin.cache.record import Record

TUNED = "tuned"
"""The candidate that is the graph as it was tuned."""
CHOICES = "choices"
"""Field of its provenance with the winner of each problem, by the problem's digest; library kernels are not in it."""


def choices_in(record: Record) -> Mapping[str, str]:
    """Return the winner of each problem, by the problem's digest, that the record's graph was compared with."""
    tuned = record.candidates.get(TUNED)
    choices: object = tuned.provenance.get(CHOICES) if tuned is not None else None
    return choices if is_object(choices) else {}
