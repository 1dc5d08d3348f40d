"""A graph that ranks of a job compile: which rank tunes its problems, and what the job has decided about its fusions."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from inductor_plugin.problem import Problem
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import Agreed, of_verdict
from inductor_plugin.tuning.ranks.part import name_of
from inductor_plugin.tuning.ranks.share import RankShare
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.tuning.ticket import TuningTicket

_THREAD = threading.local()


class _Follower:
    """Decides the tickets of a graph that is only compared as the job has decided, and those it has not by this rank's records.

    Nothing is published, nor waited for: what only such a graph asks for is not to be decided, unmeasured, for the whole job.
    """

    def __init__(self, share: RankShare, context: DeviceContext) -> None:
        self.share = share
        self._context = context

    def submit(self, ticket: TuningTicket) -> None:
        known = self.share.look_up(name_of(ticket))
        (self._context if known is None else self.share).submit(ticket)

    def wait(self, ticket: TuningTicket, limit_s: float) -> None:
        (self._context if ticket.agreed is None else self.share).wait(ticket, limit_s)


class GraphShares:
    """This rank's part in the problems of a graph, by device; without a job its devices tune alone."""

    def __init__(self, *, decides: bool = True) -> None:
        """Begin with no device.

        Args:
            decides: False for a graph that is only compared: the job decides nothing because of it.
        """
        self._decides = decides
        self._shares: dict[str, RankShare] = {}
        self._followers: dict[str, _Follower] = {}
        self._submitted: list[TuningTicket] = []
        opened: list[GraphShares] | None = getattr(_THREAD, "opened", None)
        if opened is not None:
            opened.append(self)

    def add(self, context: DeviceContext, *, host_counts: bool) -> None:
        """Join the ranks with the same environment, if this process has a job."""
        share = context.share(host_counts=host_counts)
        if share is not None and self._decides:
            self._shares[context.device] = share
        elif share is not None:
            self._followers[context.device] = _Follower(share, context)

    def get(self, context: DeviceContext) -> RankShare | None:
        """Return this rank's part in the problems of a device; None without a job, or for a graph that is only compared."""
        return self._shares.get(context.device)

    def tuner(self, context: DeviceContext) -> RankShare | DeviceContext | _Follower:
        """Return what decides the tickets of a device."""
        alone = self._followers.get(context.device, context)
        return self._shares.get(context.device, alone)

    def submit(self, context: DeviceContext, ticket: TuningTicket) -> None:
        """Start to decide a ticket."""
        if context.device in self._shares:
            self._submitted.append(ticket)
        self.tuner(context).submit(ticket)

    def is_open(self, context: DeviceContext, ticket: TuningTicket) -> bool:
        """Return whether the job has not decided a ticket: this rank alone has measured what no graph needed."""
        return context.device in self._shares and ticket.agreed is None

    def release_all(self) -> None:
        """Give back everything: the graph is not compiled."""
        self.release(self._submitted)

    def release(self, tickets: Iterable[TuningTicket]) -> None:
        """Give back what the graph did not need."""
        own = [*tickets]
        for share in self._shares.values():
            share.release(own)

    def look_up(self, context: DeviceContext, problem: Problem) -> Agreed | None:
        """Return what the job has decided about a fusion; None if it has not, or there is no job."""
        tuner = self.tuner(context)
        share = tuner.share if isinstance(tuner, _Follower) else self.get(context)
        return None if share is None else share.look_up(_name(problem))

    def refuse(self, context: DeviceContext, problem: Problem, only: str, why: str) -> str:
        """Return the job's decision about a fusion that this rank refuses before anything is measured, which others then refuse, too.

        Args:
            context: The device.
            problem: The product with its epilogue.
            only: The candidate that runs if the job has decided nothing yet.
            why: Why it is refused.
        """
        share = self._shares.get(context.device)
        if share is None:
            return only
        own = of_verdict(Verdict(only, only, why), None, share.rank)
        return share.decide(_name(problem), own).winner or only


@contextmanager
def given_back_on_failure() -> Generator[None]:
    """Give back what graphs hold that this thread compiles in the block, if that fails.

    Else other ranks would wait for it: this one lives, and tunes nothing of a graph that is not compiled any more.
    """
    before: list[GraphShares] | None = getattr(_THREAD, "opened", None)
    opened: list[GraphShares] = []
    _THREAD.opened = opened
    try:
        yield
    except BaseException:
        for shares in opened:
            shares.release_all()
        raise
    finally:
        _THREAD.opened = before


def _name(problem: Problem) -> str:
    return f"{problem.op}/{problem_digest(problem)}"
