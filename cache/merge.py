"""How two records of one problem become one, and why the order of many merges does not matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from inductor_plugin.cache.record import (
    FAULTS,
    GRAPH,
    NO_REFERENCE,
    UNCHECKED,
    Decision,
    Measured,
    Record,
)

T = TypeVar("T")

_SAMPLES = "samples"
"""Field of a decision whose record has other samples than those it rests on."""

_EVIDENT = FAULTS | {"pruned"}
"""Results that do not depend on whether numbers are compared, nor on the machine's load."""


def merge(old: Record, new: Record) -> Record:
    """Return one record of two records of a problem; the order of many merges does not matter.

    Of two measurements of a candidate the better is kept (`_worth`). Of two decisions the one based
    on more candidates is kept, then the newer; a pinned record keeps its decision, and a pin without one holds
    nothing. Refusals, description and epilogue are those of the later record, since each record has all of them.

    Of two records of a whole graph the one that was decided later is kept as it is: its measurements are those of its
    choices, which the other's are not.
    """
    if old.op == GRAPH:
        return _whole(old, new, _decided_at)
    # The number of samples counts for nothing here.
    held = _better(_Weighed(old.decision, 0, old.pinned), _Weighed(new.decision, 0, new.pinned))
    return _united(old, new, _measurements(old, new, _worth), held)


def combine(old: Record, new: Record) -> Record:
    """Return one record of what two caches know; the order of many does not matter, nor how often one is combined.

    Unlike in `merge`, where a later measurement is meant to replace an earlier one, none of two machines is the later
    word: of two measurements of a candidate the one with more samples is kept (`_evidence`), and of two decisions the one
    whose winner and library kernel have more samples. The record keeps that number where its own rows do not tell it.
    """
    if old.op == GRAPH:
        return _whole(old, new, _samples_of_graph)
    candidates = _measurements(old, new, _evidence)
    best = _better(
        _Weighed(_bare(old.decision), weight(old), old.pinned),
        _Weighed(_bare(new.decision), weight(new), new.pinned),
    )
    united = _united(old, new, candidates, best)
    if best.decision is not None and _counted(united) != best.samples:
        united = replace(united, decision=_stamped(best.decision, best.samples))
    return united


def _measurements(
    old: Record, new: Record, worth: Callable[[Measured], tuple[float, ...]]
) -> dict[str, Measured]:
    """Return the candidates of both records, of two measurements the one of more worth."""
    candidates = dict(old.candidates)
    for name, measured in new.candidates.items():
        before = candidates.get(name)
        candidates[name] = measured if before is None else _greater(before, measured, worth)
    return candidates


def _united(old: Record, new: Record, candidates: Mapping[str, Measured], held: _Weighed) -> Record:
    """Return a record of both with these candidates and this decision.

    Description, refusals and epilogue are one value, of the later record: the time of a part of them would be lost. Of two of
    one time the one with an epilogue is kept, since an earlier version wrote none.
    """
    later = _greater(old, new, lambda record: (record.updated, bool(record.epilogue)), _head)
    return replace(
        later,
        candidates=candidates,
        decision=held.decision,
        created=min(old.created, new.created),
        updated=max(old.updated, new.updated),
        pinned=held.pinned,
        extra={**old.extra, **new.extra, **_disputed(old.extra, new.extra)},
    )


def _whole(old: Record, new: Record, key: Callable[[Record], tuple[float, ...]]) -> Record:
    """Return the record with the greater key as it is; its times are those of its own choices."""
    kept = _greater(old, new, key, _text)
    return replace(
        kept,
        created=min(old.created, new.created),
        updated=max(old.updated, new.updated),
        extra={**old.extra, **new.extra, **_disputed(old.extra, new.extra)},
    )


def _decided_at(record: Record) -> tuple[float, float]:
    return record.pinned, record.decision.decided_at if record.decision is not None else 0.0


