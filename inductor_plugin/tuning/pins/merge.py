"""Several pin files become one, and what they disagree about. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from inductor_plugin.tuning.pins.pin import Pin, PinFile


@dataclass(frozen=True)
class Disagreement:
    """One problem about which sources say different things.

    Attributes:
        pins: What each source says, by the source's name; None if it says nothing.
    """

    pins: Mapping[str, Pin | None]

    @property
    def is_conflict(self) -> bool:
        """Whether sources that decide the problem decide it differently."""
        return len({pin.winner for pin in self.pins.values() if pin is not None}) > 1

    @property
    def pin(self) -> Pin:
        """The pin that a merge keeps."""
        return functools.reduce(better, filter(None, self.pins.values()))


def merge(files: Sequence[PinFile]) -> PinFile:
    """Return one pin file with the problems of all; of two pins of a problem `better` is kept.

    The order of files does not matter, nor how often one is merged.
    """
    pins: dict[str, Pin] = {}
    environments: dict[str, str] = {}
    templates: dict[str, set[str]] = {}
    for file in files:
        for place, pin in file.pins.items():
            pins[place] = better(pins[place], pin) if place in pins else pin
        for digest, fields in file.environments.items():
            text = json.dumps(fields, sort_keys=True)
            environments[digest] = max(text, environments.get(digest, ""))
        for name, identities in file.templates.items():
            templates.setdefault(name, set()).update(identities)
    return PinFile(
        pins,
        {digest: json.loads(text) for digest, text in environments.items()},
        {name: tuple(sorted(identities)) for name, identities in templates.items()},
    )


def better(left: Pin, right: Pin) -> Pin:
    """Return the pin with more samples; of two with as many, one that the order does not choose."""
    return max(left, right, key=lambda pin: (pin.samples, json.dumps(asdict(pin), sort_keys=True)))


def compare(sources: Mapping[str, PinFile]) -> list[Disagreement]:
    """Return the problems that sources decide differently, or that some lack, by operator and problem.

    Args:
        sources: Pin files, or caches as such, by name.
    """
    places = {place: pin for file in sources.values() for place, pin in file.pins.items()}
    rows: list[Disagreement] = []
    for place in sorted(places, key=lambda place: (places[place].op, place)):
        pins = {name: file.pins.get(place) for name, file in sources.items()}
        if len({None if pin is None else pin.winner for pin in pins.values()}) > 1:
            rows.append(Disagreement(pins))
    return rows
