"""The problems of one kind of device, shared out among the ranks of a job.

One thread does all of that while something is undecided. It never measures, and it waits for nothing but the store.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from inductor_plugin.config import Config
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.ranks import agreed as decisions
from inductor_plugin.tuning.ranks.claim import capacity, order
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.pace import Pace
from inductor_plugin.tuning.ranks.part import SharedProblem, Tuner, name_of
from inductor_plugin.tuning.ranks.pulse import BEAT_S, RankWatches, beat
from inductor_plugin.tuning.ranks.settlement import Settlement
from inductor_plugin.tuning.ranks.store import StoreLostError
from inductor_plugin.tuning.ranks.terms import Introduction, Terms
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)

_POLL_S, _LONGEST_POLL_S = 0.02, 0.5
"""Seconds between two looks at the problems of this process while they change, and while they do not."""
_TUNING_POLL_S = 0.1
"""Seconds after which a rank sees, at the latest, that a problem it tunes is tuned."""
_CLAIMS = 4
"""Problems claimed in a row, at most: to start one takes up to a second, in which there is no sign of life."""
_IN_VAIN = 256
"""Claims that all ranks together make in vain in one turn: where a thousand ranks begin at once, most problems have a rank already."""


class RankShare(Settlement):
    """This rank's part in the problems of a group: the ranks with the same environment, options and templates."""

    def __init__(
        self,
        job: Job,
        group: str,
        tuner: Tuner,
        counters: Counters,
        timeout_s: float,
        *,
        measures: bool = True,
        terms: Terms | None = None,
        has_thread: bool = True,
    ) -> None:
        """Share problems out; nothing is asked of the store yet.

        Args:
            job: The job.
            group: Digest of what the group has in common.
            tuner: Tunes what this rank has claimed.
            counters: Counters of what this rank has tuned and taken.
            timeout_s: Seconds without a sign of life after which a rank is given up.
            measures: False with ``policy=cached``: it claims nothing, and leaves what it does not know to those that measure.
            terms: What its decisions rest on, for other ranks to compare; None to compare nothing.
            has_thread: False where the caller calls `step`: in a simulation.
        """
        super().__init__(job, group, tuner, counters)
        self._timeout_s = timeout_s
        self._measures = measures
        self._introduction = None if terms is None else Introduction(job, terms)
        self._introduced, self._is_patient = False, True
        self._absent = False
        self._watches = RankWatches(timeout_s, job.world)
        self._pace = Pace(job.rank, job.world)
        self._claim_pace = Pace(job.rank, 2 * _CLAIMS * job.world)
        self._seen = 0
        self._asked: set[str] = set()
        self._beats = 0
        self._beat_at = self._looked_at = self._watched_at = self._moved_at = -math.inf
        self._has_thread = has_thread
        self._thread: threading.Thread | None = None

    def submit(self, ticket: TuningTicket) -> None:
        """Let the job decide a ticket; returns immediately, except where the device may not be had."""
        name = name_of(ticket)
        if self._may_tune(name):
            # Here, not where it is claimed: that thread gives the signs of life, and this may take minutes.
            self._tuner.examine(ticket)
        with self._wake:
            part = self._parts.get(name)
            if part is None:
                part = self._parts[name] = SharedProblem(name, ticket.problem.describe())
            if part.agreed is not None:
                self._adopt(part, ticket)
                return
            part.tickets.append(ticket)
            part.announced = False  # it may know of other failures
            if self._lost:
                self._settle(part, decisions.library_for(self._lost, self._job.rank))
            else:
                self._start()

    def _may_tune(self, name: str) -> bool:
        """Return whether this rank may come to tune a problem: nothing is decided about it."""
        with self._wake:
            part = self._parts.get(name)
            return not self._lost and (part is None or part.agreed is None)

    def wait(self, ticket: TuningTicket, limit_s: float) -> None:
        """Wait until a ticket is decided.

        Args:
            ticket: A ticket that was submitted.
            limit_s: Seconds without any progress of the rank that tunes it.
        """
        with self._wake:
            part = self._parts.get(name_of(ticket))
            if part is None:  # it was released
                return
            part.awaited += 1
            self._wake.notify_all()
        started = time.monotonic()
        try:
            while not part.ready.is_set():
                tuned = next(iter([*part.tickets]), ticket)
                if tuned.task is not None and not tuned.task.done.is_set():
                    self._tuner.wait(tuned, limit_s)
                elif part.left and time.monotonic() - max(started, self._moved_at) > limit_s:
                    part.left = False  # the rank that has it lives, and makes no progress
                part.ready.wait(1.0)
        finally:
            with self._wake:
                part.awaited -= 1
        self._take_over(ticket, limit_s)

    def release(self, tickets: Iterable[TuningTicket]) -> None:
        """Give back the problems that are no longer waited for: their graph is compiled, or failed to."""
        with self._wake:
            for ticket in tickets:
                part = self._parts.get(name_of(ticket))
                if part is None or part.agreed is not None:
                    continue
                tuned = next(iter(part.tickets), None)
                part.tickets = [other for other in part.tickets if other is not ticket]
                if ticket.task is not None:
                    self._tuner.end(ticket.task, "its graph does not need it any more")
                if not part.tickets:
                    del self._parts[part.name]
                    part.ready.set()  # a thread may wait for it while everything is closed
                    if part.is_claimed:
                        self._given_back.append(part.name)
                        self._start()
                elif part.state == "mine" and tuned is ticket:
                    part.state, part.looked_up = "open", False

    def close(self) -> None:
        """Give back everything that is undecided, and take back that nothing can be measured here: a later part may."""
        with self._wake:
            tickets = [ticket for part in self._undecided() for ticket in part.tickets]
        self.release(tickets)
        thread = self._thread
        if thread is not None:
            thread.join(timeout=1.0)
        if self._introduction is not None:
            self._introduction.end()
        if self._absent and not self._lost:
            with suppress(StoreLostError):
                self._report_absence(absent=False)

    # ---- the thread

    def _start(self) -> None:
        """Let the thread run; called with the lock held."""
        if self._thread is None and self._has_thread:
            thread = threading.Thread(target=self._loop, name="inductor-plugin-ranks", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # who waits would wait for ever
                self._lose(f"no thread can ask it: {error}")
            else:
                self._thread = thread
        self._wake.notify_all()

    def _loop(self) -> None:
        pause_s = _POLL_S
        while True:
            with self._wake:
                if not self._undecided() and not self._given_back:
                    self._thread = None
                    return
            try:
                changed = self.step(time.monotonic())
            except StoreLostError as error:
                self._lose(str(error))
                continue
            except Exception as error:  # the border of a thread: others wait for it
                logger.exception("inductor-plugin: sharing out problems failed")
                self._lose(f"{type(error).__name__}: {error}")
                continue
            pause_s = _POLL_S if changed else min(1.5 * pause_s, _LONGEST_POLL_S)
            tunes = bool(self._listed(lambda part: part.state == "mine"))
            with self._wake:
                self._wake.wait(min(pause_s, _TUNING_POLL_S) if tunes else pause_s)

    def step(self, now: float) -> bool:
        """Do everything once; return whether anything has changed.

        Args:
            now: The time, by the clock of this process.

        Raises:
            StoreLostError: The store does not answer.
        """
        self._introduce(now)
        if self._absent and not self._tuner.absence:
            self._report_absence(absent=False)
        for name in self._free():
            self._board.give_back(name)
        changed = [self._announce(), self._publish(now), self._read(now), self._claim_more(now)]
        self._send_beat(now)
        self._watch(now)
        return any(changed)

    def _introduce(self, now: float) -> None:
        """Say that this rank measures, and on what its decisions rest."""
        if self._measures and not self._introduced:
            self._introduced = True
            self._board.tuners(1)
        if self._introduction is not None:
            self._introduction.step(now)

    def _report_absence(self, *, absent: bool) -> int:
        """Say whether nothing can be measured here; return how many ranks say so."""
        self._absent = absent
        return self._board.report_absence(id(self), absent=absent)

    def _publish(self, now: float) -> bool:
        """Publish what this process has decided: measured now or earlier, or given up."""
        with self._wake:  # a graph that ends meanwhile takes its tickets away
            ended = [(part, part.tickets[0]) for part in self._undecided() if part.ended]
        for part, ticket in ended:
            if part.left_at is None and self._cannot_decide(part, ticket):
                part.left, part.left_at, part.state = True, now, "theirs"
                part.looked_up = False
                continue
            tuned = part.state == "mine" or ticket.task is None or not ticket.task.measured
            agreed = self._own(part, ticket) if tuned else self._given_up(part, ticket)
            self._put(part, agreed)
            self._counters.add(ranks_tuned=int(part.state == "mine"))
        return bool(ended)

    def _cannot_decide(self, part: SharedProblem, ticket: TuningTicket) -> bool:
        """Return whether a rank that can measure a problem is to decide it: this one cannot, or may not.

        Its claim is given back: with a device that is out of memory it would end problem after problem untuned, faster
        than others claim them. Where no rank can, none waits.
        """
        if part.state == "mine":
            absence = self._tuner.absence
            lost = bool(absence) and ticket.task is not None and ticket.task.error == absence
            if not lost:
                return False
            if self._report_absence(absent=True) >= self._job.world or not self._is_patient:
                return False
            part.is_claimed = False
            self._board.give_back(part.name)
            return True
        if ticket.task is not None or decisions.is_measured(ticket):
            return False
        # ``policy=cached`` without a record, or the budget is spent: not against a rank that tunes it.
        part.owner = self._board.holder(part.name)
        if part.owner is not None:
            return True
        # One that measures may come to it a little later.
        return not self._measures and self._is_patient and self._board.tuners() > 0

    def _read(self, now: float) -> bool:
        """Take decisions of others: those that are new, and each second the one that is waited for."""
        self._asked = set()
        waiting = self._listed(lambda part: part.state != "mine")
        if not waiting:
            return False
        new, due = self._new(waiting, now), now - self._looked_at >= BEAT_S
        if due:
            self._looked_at = now
        # A rank may have died between a decision and its entry in the log.
        parts = [p for p in waiting if p.name in new or not p.looked_up or (due and p.awaited)]
        self._asked = {part.name for part in parts}
        return any([self._take(part) for part in parts])  # noqa: C419  all are to be read

    def _new(self, waiting: Iterable[SharedProblem], now: float) -> Collection[str]:
        """Return problems that were decided since this rank has asked; none where it is not time to ask."""
        if not any(part.looked_up for part in waiting):
            # All are looked up now, so that what is older is no news; where nothing is decided, none needs to be.
            self._seen = self._board.decided()
            for part in waiting if not self._seen else ():
                part.looked_up = True
            return ()
        if not self._pace.due(now):
            return ()
        names, self._seen = self._board.decided_since(self._seen, now)
        self._pace.ask(now, changed=bool(names))
        return names

    def _claim_more(self, now: float) -> bool:
        """Claim problems up to this rank's share, and tune them."""
        if not self._claim_pace.due(now):
            return False
        undecided = self._listed()
        held = sum(part.state == "mine" for part in undecided)
        # What needs no tuning here is no reason to keep others from it.
        candidates = {p.name: p for p in undecided if p.state == "open" and not p.ended}
        most, before, refused = capacity(len(undecided), self._job.world), held, 0
        most_refused = max(_CLAIMS, _IN_VAIN // self._job.world)
        for name in order(candidates, self._job.rank):
            if held >= min(most, before + _CLAIMS) or refused >= most_refused:
                break
            is_mine = self._claimed(candidates[name], now)
            held, refused = held + is_mine, refused + (not is_mine)
        if refused:
            self._claim_pace.ask(now, changed=held > before)
        return held > before

    def _claimed(self, part: SharedProblem, now: float) -> bool:
        if part.name not in self._asked and self._take(part):
            return False
        part.owner = self._board.claim(part.name)
        mine = part.owner is None
        with self._wake:
            ticket = next(iter(part.tickets), None)
            if ticket is None or part.agreed is not None:  # released or decided meanwhile
                self._given_back += [part.name] if mine else []
                return False
            part.state, part.is_claimed = "mine" if mine else "theirs", mine
        if mine:
            self._send_beat(now)  # a claim without one is that of a dead rank
            self._tuner.start(ticket)
        return mine

    def _send_beat(self, now: float) -> None:
        mine = self._listed(lambda part: part.state == "mine")
        if now - self._beat_at < BEAT_S or not (mine or self._beats):
            return
        self._beat_at, self._beats = now, self._beats + 1
        self._board.beat(beat(self._beats, {part.name: part.steps for part in mine}))

    def _watch(self, now: float) -> None:
        """Look each second after the ranks that tune what is waited for here, and now and then after those that have the rest."""
        undecided = self._listed() if now - self._watched_at >= BEAT_S else []
        if not any(part.awaited for part in undecided):
            return
        self._watched_at = now
        theirs = [part for part in undecided if part.state == "theirs"]
        for part in (part for part in theirs if part.awaited):
            self._ask_for_holder(part, now)
        ranks = {part.owner for part in theirs if part.awaited and part.owner is not None}
        self._watches.turn({part.owner for part in theirs if part.owner is not None}, now)
        if any([self._look(rank) for rank in sorted(ranks)]):  # noqa: C419  all are to be seen
            self._moved_at = time.monotonic()
            self._tuner.progressed()
        for rank in self._watches.due(ranks):
            self._look(rank)
        if ranks.intersection(self._watches.overdue()):
            self._give_up()

    def _look(self, rank: int) -> bool:
        return self._watches.see(rank, self._board.beat_of(rank))

    def _ask_for_holder(self, part: SharedProblem, now: float) -> None:
        """Claim a problem that was given back, next; one that this process cannot measure is waited for in vain after a time-out.

        The next one that no rank has is then not waited for any more, until a rank has one again.
        """
        part.owner = self._board.holder(part.name)
        if part.owner is not None:
            self._is_patient = True
            part.left_at = None if part.left_at is None else now
        elif part.left_at is None:
            part.state = "open"
        elif now - part.left_at > self._timeout_s or self._board.absent() >= self._job.world:
            part.left = self._is_patient = False

    def _give_up(self) -> None:
        """Decide whatever silent ranks hold for library kernels: they cost one time-out, however many they are, and their problems."""
        for rank in self._watches.overdue():
            self._look(rank)  # it may be one that no thread waits for yet
        self._watches.renew(self._ask_for_holders())
        silent = {*self._watches.overdue()}
        theirs = self._listed(lambda part: part.state == "theirs" and part.owner in silent)
        self._watches.give_up(silent.intersection(part.owner for part in theirs))
        for part in theirs:
            if part.owner is not None and not self._take(part):
                why = f"no sign of life for {self._watches.silent_s(part.owner):.0f} s"
                self._put(part, self._without(part, why))


def share_of(job: Job, terms: Terms, tuner: Tuner, counters: Counters, config: Config) -> RankShare:
    """Return this rank's part in the problems of the ranks with its terms; the other arguments are those of `RankShare`."""
    timeout_s, measures = config.ranks_timeout_s, config.policy == "tune"
    return RankShare(job, terms.group, tuner, counters, timeout_s, measures=measures, terms=terms)
