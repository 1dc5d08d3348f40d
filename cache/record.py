"""One problem's record: every candidate's timing, the decision, and how two records merge."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from inductor_plugin.cache.document import (
    LATEST,
    NOTHING,
    amount,
    amounts,
    are_amounts,
    are_texts,
    check_format,
    flag,
    is_array,
    is_object,
    moment,
    names_of,
    optional,
    table,
    table_of,
    text,
    typed,
    unknown,
    whole,
)
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import place_of

_DIGITS, _REJECTED = 6, "rejected_speedup"

GRAPH = "graph"
"""Operator of the record of a whole graph."""

AHEAD_S = 300.0
"""Seconds by which clocks of machines that share a cache may differ."""

DISTURBED_FIELD = "disturbed"
"""Field of the provenance that is True if other work on the machine has prolonged all samples."""
UNCHECKED, NO_REFERENCE = "unchecked", "no reference"
"""Values of the provenance's field ``numbers`` where they were not compared: as the options say, or for want of a reference."""

TEMPLATE_FIELD = "template"
"""Field of the provenance with the registered template of a candidate whose name does not begin with it (Triton kernels)."""

FAULTS = frozenset({"wrong", "red_zone", "raised", "compile_failed"})
"""Failures of the candidate's own, whatever the machine's load, and whether numbers are compared or not."""


@dataclass(frozen=True)
class Measured:
    """One candidate of a record.

    Attributes:
        candidate: Stable identity.
        name: Readable name.
        kind: ``extern``, ``cpp``, ``triton``, ``template`` ...
        description: Its configuration in words.
        status: The result: ``ok``, ``skipped``, ``pruned`` (built, but it does not fit the device), or
            a failure.
        reason: One line for people; with ``ok``, what was not compared, or of the library kernel what is wrong.
        samples_ms: Milliseconds per call, one entry a sample.
        median_ms: Their median.
        spread_ms: Their interquartile range.
        error: Error of its numbers, relative to the reference's root mean square.
        compile_s: Seconds its compilation took.
        kernel: Digest of its compiled kernel in the cache.
        measured_at: Time of the measurement, in seconds since 1970.
        provenance: Machine, clocks and versions of the measurement.
        extra: Fields of a newer version; they are written back as they were read.
    """

    candidate: str
    name: str
    kind: str
    description: str
    status: str
    reason: str
    samples_ms: tuple[float, ...]
    median_ms: float | None
    spread_ms: float | None
    error: float | None
    compile_s: float | None
    kernel: str | None
    measured_at: float
    provenance: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def disturbed(self) -> bool:
        """True if other work on the machine has prolonged all samples."""
        return is_disturbed(self.provenance)

    @property
    def noisy(self) -> bool:
        """True if other work was measured too: it is known, or the interquartile range exceeds the median."""
        return is_noisy(self.median_ms, self.spread_ms, self.provenance)


def is_noisy(median_ms: float | None, spread_ms: float | None, provenance: object) -> bool:
    """Return `Measured.noisy` of a median, an interquartile range and a provenance, which may be none."""
    if median_ms is None:
        return False
    return is_disturbed(provenance) or (spread_ms or 0.0) > median_ms


def is_disturbed(provenance: object) -> bool:
    """Return `Measured.disturbed` of a provenance, which may be none."""
    return is_object(provenance) and provenance.get(DISTURBED_FIELD) is True


@dataclass(frozen=True)
class Decision:
    """Which candidate runs, and why.

    Attributes:
        winner: Candidate that runs.
        library: The library kernel it was compared with, if any.
        reason: One sentence for people.
        margin: Factor by which a winner had to be faster than the library kernel.
        speedup: Library time over winner time, where both are known: 1.0 where the library kernel stays.
        decided_at: Time of the decision, in seconds since 1970.
        candidates: Number of candidates known at that time.
        rejected_speedup: Where the library kernel stays, its time over that of the fastest other candidate, if both are known.
        extra: Fields of a newer version, as in `Measured`.
    """

    winner: str
    library: str | None
    reason: str
    margin: float
    speedup: float | None
    decided_at: float
    candidates: int
    rejected_speedup: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True)
