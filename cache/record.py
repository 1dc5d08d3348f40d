"""One problem's record: every candidate's timing, the decision, and how two records become one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from inductor_plugin.cache.key import SCHEMA

_DIGITS = 6


@dataclass(frozen=True)
class Measured:
    """One candidate of a record.

    Attributes:
        candidate: Stable identity.
        name: What people read.
        kind: ``extern``, ``cpp``, ``triton``, ``template`` ...
        description: Its configuration in words.
        status: How it fared: ``ok``, ``skipped``, ``pruned`` (built, but it does not fit the device), or
            a failure.
        reason: One line for people; empty when ``ok``.
        samples_ms: Milliseconds per call, one entry a sample.
        median_ms: Their median.
        spread_ms: Their interquartile range.
        error: Error of its numbers, relative to the reference's root mean square.
        compile_s: Seconds its compilation took.
        kernel: Digest of its compiled kernel in the cache.
        measured_at: When, in seconds since 1970.
        provenance: Machine, clocks and versions of the measurement.
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


@dataclass(frozen=True)
class Decision:
    """Which candidate runs, and why.

    Attributes:
        winner: Candidate that runs.
        library: The library kernel it was compared with, if any.
        reason: One sentence for people.
        margin: How many times faster than the library kernel a winner had to be.
        speedup: Library time over winner time, where both are known.
        decided_at: When, in seconds since 1970.
        candidates: How many candidates were known at that time.
    """

    winner: str
    library: str | None
    reason: str
    margin: float
    speedup: float | None
    decided_at: float
    candidates: int


@dataclass(frozen=True)
class Record:
    """Everything known of one problem in one environment.

    Attributes:
        environment: Digest of the environment.
        op: Name of the operator.
        digest: Digest of the problem.
        problem: The problem's fields.
        describe: The problem in one line.
        candidates: What is known of each candidate.
        rejected: Templates that refused the problem, and why.
        decision: What runs, once decided.
        created: When the record was first written, in seconds since 1970.
        updated: When it was last written, in seconds since 1970.
        pinned: True if it and its winner's kernel must not be evicted.
        epilogue: What stands behind a product, in full (`epilogue_text.dump`), for people and for `repro`;
            the problem's signature tells it from others. Empty without one, and in older records.
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

    @property
    def place(self) -> str:
        """The record's full name: ``environment/op/digest``."""
        return f"{self.environment}/{self.op}/{self.digest}"


def to_fields(record: Record) -> dict[str, Any]:
    """Return the record as the fields of a document, what people look for first."""
    fields = asdict(rounded(record))
    order = ("environment", "op", "digest", "describe", "created", "updated", "pinned", "decision")
    rest = ("rejected", "candidates", "problem")
    if record.epilogue:  # so that all other records are what they were
        rest = (*rest, "epilogue")
    return {"format": SCHEMA, **{name: fields[name] for name in (*order, *rest)}}


def from_fields(fields: Mapping[str, Any]) -> Record:
    """Return the record in a document's fields.

    Raises:
        ValueError: The fields are of another format or not a record's.
    """
    if fields.get("format") != SCHEMA:
        raise ValueError(f"its format is {fields.get('format')!r}, not {SCHEMA}")
    try:
        decision = fields["decision"]
        return Record(
            environment=_text(fields["environment"]),
            op=_text(fields["op"]),
            digest=_text(fields["digest"]),
            problem=dict(fields["problem"]),
            describe=_text(fields["describe"]),
            candidates={n: _measured(one) for n, one in fields["candidates"].items()},
            rejected={n: _text(why) for n, why in fields["rejected"].items()},
            decision=None if decision is None else _decision(decision),
            created=float(fields["created"]),
            updated=float(fields["updated"]),
            pinned=bool(fields["pinned"]),
            epilogue={n: _text(line) for n, line in fields.get("epilogue", {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a record: {type(error).__name__}: {error}") from error


def failed(one: Measured) -> bool:
    """Return True for a candidate that misbehaved: neither measured nor skipped nor pruned."""
    return one.status not in ("ok", "skipped", "pruned")


def merge(old: Record, new: Record) -> Record:
    """Return one record with every candidate of both.

    Of two measurements of one candidate the newer stays, except that nothing measured gives way to
    ``skipped``. Of two decisions the one made from more candidates stays, then the newer; a pinned
    record keeps its decision. Refusals are those of the later one: each states them all. So is the note
    of an epilogue; where the later one has none, an earlier version wrote it, and that of the other stays.
    """
    candidates = dict(old.candidates)
    for name, one in new.candidates.items():
        candidates[name] = _better(candidates.get(name), one)
    late, early = (new, old) if new.updated >= old.updated else (old, new)
    # A note tells sizes as they were measured: it belongs to the description it was written with.
    noted = early if early.describe == late.describe and not late.epilogue else late
    return replace(
        late,
        candidates=candidates,
        decision=_decided(old, new),
        created=min(old.created, new.created),
        updated=max(old.updated, new.updated),
        pinned=old.pinned or new.pinned,
        epilogue=noted.epilogue,
    )


def rounded(record: Record) -> Record:
    """Return the record with times cut to the digits that mean something."""
    return replace(
        record,
        candidates={n: _rounded(one) for n, one in record.candidates.items()},
        decision=record.decision
        and replace(
            record.decision,
            speedup=_digits(record.decision.speedup),
            decided_at=round(record.decision.decided_at, 3),
        ),
        created=round(record.created, 3),
        updated=round(record.updated, 3),
    )


def _better(old: Measured | None, new: Measured) -> Measured:
    if old is None:
        return new
    if (old.status == "skipped") != (new.status == "skipped"):
        return new if old.status == "skipped" else old
    return new if new.measured_at >= old.measured_at else old


def _decided(old: Record, new: Record) -> Decision | None:
    if old.decision is None or new.decision is None:
        return old.decision or new.decision
    if old.pinned != new.pinned:
        return old.decision if old.pinned else new.decision
    weight_old = (old.decision.candidates, old.decision.decided_at)
    weight_new = (new.decision.candidates, new.decision.decided_at)
    return new.decision if weight_new >= weight_old else old.decision


def _rounded(one: Measured) -> Measured:
    samples = (_digits(sample) for sample in one.samples_ms)
    return replace(
        one,
        samples_ms=tuple(sample for sample in samples if sample is not None),
        median_ms=_digits(one.median_ms),
        spread_ms=_digits(one.spread_ms),
        error=_digits(one.error),
        compile_s=_digits(one.compile_s),
        measured_at=round(one.measured_at, 3),
    )


def _digits(value: float | None) -> float | None:
    """Return the value with six digits; None for what is no finite number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def _measured(fields: Mapping[str, Any]) -> Measured:
    values: dict[str, Any] = {**fields, "samples_ms": tuple(map(float, fields["samples_ms"]))}
    return Measured(**values)


def _decision(fields: Mapping[str, Any]) -> Decision:
    return Decision(**fields)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is not text")
