"""One problem's record: every candidate's timing, the decision, and how two records merge."""

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
        name: Readable name.
        kind: ``extern``, ``cpp``, ``triton``, ``template`` ...
        description: Its configuration in words.
        status: The result: ``ok``, ``skipped``, ``pruned`` (built, but it does not fit the device), or
            a failure.
        reason: One line for people; empty when ``ok``.
        samples_ms: Milliseconds per call, one entry a sample.
        median_ms: Their median.
        spread_ms: Their interquartile range.
        error: Error of its numbers, relative to the reference's root mean square.
        compile_s: Seconds its compilation took.
        kernel: Digest of its compiled kernel in the cache.
        measured_at: Time of the measurement, in seconds since 1970.
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

    @property
    def noisy(self) -> bool:
        """True if the samples' interquartile range exceeds their median: other work was measured too."""
        return self.median_ms is not None and (self.spread_ms or 0.0) > self.median_ms


@dataclass(frozen=True)
class Decision:
    """Which candidate runs, and why.

    Attributes:
        winner: Candidate that runs.
        library: The library kernel it was compared with, if any.
        reason: One sentence for people.
        margin: Factor by which a winner had to be faster than the library kernel.
        speedup: Library time over winner time, where both are known.
        decided_at: Time of the decision, in seconds since 1970.
        candidates: Number of candidates known at that time.
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
        candidates: The measurement of each candidate.
        rejected: Templates that refused the problem, and why.
        decision: The winner; None if not decided yet.
        created: When the record was first written, in seconds since 1970.
        updated: When it was last written, in seconds since 1970.
        pinned: True if it and its winner's kernel must not be evicted.
        epilogue: The epilogue of a product in full (`epilogue_text.dump`), for people and for `repro`;
            the problem's signature identifies it. Empty without an epilogue, and in older records.
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

    @property
    def noisy(self) -> bool:
        """True if a measurement that the decision compared is noisy: its speedup means little."""
        compared = () if self.decision is None else (self.decision.winner, self.decision.library)
        return any(measured.noisy for name, measured in self.candidates.items() if name in compared)


def to_fields(record: Record) -> dict[str, Any]:
    """Return the record as the fields of a document, the most useful fields first."""
    fields = asdict(rounded(record))
    order = ("environment", "op", "digest", "describe", "created", "updated", "pinned", "decision")
    rest = ("rejected", "candidates", "problem")
    if record.epilogue:  # keeps the format of all other records unchanged
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
            candidates={n: _measured(entry) for n, entry in fields["candidates"].items()},
            rejected={n: _text(why) for n, why in fields["rejected"].items()},
            decision=None if decision is None else _decision(decision),
            created=float(fields["created"]),
            updated=float(fields["updated"]),
            pinned=bool(fields["pinned"]),
            epilogue={n: _text(line) for n, line in fields.get("epilogue", {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a record: {type(error).__name__}: {error}") from error


def failed(measured: Measured) -> bool:
    """Return True for a candidate that misbehaved: not measured, skipped or pruned."""
    return measured.status not in ("ok", "skipped", "pruned")


def merge(old: Record, new: Record) -> Record:
    """Return one record with every candidate of both.

    Of two measurements of a candidate the newer is kept, but ``skipped`` never replaces another result.
    Of two decisions the one based on more candidates is kept, then the newer; a pinned record keeps its
    decision. Refusals are those of the later record, since each record has all of them. The epilogue is
    also that of the later record, unless an earlier version wrote that without one.
    """
    candidates = dict(old.candidates)
    for name, measured in new.candidates.items():
        candidates[name] = _better(candidates.get(name), measured)
    later, earlier = (new, old) if new.updated >= old.updated else (old, new)
    # The epilogue has the measured sizes, so it must match the record's description.
    described = earlier if earlier.describe == later.describe and not later.epilogue else later
    return replace(
        later,
        candidates=candidates,
        decision=_decided(old, new),
        created=min(old.created, new.created),
        updated=max(old.updated, new.updated),
        pinned=old.pinned or new.pinned,
        epilogue=described.epilogue,
    )


def rounded(record: Record) -> Record:
    """Return the record with times rounded to significant digits."""
    return replace(
        record,
        candidates={n: _rounded(measured) for n, measured in record.candidates.items()},
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


def _measured(fields: Mapping[str, Any]) -> Measured:
    values: dict[str, Any] = {**fields, "samples_ms": tuple(map(float, fields["samples_ms"]))}
    return Measured(**values)


def _decision(fields: Mapping[str, Any]) -> Decision:
    return Decision(**fields)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is not text")
