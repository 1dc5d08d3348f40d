"""Which rank tunes a problem: the first that claims it. A rank claims no more than its share. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields

FREE = "free"
"""A claim that its rank has given back."""
_LEAST = 2
"""Problems that a rank may hold: one that is measured, and one whose candidates are compiled meanwhile."""


@dataclass(frozen=True)
class Claim:
    """A rank's claim to a problem.

    Attributes:
        rank: The rank.
        process: Its process.
        part: The part of that process: each set of options has its own, and tunes for itself.
    """

    rank: int
    process: str
    part: int

    @property
    def text(self) -> str:
        """The claim as the store has it."""
        return f"{self.rank} {self.process} {self.part}"


def parse(text: str) -> Claim | None:
    """Return the claim in the store; None if it was given back, or is none."""
    words = text.split(" ")
    if len(words) != len(fields(Claim)) or not (words[0].isdecimal() and words[2].isdecimal()):
        return None
    return Claim(int(words[0]), words[1], int(words[2]))


def capacity(undecided: int, world: int) -> int:
    """Return how many problems a rank may hold at once, of ``undecided`` ones: its share, rounded up.

    What a slow rank has not claimed is there for the others when they have tuned theirs.
    """
    return max(_LEAST, -(-undecided // world))


def order(problems: Iterable[str], rank: int) -> list[str]:
    """Return the order in which a rank tries to claim problems: each has another one, so that they seldom meet."""
    return sorted(
        problems, key=lambda problem: hashlib.sha256(f"{rank} {problem}".encode()).digest()
    )
