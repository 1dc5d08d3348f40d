"""Pins as values: the decision about one problem, and the content of a pin file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast

from inductor_plugin.cache import Decision, Measured, Record
from inductor_plugin.cache.graph import held_in
from inductor_plugin.cache.layout import place_of
from inductor_plugin.cache.merge import weight
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.cache.record import GRAPH, TEMPLATE_FIELD
from inductor_plugin.problem.description import described

_DIGITS = 4
"""Significant digits of a time: more differ from one measurement to the next."""
_LONG = 96
"""Characters of a text of an environment that are written as they are."""
_KEY = 12
"""Digits of a digest that are shown."""

Fields = Mapping[str, Any]
Tried = tuple[str, str]


@dataclass(frozen=True)
class Pin:
    """The decision about one problem in one environment.

    Attributes:
        environment: Digest of the environment.
        op: Operator.
        digest: Digest of the problem.
        describe: The problem in one line.
        winner: The candidate that runs.
        template: The registered template that offers it; empty for a library kernel and for Inductor's own.
        winner_ms: Milliseconds it took; None if it was not measured.
        samples: Number of samples of the winner and of the library kernel together.
        library: The library kernel it was compared with; None if there is none.
        library_ms: Milliseconds that took; None if it was not measured.
        reason: Why it won, in one sentence.
        fields: The problem's fields, by which `check` asks the template whether it still offers the winner; empty for
            other winners, and for problems with unknown sizes or an epilogue.
        identities: Class and version of the template it was tuned with, sorted; several where a file does not tell which
            of them it was, none where that is not known.
    """

    environment: str
    op: str
    digest: str
    describe: str
    winner: str
    template: str = ""
    winner_ms: float | None = None
    samples: int = 0
    library: str | None = None
    library_ms: float | None = None
    reason: str = ""
    fields: Fields = field(default_factory=dict[str, Any], hash=False)
    identities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Bring the fields into the form in which a file gives them back.

        Raises:
            ValueError: A time is no finite number, or a negative one.
        """
        for name in ("winner_ms", "library_ms"):
            time_ms: float | None = getattr(self, name)
            if time_ms is not None and not 0.0 <= time_ms < math.inf:
                raise ValueError(f"{name} of a pin is {time_ms}, which is no time")
            object.__setattr__(self, name, None if time_ms is None else float(time_ms))
        identities = tuple(sorted({*self.identities})) if self.template else ()
        object.__setattr__(self, "describe", self.describe or self.digest)
        object.__setattr__(self, "library", self.library or None)
        object.__setattr__(self, "fields", _plain(self.fields))
        object.__setattr__(self, "identities", identities)

    @property
    def place(self) -> str:
        """What is decided: ``environment/op/digest``, as of a record."""
        return place_of(self.environment, self.op, self.digest)

    @property
    def tried(self) -> Tried:
        """The winner on its problem."""
        return tried(self.environment, self.winner, self.digest)


@dataclass(frozen=True)
class PinFile:
    """The content of a pin file, or the decisions of a cache.

    Attributes:
        pins: The decisions by `Pin.place`.
        environments: Fields of the environments by digest; those that are not known are missing.
        failed: The failure of each candidate that was seen to fail on a problem, of problems without a pin, too: what is
            merged later may have one.
        spare: What some of several that were merged decide, and is not in ``pins``: of each other winner the best pin, by
            place. A further one may have seen the kept winner fail.
    """

    pins: Mapping[str, Pin]
    environments: Mapping[str, Fields] = field(default_factory=dict[str, Fields])
    failed: Mapping[Tried, str] = field(default_factory=dict[Tried, str])
    spare: Mapping[str, tuple[Pin, ...]] = field(default_factory=dict[str, tuple[Pin, ...]])

    @property
    def templates(self) -> Mapping[str, tuple[str, ...]]:
        """Class and version of each template that pins were tuned with, as far as it is known; of merged pins perhaps several."""
        known: dict[str, set[str]] = {}
        for pin in chain(self.pins.values(), *self.spare.values()):
            if pin.identities:
                known.setdefault(pin.template, set()).update(pin.identities)
        return {name: tuple(sorted(identities)) for name, identities in known.items()}


def tried(environment: str, candidate: str, digest: str) -> Tried:
    """Return the key of a candidate on a problem, as the quarantine has it: the environment, and its name there."""
    return environment, quarantine_name(candidate, digest)


