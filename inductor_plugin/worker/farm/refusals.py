"""Which nodes have refused which jobs, and for how long they are not asked again."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

_PAUSE_S, _LONGEST_S = 60.0, 900.0
"""A node whose obstacle may pass is asked again after the first, after twice as long the next time, and so on up to the second."""


@dataclass(frozen=True)
class NodeRefusal:
    """What a node has answered to jobs that need the same.

    Attributes:
        until: ``time.monotonic()`` before which it is not asked again.
        times: How often it has refused.
    """

    until: float
    times: int


class NodeRefusals:
    """The refusals of a cluster's nodes. Not safe to use from several threads."""

    def __init__(self) -> None:
        """Know of none."""
        self._of: dict[tuple[object, ...], dict[str, NodeRefusal]] = {}

    def add(self, needs: tuple[object, ...], node: str, now: float, *, passing: bool) -> None:
        """Keep a refusal.

        Args:
            needs: As of `Parcel`.
            node: The node.
            now: ``time.monotonic()``.
            passing: Whether its reason may pass.
        """
        known = self._of.setdefault(needs, {})
        known[node] = refused_again(known.get(node), now, passing=passing)

    def of(self, needs: tuple[object, ...], now: float) -> set[str]:
        """Return the nodes that are not asked with such a job."""
        return {node for node, each in self._of.get(needs, {}).items() if each.until > now}

    def keep(self, nodes: Collection[str]) -> None:
        """Forget nodes that have left: one that returns has another name."""
        for needs, known in list(self._of.items()):
            self._of[needs] = {node: each for node, each in known.items() if node in nodes}


def refused_again(before: NodeRefusal | None, now: float, *, passing: bool) -> NodeRefusal:
    """Return what is kept of a refusal. Pure.

    Args:
        before: The last one of the same node, for the same needs.
        now: ``time.monotonic()``.
        passing: Whether its reason may pass: memory that is in use, but not the version of a compiler.
    """
    if before is not None and passing and before.until > now:
        return before  # of a job that was there with the last one: as many as the node has CPUs refuse at once
    times = before.times if before is not None else 0
    pause_s = min(_PAUSE_S * 2.0**times, _LONGEST_S) if passing else math.inf
    return NodeRefusal(now + pause_s, min(times + 1, 10))
