"""Why a problem was a miss: the nearest record, and the fields in which it differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cache import Store
from inductor_plugin.cache.lookup.near import Near, differences_text, elsewhere, nearest
from inductor_plugin.tuning.validity import NOT_CHECKED

_SHOWN = 3
_KEY = 12
"""Digits of a digest that are shown; `inductor-plugin explain` takes them."""


@dataclass(frozen=True)
class Miss:
    """A problem that had no record, or no valid measurement of some candidates.

    Attributes:
        op: Operator.
        digest: Digest of the problem.
        describe: The problem in one line.
        environment: Digest of the environment.
        unseen: Candidates without a valid measurement.
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
    void: Mapping[str, str],
    policy: str,
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
        void: Those of them whose recorded measurement is not used, and why.
        policy: What is done about a miss.
    """
    record = store.record(environment, op, digest)
    lacking = [n for n in offered if record is None or n not in record.candidates]
    unseen = (*lacking, *(n for n in offered if n in void and n not in lacking))
    near = None
    if record is not None:
        reason = f"its record {digest[:_KEY]} {_incomplete(lacking, void, len(offered), policy)}"
    elif near := _first(
        elsewhere(layout, environment, op, digest, store.environment(environment) or {})
        for layout in store.layouts
    ):
        reason = (
            f"recorded only in another environment, {near.environment[:_KEY]}; from there to here "
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
        reason = f"no record of any {op} for this machine and software in {roots}"
    return Miss(op, digest, describe, environment, unseen, reason, near)


def _first(records: Iterable[Near | None]) -> Near | None:
    """Return the record with the fewest differences, of those of both caches."""
    return min(filter(None, records), key=lambda near: len(near.differences), default=None)


def _incomplete(lacking: Sequence[str], void: Mapping[str, str], offered: int, policy: str) -> str:
    """Return what a record lacks or has in vain, and what to do about it."""
    parts = [f"lacks {len(lacking)} of {offered} candidates: {_named(lacking)}"] if lacking else []
    for why in sorted(set(void.values())):
        names = [name for name in void if void[name] == why]
        parts.append(
            f"has {len(names)} of {offered} candidates that are not used ({why}): {_named(names)}"
        )
    if not parts:
        parts.append("was completed meanwhile")
    elif policy != "tune":
        use = (
            " or set verify_numerics=off to use them unchecked"
            if NOT_CHECKED in void.values()
            else ""
        )
        parts.append(f"compile once with policy=tune to measure them{use and ','}{use}")
    return "; ".join(parts)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
