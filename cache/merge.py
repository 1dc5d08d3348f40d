"""How two records of one problem become one, and why the order of many merges does not matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from inductor_plugin.cache.record import (
    GRAPH,
    NO_REFERENCE,
    UNCHECKED,
    Decision,
    Measured,
    Record,
)

T = TypeVar("T")

_EVIDENT = frozenset({"pruned", "wrong", "red_zone", "raised", "compile_failed"})
"""Results that do not depend on whether numbers are compared, nor on the machine's load."""


def merge(old: Record, new: Record) -> Record:
    """Return one record with every candidate of both; the order of many merges does not matter.

    Of two measurements of a candidate the better is kept (`_worth`). Of two decisions the one based
    on more candidates is kept, then the newer; a pinned record keeps its decision. Refusals are those
    of the later record, since each record has all of them. The epilogue is also that of the later
    record, unless an earlier version wrote that without one.

    Of two records of a whole graph the one that was decided later is kept as it is: its measurements are those of its
    choices, which the other's are not.
    """
    if old.op == GRAPH:
        return _later_decided(old, new)
    candidates = dict(old.candidates)
    for name, measured in new.candidates.items():
        before = candidates.get(name)
        candidates[name] = measured if before is None else _greater(before, measured, _worth)
    later = _greater(old, new, lambda record: (record.updated,), _head)
    earlier = old if later is new else new
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
        extra={**old.extra, **new.extra, **_disputed(old.extra, new.extra)},
    )


def _later_decided(old: Record, new: Record) -> Record:
    """Return the record that was decided later; a pinned one before others."""
    kept = _greater(old, new, _decided_at, _text)
    return replace(
        kept,
        created=min(old.created, new.created),
        updated=max(old.updated, new.updated),
        extra={**old.extra, **new.extra, **_disputed(old.extra, new.extra)},
    )


def _decided_at(record: Record) -> tuple[float, float]:
    return record.pinned, record.decision.decided_at if record.decision is not None else 0.0


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
    elif (
        measured.provenance.get("numbers") in (UNCHECKED, NO_REFERENCE)
        and measured.status not in _EVIDENT
    ):
        rank = 1
    else:
        rank = 2
    return rank, measured.measured_at


def _decided(old: Record, new: Record) -> Decision | None:
    if old.decision is None or new.decision is None:
        return old.decision or new.decision
    if old.pinned != new.pinned:
        return old.decision if old.pinned else new.decision
    return _greater(old.decision, new.decision, lambda made: (made.candidates, made.decided_at))


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