def pin_file(
    pins: Iterable[Pin],
    environments: Mapping[str, Fields | None],
    identities: Iterable[tuple[str, str, str]] = (),
    failed: Mapping[Tried, str] | None = None,
) -> PinFile:
    """Return a pin file with the environments that its pins and failures name, and the templates of its pins.

    Args:
        pins: The decisions; of several with the same `Pin.place` the last stays.
        environments: Fields of environments by digest, None where they are not known.
        identities: Name, class and version of templates, as of `Registry.identity`, for pins that do not have their own.
        failed: What was seen to fail (`PinFile.failed`).
    """
    known = by_template(identities)
    by_place = {
        pin.place: pin if pin.identities else replace(pin, identities=known.get(pin.template, ()))
        for pin in pins
    }
    digests = {pin.environment for pin in by_place.values()} | {
        digest for digest, _ in failed or {}
    }
    return PinFile(
        by_place,
        {digest: brief(fields) for digest in digests if (fields := environments.get(digest))},
        failed or {},
    )


def brief(value: Any) -> Any:
    """Return an environment's fields with long texts, such as what a compiler says of itself, as their end and a digest."""
    if isinstance(value, Mapping):
        return {name: brief(inner) for name, inner in cast("Fields", value).items()}
    if isinstance(value, str) and len(value) > _LONG:
        digest = hashlib.sha256(value.encode()).hexdigest()[:_KEY]
        return f"... {value[-_LONG // 2 :].strip()} (sha256 {digest})"
    return value


def _plain(value: Any) -> Any:
    """Return a value as a document gives it back: lists for tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in cast("Fields", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in cast("Iterable[Any]", value)]
    return value


def by_template(identities: Iterable[tuple[str, str, str]]) -> dict[str, tuple[str]]:
    """Return what distinguishes each template from another one of its name: its class, and its version if it has one.

    Args:
        identities: As of `Registry.identity`.
    """
    return {name: (f"{kind} {version}".rstrip(),) for name, kind, version in identities}


def pin_of(
    record: Record, winner: str, library: str | None, reason: str, template: str = ""
) -> Pin:
    """Return the pin of a decision about the problem of a record, with the record's times."""
    measured = record.candidates.get(winner)
    compared = record.candidates.get(library) if library is not None else None
    template = template or template_in(measured)
    asks = template and not record.problem.get("dynamic") and not record.problem.get("epilogue")
    return Pin(
        environment=record.environment,
        op=record.op,
        digest=record.digest,
        describe=described(record.problem, record.describe),
        winner=winner,
        template=template,
        winner_ms=time_of(measured),
        samples=sum(
            len(row.samples_ms) for row in {winner: measured, library: compared}.values() if row
        ),
        library=library,
        library_ms=time_of(compared),
        reason=reason,
        fields=record.problem if asks else {},
    )


def pin_of_record(record: Record) -> Pin | None:
    """Return the pin of a record's decision; None if it has none that is valid.

    That of a graph names the problems that it gives up, also where these are all that it was compared with.
    """
    decision: Decision | None = record.valid_decision
    if decision is None:
        return None
    pin = pin_of(record, decision.winner, decision.library, decision.reason)
    winner = held_in(record).candidate if record.op == GRAPH else pin.winner
    return replace(pin, winner=winner, samples=weight(record))


def time_of(measured: Measured | None) -> float | None:
    """Return the median of a measurement in milliseconds, rounded; None without one that is finite."""
    if measured is None or measured.median_ms is None or not math.isfinite(measured.median_ms):
        return None
    return float(f"{measured.median_ms:.{_DIGITS}g}")


def template_in(measured: Measured | None) -> str:
    """Return the template that a measured candidate is of; empty for other kinds, and where nothing says it."""
    if measured is None:
        return ""
    stated = measured.provenance.get(TEMPLATE_FIELD)
    if isinstance(stated, str):
        return stated
    if measured.kind != "template":
        return ""
    name, separator, _ = measured.name.removeprefix("fused.").partition("::")
    return name if separator else ""


def environment_name(digest: str, fields: Fields) -> str:
    """Return an environment in a few words: device, threads, version of torch; its digest if it is not known."""
    device, software = _table(fields, "device"), _table(fields, "software")
    words = [str(device["name"])] if "name" in device else []
    if "threads" in device:
        words.append(f"{device['threads']} thread{'s' if device['threads'] != 1 else ''}")
    words += [f"{name} {software[name]}" for name in ("torch", "cuda") if name in software]
    return ", ".join(words) or f"environment {digest[:_KEY]}"


def _table(fields: Fields, name: str) -> Fields:
    inner = fields.get(name)
    return cast("Fields", inner) if isinstance(inner, Mapping) else {}
