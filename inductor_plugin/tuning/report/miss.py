"""Why a problem was a miss: the nearest record, and the fields in which it differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cache import Store
from inductor_plugin.cache.lookup.near import Near, differences_text, elsewhere, nearest

_SHOWN = 3
_KEY = 12
"""Digits of a digest that are shown; `inductor-plugin explain` takes them."""


@dataclass(frozen=True)
class Miss:
    """A problem that had no record, or none of some candidates.

    Attributes:
        op: Operator.
        digest: Digest of the problem.
        describe: The problem in one line.
        environment: Digest of the environment.
        unseen: Candidates without a measurement.
        reason: Why, in one sentence.
        near: The record it is nearest to, None if there is none or the problem has one itself.
    """

    op: str
    digest: str
    describe: str
    environment: str
    unseen: tuple[str, ...]
    reason: str
    near: Near | None

    def text(self) -> str:
        """Return it in one line."""
        return f"miss: {self.describe}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        near = None if self.near is None else self.near.to_dict()
        return {**vars(self), "unseen": list(self.unseen), "near": near}


def explained(
    store: Store,
    environment: str,
    op: str,
    digest: str,
    describe: str,
    problem: Mapping[str, Any],
    offered: Sequence[str],
) -> Miss:
    """Return why a problem was a miss.

    Args:
        store: The cache.
        environment: Digest of the environment.
        op: Operator.
        digest: Digest of the problem.
        describe: The problem in one line.
        problem: Its fields.
        offered: The candidates offered.
    """
    record = store.record(environment, op, digest)
    unseen = tuple(n for n in offered if record is None or n not in record.candidates)
    near = None
    if record is not None:
        reason = _incomplete(unseen, len(offered))
    elif near := _first(
        elsewhere(layout, environment, op, digest, store.environment(environment) or {})
        for layout in store.layouts
    ):
        reason = (
            f"recorded in environment {near.environment[:_KEY]} only, from which this one differs in "
            f"{differences_text(near.differences)}"
        )
    elif near := _first(
        nearest(layout, environment, op, digest, problem) for layout in store.layouts
    ):
        reason = (
            f"no record; the nearest, {near.digest[:_KEY]} of {near.describe}, differs in "
            f"{differences_text(near.differences)}"
        )
    else:
        roots = " and ".join(str(layout.root) for layout in store.layouts)
        reason = f"no record, and none of another {op} for this environment in {roots}"
    return Miss(op, digest, describe, environment, unseen, reason, near)


def _first(records: Iterable[Near | None]) -> Near | None:
    """Return the record with the fewest differences, of those of both caches."""
    return min(filter(None, records), key=lambda near: len(near.differences), default=None)


def _incomplete(unseen: Sequence[str], offered: int) -> str:
    if not unseen:
        return "its measurements do not hold for today's options, so they are repeated"
    names = ", ".join(unseen[:_SHOWN]) + (" ..." if len(unseen) > _SHOWN else "")
    return f"its record lacks {len(unseen)} of {offered} candidates: {names}"
