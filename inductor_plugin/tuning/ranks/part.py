"""A problem that the ranks decide, as one of them sees it, and what tunes it there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from inductor_plugin.tuning.ranks.agreed import Agreed
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.tuning.ticket import TuningTicket


class Tuner(Protocol):
    """What measures the problems that this rank has claimed."""

    def examine(self, ticket: TuningTicket) -> None:
        """Find out whether anything can be measured here, which may take minutes; once a compile."""
        ...

    def start(self, ticket: TuningTicket) -> None:
        """Start to tune; returns within a second. ``ticket.task.done`` is set when it has ended."""
        ...

    def wait(self, ticket: TuningTicket, limit_s: float) -> None:
        """Wait until the ticket's task has ended, or its problem has made no progress within the limit."""
        ...

    def end(self, task: Task, error: str) -> None:
        """End a task, whether it was submitted or not."""
        ...

    def progressed(self) -> None:
        """Wake what waits: another rank makes progress with what is waited for here."""
        ...

    @property
    def absence(self) -> str:
        """Why nothing can be measured here in this compile, empty if something can be."""
        ...


@dataclass(eq=False)
class SharedProblem:
    """A problem that the job decides.

    Attributes:
        name: The problem, as in keys.
        describe: The problem in one line.
        tickets: The tickets of this process about it until it is decided, the one that is tuned first.
        state: ``open``; ``mine``: this rank tunes it; ``theirs``: another does.
        is_claimed: Whether its claim is that of this part of the process, tuned or not.
        owner: The rank that does.
        agreed: The decision, once there is one.
        ready: Set then.
        awaited: How many threads wait for it.
        announced: Whether refusals of this rank, by all these tickets, are in the store.
        looked_up: Whether the store has been asked for a decision since others may decide it.
        left: Whether this process waits for a rank that can measure it, and decides nothing itself.
        left_at: When a rank had it last; None if it was never left.
    """

    name: str
    describe: str = ""
    tickets: list[TuningTicket] = field(default_factory=list[TuningTicket])
    state: Literal["open", "mine", "theirs"] = "open"
    is_claimed: bool = False
    owner: int | None = None
    agreed: Agreed | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    awaited: int = 0
    announced: bool = False
    looked_up: bool = False
    left: bool = False
    left_at: float | None = None

    @property
    def task(self) -> Task | None:
        """The task that tunes it."""
        return self.tickets[0].task if self.tickets else None

    @property
    def ended(self) -> bool:
        """Whether this process has done what it could to decide it: nothing, where it has measured before, or may not."""
        task = self.task
        done = task is None or not task.measured or task.done.is_set()
        return bool(self.tickets) and not self.left and done

    @property
    def steps(self) -> int:
        """How much of its task is done: candidates compiled and measured, legs of the finals."""
        task = self.task
        entries: Sequence[TaskCandidate] = () if task is None else [*task.entries]
        return sum(entry.ready + (entry.outcome is not None) for entry in entries) + (
            0 if task is None else task.legs
        )


def name_of(ticket: TuningTicket) -> str:
    """Return the problem of a ticket, as in keys."""
    return f"{ticket.problem.op}/{ticket.digest}"