def _samples_of_graph(record: Record) -> tuple[float, ...]:
    """Return how much a graph's record says: turns beside other work less than any others, as in `_evidence`."""
    samples = sum(len(measured.samples_ms) for measured in record.candidates.values())
    return record.pinned, not record.noisy, samples, *_decided_at(record)[1:]


def _text(record: Record) -> str:
    return repr((record.decision, sorted(record.candidates.items()), _head(record)))


def _worth(measured: Measured) -> tuple[int, float]:
    """Return how much a measurement is worth beside another one of the same candidate.

    ``skipped`` never replaces another result. Otherwise the newer one is worth more, unless the numbers
    of just one of them were checked: a later timing does not make a wrong kernel right. A run without
    the check still finds what shows by itself (`_EVIDENT`).
    """
    if measured.status == "skipped":
        rank = 0
    elif _unchecked(measured) and measured.status not in _EVIDENT:
        rank = 1
    else:
        rank = 2
    return rank, measured.measured_at


def _evidence(measured: Measured) -> tuple[float, ...]:
    """Return how much a measurement says beside one of the same candidate by another machine.

    A fault of the candidate's own is worth most: what one machine has seen fail is used by none. A timing beside other
    work is worth less than another one, whatever the number of samples.
    """
    rank = 3 - measured.disturbed
    if measured.status == "skipped":
        rank = 0
    elif measured.status in FAULTS:
        rank = 4
    elif measured.status != "ok" or _unchecked(measured):
        rank = 1
    return rank, len(measured.samples_ms), measured.measured_at


def _unchecked(measured: Measured) -> bool:
    return measured.provenance.get("numbers") in (UNCHECKED, NO_REFERENCE)


@dataclass(frozen=True)
class _Weighed:
    """A decision, the number of samples behind it, and whether it is pinned."""

    decision: Decision | None
    samples: int
    pinned: bool

    @property
    def key(self) -> tuple[float, ...]:
        decision = self.decision
        if decision is None:
            return -1.0, self.pinned
        return self.pinned, self.samples, decision.candidates, decision.decided_at


def _better(old: _Weighed, new: _Weighed) -> _Weighed:
    """Return the decision that is kept, with its pin: a pin of a record without a decision is one of nothing."""
    return _greater(old, new, lambda weighed: weighed.key)


def weight(record: Record) -> int:
    """Return the number of samples behind a record's decision: those it is marked with, else those of the record."""
    stated = record.decision.extra.get(_SAMPLES) if record.decision is not None else None
    return stated if isinstance(stated, int) else _counted(record)


def _counted(record: Record) -> int:
    """Return the number of samples of a decision's winner and library kernel in its record."""
    decision = record.decision
    compared: set[str | None] = set() if decision is None else {decision.winner, decision.library}
    rows = (measured for name, measured in record.candidates.items() if name in compared)
    return sum(len(measured.samples_ms) for measured in rows)


def _bare(decision: Decision | None) -> Decision | None:
    """Return a decision without the mark of `_stamped`."""
    if decision is None or _SAMPLES not in decision.extra:
        return decision
    return replace(
        decision, extra={n: value for n, value in decision.extra.items() if n != _SAMPLES}
    )


def _stamped(decision: Decision, samples: int) -> Decision:
    """Return a decision marked with the samples it rests on; the record has others now."""
    return replace(decision, extra={**decision.extra, _SAMPLES: samples})


def _greater(
    old: T,
    new: T,
    key: Callable[[T], tuple[float, ...]],
    content: Callable[[T], str] = repr,
) -> T:
    """Return the value with the greater key; of two with the same key the one with the greater content."""
    if key(old) != key(new):
        return new if key(new) > key(old) else old
    return old if old == new else max((old, new), key=content)


def _head(record: Record) -> str:
    """Return what a merge takes of the later record as a whole."""
    tables = (sorted(table.items()) for table in (record.rejected, record.epilogue))
    return repr((record.describe, *tables))


def _disputed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return unknown fields that both have, the greater by its text: what they mean is not known."""
    return {name: max(old[name], new[name], key=repr) for name in old.keys() & new.keys()}