class Record:
    """Everything known of one problem in one environment.

    Attributes:
        environment: Digest of the environment.
        op: Name of the operator.
        digest: Digest of the problem.
        problem: The problem's fields.
        describe: The problem in one line.
        candidates: The measurement of each candidate.
        rejected: Templates that refused the problem, and why.
        decision: The winner; None if not decided yet.
        created: When the record was first written, in seconds since 1970.
        updated: When it was last written, in seconds since 1970.
        pinned: True if it and its winner's kernel must not be evicted.
        epilogue: The epilogue of a product in full (`epilogue_text.dump`), for people and for `repro`;
            the problem's signature identifies it. Empty without an epilogue, and in older records.
        extra: Fields of a newer version, as in `Measured`.
    """

    environment: str
    op: str
    digest: str
    problem: Mapping[str, Any]
    describe: str
    candidates: Mapping[str, Measured]
    rejected: Mapping[str, str] = field(default_factory=dict[str, str])
    decision: Decision | None = None
    created: float = 0.0
    updated: float = 0.0
    pinned: bool = False
    epilogue: Mapping[str, str] = field(default_factory=dict[str, str])
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def place(self) -> str:
        """The record's full name: ``environment/op/digest``."""
        return place_of(self.environment, self.op, self.digest)

    @property
    def valid_decision(self) -> Decision | None:
        """The decision, unless its winner is at fault by the record's own rows: two caches that were combined disagree."""
        decision = self.decision
        winner = self.candidates.get(decision.winner) if decision else None
        return None if winner is not None and winner.status in FAULTS else decision

    @property
    def noisy(self) -> bool:
        """True if a measurement that the decision compared is noisy: its speedup means little."""
        compared = () if self.decision is None else (self.decision.winner, self.decision.library)
        return any(measured.noisy for name, measured in self.candidates.items() if name in compared)


def to_fields(record: Record) -> dict[str, Any]:
    """Return the record as the fields of a document, the most useful fields first."""
    # Without asdict, whose deep copy takes a third of the time of a write.
    fields = dict(vars(rounded(record)))
    fields["candidates"] = {n: _flat(entry) for n, entry in fields["candidates"].items()}
    fields["decision"] = fields["decision"] and _flat(fields["decision"])
    order = ("environment", "op", "digest", "describe", "created", "updated", "pinned", "decision")
    # Without an epilogue, the format of records is as before there were any.
    rest = ("rejected", "candidates", "problem", *(["epilogue"] if record.epilogue else []))
    known = {"format": SCHEMA, **{name: fields[name] for name in (*order, *rest)}}
    return {**known, **unknown(record.extra, known)}


def from_fields(fields: Mapping[str, Any]) -> Record:
    """Return the record in a document's fields; every field has been checked for its type.

    Times more than `AHEAD_S` ahead of this machine's clock are not believed: see `_believed`.

    Args:
        fields: The fields.

    Raises:
        ForeignError: The fields are of another format.
        ValueError: They are not a record's.
    """
    check_format(fields, SCHEMA)
    try:
        values = typed({"epilogue": {}, **fields}, _RECORD)
    except ValueError as error:
        raise ValueError(f"it is not a record: {error}") from error
    read = Record(**values, extra=unknown(fields, _NAMES))
    return _believed(read, time.time())


def failed(measured: Measured) -> bool:
    """Return True for a candidate that misbehaved: not measured, skipped or pruned."""
    return measured.status not in ("ok", "skipped", "pruned")


def rounded(record: Record) -> Record:
    """Return the record with times rounded to significant digits."""
    return replace(
        record,
        candidates={n: _rounded(measured) for n, measured in record.candidates.items()},
        decision=record.decision
        and replace(
            record.decision,
            speedup=_digits(record.decision.speedup),
            rejected_speedup=_digits(record.decision.rejected_speedup),
            decided_at=round(record.decision.decided_at, 3),
        ),
        created=round(record.created, 3),
        updated=round(record.updated, 3),
    )


def _believed(record: Record, now: float) -> Record:
    """Return the record without times in the future, from a machine whose clock was ahead.

    A measurement or decision from the future would never give way to a later one; it counts as the
    oldest. The times that people are shown become ``now``.
    """
    latest = now + AHEAD_S
    if record.updated > latest or record.created > latest:
        record = replace(record, created=min(record.created, now), updated=min(record.updated, now))
    ahead = {n: row for n, row in record.candidates.items() if row.measured_at > latest}
    if ahead:
        oldest = {name: replace(row, measured_at=0.0) for name, row in ahead.items()}
        record = replace(record, candidates={**record.candidates, **oldest})
    if record.decision is not None and record.decision.decided_at > latest:
        record = replace(record, decision=replace(record.decision, decided_at=0.0))
    return record


def _rounded(measured: Measured) -> Measured:
    samples = (_digits(sample) for sample in measured.samples_ms)
    return replace(
        measured,
        samples_ms=tuple(sample for sample in samples if sample is not None),
        median_ms=_digits(measured.median_ms),
        spread_ms=_digits(measured.spread_ms),
        error=_digits(measured.error),
        compile_s=_digits(measured.compile_s),
        measured_at=round(measured.measured_at, 3),
    )


