"""The problems that a rank and its job decide: the tickets of each, and its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

from inductor_plugin.errors import warn_once
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.ranks import agreed as decisions
from inductor_plugin.tuning.ranks.agreed import Agreed
from inductor_plugin.tuning.ranks.board import Board
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.part import SharedProblem, Tuner
from inductor_plugin.tuning.ranks.store import StoreLostError
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)


class Settlement:
    """What the job has decided, and how the tickets of a problem take it."""

    def __init__(self, job: Job, group: str, tuner: Tuner, counters: Counters) -> None:
        """Know no problem yet; the arguments are those of `RankShare`."""
        self._job = job
        self._board = Board(job, group)
        self._tuner = tuner
        self._counters = counters
        self._wake = threading.Condition()
        self._parts: dict[str, SharedProblem] = {}
        self._given_back: list[str] = []
        self._lost = ""

    @property
    def rank(self) -> int:
        """This rank."""
        return self._job.rank

    def look_up(self, problem: str) -> Agreed | None:
        """Return what the job has decided about a problem; None if it has not, or its store is lost."""
        return self._agreed_on(problem, self._board.decision)

    def decide(self, problem: str, own: Agreed) -> Agreed:
        """Return the job's decision about a problem that no rank measures: this rank's, unless there is another.

        Without its store it is ``own``: two kernels instead of a fused one, which all ranks run then.
        """
        text = decisions.dump(own)
        return self._agreed_on(problem, lambda name: self._board.decide(name, text)) or own

    def _take_over(self, ticket: TuningTicket, limit_s: float) -> None:
        """Build the kernel that another rank has built, and keep its measurements; without that kernel the library kernel runs here."""
        agreed = ticket.agreed
        if agreed is None or ticket.taken_over:
            return
        if agreed.rank == self._job.rank and not _is_build(ticket.task):
            return
        ticket.taken_over = True
        task = ticket.selection.build_of(ticket)
        if task is not None:
            ticket.task = task
            self._tuner.start(ticket)
            self._tuner.wait(ticket, limit_s)
            why = task.why_not_built()
            if why is not None:  # nor is a later process to run what its cache lacks
                decisions.give_up(ticket, agreed, f"cannot be built here: {why}")
                return
        ticket.selection.keep(ticket)

    def _undecided(self) -> list[SharedProblem]:
        return [part for part in self._parts.values() if part.agreed is None]

    def _listed(
        self, wanted: Callable[[SharedProblem], bool] = lambda _: True
    ) -> list[SharedProblem]:
        with self._wake:
            return [part for part in self._undecided() if wanted(part)]

    def _free(self) -> list[str]:
        """Return the problems that are to be given back: not those that another graph has brought, and that are claimed again."""
        with self._wake:
            names, self._given_back = self._given_back, []
            claimed = {part.name for part in self._parts.values() if part.is_claimed}
        return [name for name in names if name not in claimed]

    def _announce(self) -> bool:
        """Say which candidates have failed here, before another rank decides for one."""
        parts = self._listed(lambda part: not part.announced)
        for part in parts:
            part.announced = (
                True  # before its tickets are read: one that is added meanwhile clears it
            )
            failed = {name for t in [*part.tickets] for name in decisions.refused(t)}
            if failed:
                self._board.refuse(part.name, failed)
        return bool(parts)

    def _own(self, part: SharedProblem, ticket: TuningTicket) -> Agreed:
        verdict, rank = ticket.selection.chosen(ticket), self._job.rank
        if not decisions.is_measured(ticket):  # a later job is to tune it
            error = ticket.task.error if ticket.task is not None else "it may not measure it now"
            why = f"the library kernel stays for now: rank {rank} has measured nothing ({error})"
            return decisions.library_for(why, rank)
        if verdict.winner is not None and verdict.winner != verdict.library:
            refusal = self._board.refusal(part.name, verdict.winner)
            if refusal is not None:
                why = f"the library kernel stays: {verdict.winner} has failed on rank {refusal}"
                return decisions.library_for(why, rank)
        return decisions.of_verdict(verdict, ticket.selection.record_of(ticket), rank)

    def _given_up(self, part: SharedProblem, ticket: TuningTicket) -> Agreed:
        error = ticket.task.error if ticket.task is not None else ""
        if part.left_at is not None:
            why = f"the library kernel stays for now: no rank has measured it ({error})"
            return decisions.library_for(why, self._job.rank)
        return self._without(part, error or "was not awaited")

    def _without(self, part: SharedProblem, why: str) -> Agreed:
        rank = "another rank" if part.owner is None else f"rank {part.owner}"
        reason = f"the library kernel stays for now, without {rank}, which had the problem: {why}"
        warn_once(logger, f"{part.describe}: {reason}")
        return decisions.library_for(reason, self._job.rank)

    def _put(self, part: SharedProblem, own: Agreed) -> None:
        """Publish a decision, and take what the store has then: the first that was published."""
        self._settle_by(part, self._board.decide(part.name, decisions.dump(own)))

    def _ask_for_holders(self) -> list[int]:
        """Ask who has each problem of other ranks; return the ranks that have given some back, so were alive then."""
        gave_back: list[int] = []
        for part in self._listed(lambda part: part.state == "theirs"):
            before, part.owner = part.owner, self._board.holder(part.name)
            gave_back += [before] if before is not None and before != part.owner else []
        return gave_back

    def _take(self, part: SharedProblem) -> bool:
        part.looked_up = True
        stored = self._board.decision(part.name)
        if stored is not None:
            self._settle_by(part, stored)
        return stored is not None

    def _settle_by(self, part: SharedProblem, stored: str) -> None:
        try:
            agreed = decisions.load(stored)
        except ValueError as error:
            agreed = decisions.library_for(f"the library kernel stays: {error}", self._job.rank)
        with self._wake:
            self._settle(part, agreed)

    def _settle(self, part: SharedProblem, agreed: Agreed) -> None:
        """Decide all tickets of a problem; called with the lock held."""
        if part.agreed is not None:
            return
        part.agreed = agreed
        taken = part.state != "mine" and agreed.rank != self._job.rank
        self._counters.add(ranks_taken=int(taken))
        # It calls the last first. Whatever happens to one ticket, the others are decided, and no thread waits for ever.
        with ExitStack() as calls:
            calls.callback(part.ready.set)
            calls.callback(part.tickets.clear)  # their graphs are not to be kept
            for ticket in reversed(part.tickets):
                calls.callback(self._adopt, part, ticket)

    def _adopt(self, part: SharedProblem, ticket: TuningTicket) -> None:
        assert part.agreed is not None
        decisions.adopt(ticket, part.agreed)
        if ticket.task is not None and not ticket.task.done.is_set():
            self._tuner.end(ticket.task, "")

    def _lose(self, reason: str) -> None:
        """Decide everything for library kernels: what other ranks decide is not known any more."""
        text = f"the store of the job is lost ({reason})"
        warn_once(
            logger, f"{text}: library kernels run where the ranks have not agreed", "store of ranks"
        )
        with self._wake:
            self._lost = f"the library kernel stays for now: {text}"
            self._given_back.clear()
            for part in self._undecided():
                self._settle_without_store(part)

    def _settle_without_store(self, part: SharedProblem) -> None:
        try:
            self._settle(part, decisions.library_for(self._lost, self._job.rank))
        except Exception:  # a task that cannot be ended: the next problems are waited for, too
            logger.exception("inductor-plugin: the tuning of %s was not ended", part.describe)

    def _agreed_on(self, name: str, asked: Callable[[str], str | None]) -> Agreed | None:
        """Return the decision about a problem that the store gives, and keep it."""
        with self._wake:
            part = self._parts.get(name)
            if part is not None and part.agreed is not None:
                return part.agreed
            if self._lost:
                return None
        try:
            stored = asked(name)
        except StoreLostError as error:
            self._lose(str(error))
            return None
        if stored is None:
            return None
        with self._wake:
            part = self._parts.setdefault(name, SharedProblem(name))
        self._settle_by(part, stored)
        return part.agreed


def _is_build(task: Task | None) -> bool:
    """Return whether a task builds a kernel that is decided; the decision came before it was done."""
    return task is not None and not task.measured
