"""A few of many cases, in which whatever meets in all of them meets: for tables whose cases are products of several factors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def covering(cases: Iterable[T], facts: Callable[[T], Iterable[Hashable]]) -> list[T]:
    """Return cases in their order, so few that each two facts that a case has are those of a case that is returned.

    A fault that two of a case's properties cause together is seen as by all cases. What is taken is always the case with most
    new pairs, of equals the first: not the least number there is, but the same each time.

    Args:
        cases: All cases.
        facts: Returns the properties of a case, each once: values of several factors that may be equal go with their factor's name.
    """
    listed = list(cases)
    pairs = [set(combinations(["", *facts(case)], 2)) for case in listed]
    chosen: set[int] = set()
    while any(pairs):
        best = max(range(len(listed)), key=lambda place: len(pairs[place]))
        new = pairs[best].copy()
        chosen.add(best)
        for left in pairs:
            left -= new
    return [case for place, case in enumerate(listed) if place in chosen]
