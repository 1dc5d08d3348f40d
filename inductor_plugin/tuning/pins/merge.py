"""Several pin files become one, and what they disagree about. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from inductor_plugin.tuning.pins.pin import Pin, PinFile, Tried


@dataclass(frozen=True)
class Disagreement:
    """One problem about which sources say different things.

    Attributes:
        pins: What each source says, by the source's name; None if it says nothing.
        failed: By winner, spare ones among them, which sources have seen it fail, and how.
        pin: The pin that a merge keeps; None if each winner was seen to fail. It may be a source's spare one.
        spare: What each source has decided otherwise before, and does not use (`PinFile.spare`).
    """

    pins: Mapping[str, Pin | None]
    failed: Mapping[str, Mapping[str, str]]
    pin: Pin | None
    spare: Mapping[str, Sequence[Pin]]

    @property
    def decided(self) -> Sequence[Pin]:
        """What the sources say that decide the problem: at least one does."""
        return [pin for pin in self.pins.values() if pin is not None]

    @property
    def is_conflict(self) -> bool:
        """Whether sources decide the problem differently, or one has seen a winner fail."""
        winners = {pin.winner for pin in self.decided}
        return len(winners) > 1 or not winners.isdisjoint(self.failed)


def merge(files: Sequence[PinFile]) -> PinFile:
    """Return one pin file with the problems of all; of two pins of a problem `better` is kept.

    A pin whose winner one of the sources has seen fail is no decision, whatever its samples. The order of files does not
    matter, nor how often one is merged.
    """
    pins = by_winner(
        pin for file in files for pin in chain(file.pins.values(), *file.spare.values())
    )
    environments: dict[str, str] = {}
    failed: dict[Tried, str] = {}
    for file in files:
        for digest, fields in file.environments.items():
            text = json.dumps(fields, sort_keys=True)
            environments[digest] = max(text, environments.get(digest, ""))
        for tried, status in file.failed.items():
            failed[tried] = max(status, failed.get(tried, ""))
    kept = {place: best_of(winners.values(), failed) for place, winners in pins.items()}
    return PinFile(
        {place: pin for place, pin in kept.items() if pin is not None},
        {digest: json.loads(text) for digest, text in environments.items()},
        failed,
        {place: spare for place in pins if (spare := all_but(kept[place], pins[place]))},
    )


def best_of(pins: Iterable[Pin], failed: Collection[Tried] = ()) -> Pin | None:
    """Return the best pin of a problem; None if each winner was seen to fail."""
    sound = [pin for pin in pins if pin.tried not in failed]
    return functools.reduce(better, sound) if sound else None


def all_but(kept: Pin | None, winners: Mapping[str, Pin]) -> tuple[Pin, ...]:
    """Return the pins of a problem that are not used, as in `PinFile.spare`."""
    return tuple(winners[name] for name in sorted(winners) if winners[name] is not kept)


def by_winner(pins: Iterable[Pin]) -> dict[str, dict[str, Pin]]:
    """Return the better pin of each winner of each problem, by `Pin.place` and winner."""
    places: dict[str, dict[str, Pin]] = {}
    for pin in pins:
        winners = places.setdefault(pin.place, {})
        before = winners.get(pin.winner)
        winners[pin.winner] = pin if before is None else better(before, pin)
    return places


def better(left: Pin, right: Pin) -> Pin:
    """Return the pin with more samples; of two with as many, one that the order does not choose.

    Two that differ in nothing but `Pin.identities` are one pin with those of both.
    """
    if left.samples != right.samples:
        return max(left, right, key=lambda pin: pin.samples)
    first, second = _text(left), _text(right)
    if first == second and left.identities != right.identities:
        return replace(left, identities=(*left.identities, *right.identities))
    return left if first >= second else right


def _text(pin: Pin) -> str:
    return json.dumps({**vars(pin), "identities": ()}, sort_keys=True)


def compare(sources: Mapping[str, PinFile]) -> list[Disagreement]:
    """Return the problems that sources decide differently, or that some lack or have seen fail, by operator and problem.

    Args:
        sources: Pin files, or caches as such, by name.
    """
    places = {place: pin for file in sources.values() for place, pin in file.pins.items()}
    failing = {run for file in sources.values() for run in file.failed}
    rows: list[Disagreement] = []
    for place in sorted(places, key=lambda place: (places[place].op, place)):
        pins = {name: file.pins.get(place) for name, file in sources.items()}
        spare = {name: file.spare.get(place, ()) for name, file in sources.items()}
        said = [pin for pin in (*pins.values(), *chain(*spare.values())) if pin is not None]
        failed = _failures(said, sources)
        row = Disagreement(pins, failed, best_of(said, failing), spare)
        if row.is_conflict or None in pins.values():
            rows.append(row)
    return rows


def _failures(pins: Iterable[Pin], sources: Mapping[str, PinFile]) -> dict[str, dict[str, str]]:
    """Return `Disagreement.failed` of the pins of one problem."""
    runs = {pin.winner: pin.tried for pin in pins}
    seen = {
        winner: {name: file.failed[run] for name, file in sources.items() if run in file.failed}
        for winner, run in runs.items()
    }
    return {winner: by_source for winner, by_source in seen.items() if by_source}
