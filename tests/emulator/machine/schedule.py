"""In which order a machine does what a GPU may do in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ahead = Literal["none", "first", "last", "random"]


@dataclass(frozen=True)
class Schedule:
    """One of the orders a GPU might choose. A kernel that waits too little is wrong in some of them.

    Attributes:
        late: Asynchronous operations are done as late as possible: loads when a thread waits for them in vain,
            bulk stores and ``cp.async`` when their group is waited for; and what a ``wgmma`` reads must still be
            there when it is waited for. Otherwise each is done when it is issued.
        ahead: Which warps run as far as they can before others: all together (which hides missing barriers),
            the first, the last, or one drawn anew for each basic block.
        seed: Of the draws.
        watched: Whether races on shared memory are looked for by happens-before (`races`); not if ``late``.
    """

    late: bool = False
    ahead: Ahead = "none"
    seed: int = 0
    watched: bool = False

    @property
    def by_warp(self) -> bool:
        """Whether warps run one by one, not all that are at the same place together."""
        return self.ahead != "none"

    def __str__(self) -> str:
        order = {"none": "", "first": "-first", "last": "-last", "random": f"-random{self.seed}"}
        start = "watched" if self.watched else "late" if self.late else "eager"
        return start + order[self.ahead]


EAGER = Schedule()
LATE = Schedule(late=True)
WATCHED = Schedule(watched=True)
ALL = (
    EAGER,
    LATE,
    Schedule(ahead="first"),
    Schedule(late=True, ahead="first"),
    Schedule(late=True, ahead="last"),
)
"""The schedules that find most missing waits; see README.md for which finds what."""