def _digits(value: float | None) -> float | None:
    """Return the value with six digits; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def _candidates(value: Any) -> dict[str, Measured]:
    """Return the measurements of a record, all looked at together where they are as this version writes them."""
    names = names_of(value)
    rows = list(names.values())
    if rows and all(map(is_object, rows)) and {len(_MEASURED)}.issuperset(map(len, rows)):
        with suppress(KeyError):
            return dict(zip(names, _usual(rows), strict=True))
    return {name: _measured(row) for name, row in names.items()}


def _usual(rows: list[dict[str, Any]]) -> list[Measured]:
    """Return measurements without unknown fields.

    Raises:
        KeyError: A field is missing, or has not its usual type: each is to be looked at.
    """
    columns = dict(zip(_MEASURED, zip(*map(_VALUES, rows), strict=True), strict=True))
    samples, texts = columns["samples_ms"], [columns[name] for name in _TEXTS]
    # A library kernel has no digest and no error: it is in almost every record.
    given = [[v for v in columns[name] if v is not None] for name in _OPTIONAL_TIMES]
    kernels = [digest for digest in columns["kernel"] if digest is not None]
    if not (
        all(map(is_array, samples))
        and are_texts(chain(kernels, *texts))
        and are_amounts(chain(columns["measured_at"], *given, *samples))
        and max(columns["measured_at"]) <= LATEST
    ):
        raise KeyError
    checked: list[dict[str, Any]] = []  # candidates that were measured together share one object
    for facts in columns["provenance"]:
        checked.append(checked[-1] if checked and facts == checked[-1] else table(facts))
    columns |= {"samples_ms": map(tuple, samples), "provenance": checked}
    return list(map(_row, zip(*columns.values(), repeat(NOTHING), strict=False)))


def _row(values: Sequence[Any]) -> Measured:
    """Return a measurement of values that have been looked at: its constructor takes 3 us, a fifth of a lookup for 20 of them."""
    measured = object.__new__(Measured)
    vars(measured).update(zip(_FIELDS, values, strict=True))
    return measured


def _measured(fields: Any) -> Measured:
    return Measured(**typed(fields, _MEASURED), extra=unknown(fields, _MEASURED))


def _decision(fields: Any) -> Decision:
    """Return a decision. An earlier version wrote the rejected candidate's factor as that of the library kernel."""
    values = typed({_REJECTED: None, **fields} if is_object(fields) else fields, _DECISION)
    if values["winner"] == values["library"] and values["speedup"] not in (None, 1.0):
        values |= {"speedup": 1.0, _REJECTED: values[_REJECTED] or values["speedup"]}
    return Decision(**values, extra=unknown(fields, _DECISION))


def _flat(part: Measured | Decision) -> dict[str, Any]:
    """Return the fields of a part of a record with the unknown ones among them, as they were read."""
    fields = {n: value for n, value in vars(part).items() if n != _REJECTED or value is not None}
    extra = fields.pop("extra")
    return {**fields, **unknown(extra, fields)}


_MEASURED: dict[str, Callable[[Any], Any]] = {
    "candidate": text,
    "name": text,
    "kind": text,
    "description": text,
    "status": text,
    "reason": text,
    "samples_ms": amounts,
    "median_ms": optional(amount),
    "spread_ms": optional(amount),
    "error": optional(amount),
    "compile_s": optional(amount),
    "kernel": optional(text),
    "measured_at": moment,
    "provenance": table,
}
_FIELDS = (*_MEASURED, "extra")
_VALUES = itemgetter(*_MEASURED)
_TEXTS = ("candidate", "name", "kind", "description", "status", "reason")
_OPTIONAL_TIMES = ("median_ms", "spread_ms", "error", "compile_s")
"""Fields of a measurement, to look at those of all candidates together: that takes a third of the time."""
_DECISION: dict[str, Callable[[Any], Any]] = {
    "winner": text,
    "library": optional(text),
    "reason": text,
    "margin": amount,
    "speedup": optional(amount),
    "decided_at": moment,
    "candidates": whole,
    _REJECTED: optional(amount),
}
_RECORD: dict[str, Callable[[Any], Any]] = {
    "environment": text,
    "op": text,
    "digest": text,
    "problem": table,
    "describe": text,
    "candidates": _candidates,
    "rejected": table_of(text),
    "decision": optional(_decision),
    "created": moment,
    "updated": moment,
    "pinned": flag,
    "epilogue": table_of(text),
}
_NAMES = frozenset({"format", *_RECORD})
