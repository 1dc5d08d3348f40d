"""From offered candidates to a decision: look up records, measure the rest, decide, write the record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inductor_plugin.cache import Measured, Record, Store
from inductor_plugin.cache.remote.records import RemoteRecords
from inductor_plugin.config import Config
from inductor_plugin.cost.host import costs, sample_costs
from inductor_plugin.problem import Problem
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.decision import Verdict, decide, explained, of_graph, upper_bounds
from inductor_plugin.tuning.isolation import Isolation
from inductor_plugin.tuning.measurement import (
    NOT_FAILED,
    apart,
    contending,
    is_usable,
    measured_now,
    medians_of,
    open_to_late,
    raced_again,
    require_reference,
    unmeasured,
)
from inductor_plugin.tuning.offer import CandidateOffer, limited
from inductor_plugin.tuning.pins.replay import Pins, pinned
from inductor_plugin.tuning.task import CppBuild, Task, TaskCandidate, problem_digest
from inductor_plugin.tuning.ticket import (
    TuningTicket,
    has_reference,
    launches_of,
    looked_up,
    outdated,
    record_of,
    spreads,
    turns_of,
    unwanted_libraries,
)
from inductor_plugin.tuning.validity import is_valid, refused_earlier, unused
from inductor_plugin.worker.devices.lookup import on_host
from inductor_plugin.worker.jobs import OUT_OF_TIME

logger = logging.getLogger(__name__)


class Selection:
    """Decides the problems of one environment with one configuration."""

    def __init__(
        self,
        config: Config,
        store: Store,
        environment: str,
        provenance: Callable[[], Mapping[str, Any]],
        counters: Counters,
        pins: Pins | None = None,
        *,
        host_counts: bool = True,
        remote: RemoteRecords | None = None,
    ) -> None:
        """Decide for ``environment``.

        Args:
            config: The options.
            store: Where records are kept.
            environment: Digest of the environment in the store.
            provenance: Returns the facts stored with each new timing.
            counters: Counters of hits and misses.
            pins: Pinned decisions, for ``policy=pinned``.
            host_counts: Whether the host launches what runs: not in a CUDA graph.
            remote: Is asked for records that the store lacks, and gets new ones; None for no remote.
        """
        self._config = config
        self._store = store
        self._environment = environment
        self._provenance = provenance
        self._counters = counters
        self._pins = pins
        self._host_counts = host_counts
        self._isolation = Isolation(config, store, environment, counters)
        self._remote = remote

    @property
    def policy(self) -> str:
        """Return the policy it decides with."""
        return self._config.policy

    @property
    def environment(self) -> str:
        """Return the digest of its environment."""
        return self._environment

    @property
    def environment_fields(self) -> dict[str, Any]:
        """Return the fields of its environment."""
        return self._store.environment(self._environment) or {}

    def plan(
        self,
        problem: Problem,
        offers: Sequence[CandidateOffer],
        rejected: Mapping[str, str],
        check: NumberCheck | None,
        budget: Budget | None,
    ) -> TuningTicket:
        """Return a ticket, with a task if something must be measured.

        If a remote is asked for its record, the ticket is not `planned` before `settle` is called.
        """
        digest = problem_digest(problem)
        pin = self._pins and self._pins.pin(self._environment, problem.op, digest)
        offered = limited(offers, self._config.max_candidates, pin.winner if pin else None)
        ticket = TuningTicket(self, problem, digest, tuple(offered), {}, rejected, pin=pin)
        unseen = self._look_up(ticket)
        if unseen and self._remote is not None:
            ticket.lookup = self._remote.ask(problem.op, digest)
        ticket.plan = lambda: self._plan(ticket, check, budget)
        if ticket.lookup is None:
            self._plan(ticket, check, budget, unseen)
        return ticket

    def settle(self, ticket: TuningTicket) -> None:
        """Plan a ticket with what the remote has answered, or without it where that takes too long.

        What comes later is used until the problem's finals begin.
        """
        if ticket.planned or ticket.lookup is None or self._remote is None:
            return
        self._remote.wait(ticket.lookup)
        ticket.plan()
        if ticket.task is not None:
            ticket.task.awaits_news = True
            ticket.lookup.when_done(ticket.task.news.set)

    def _look_up(self, ticket: TuningTicket) -> list[CandidateOffer]:
        """Take over what the cache knows of a ticket's candidates, and return the others."""
        problem, offered, digest = ticket.problem, ticket.offers, ticket.digest
        record = self._store.record(self._environment, problem.op, digest)
        # With policy=build, measured candidates still have to be compiled.
        recorded = dict(record.candidates) if record and self._config.policy != "build" else {}
        quarantined = self._isolation.among(offered, digest)
        known = [o for o in offered if o.candidate_id in recorded]
        rows = {o.candidate_id: recorded[o.candidate_id] for o in known}
        libraries = {o.candidate_id for o in offered if o.library}
        may_win = not unwanted_libraries(problem, self._config)
        void = unused(rows, libraries, self._config, library_may_win=may_win)
        if self._config.policy == "tune":
            void = outdated(rows, self._store) | void
        void |= refused_earlier(quarantined)  # another machine's record does not speak for those
        ticket.recorded = rows
        ticket.measured = {
            o.candidate_id: recorded[o.candidate_id]
            for o in known
            if o.candidate_id not in void
            # What another machine has not seen fail is out if this one has.
            and (o.library or not self._isolation.condemned(quarantined.get(o.candidate_id)))
        }
        unseen = [o for o in offered if o.candidate_id not in ticket.measured]
        unseen = self._isolation.without(ticket, unseen, quarantined)
        ticket.void = {
            o.candidate_id: void[o.candidate_id] for o in unseen if o.candidate_id in void
        }
        return unseen

    def _plan(
        self,
        ticket: TuningTicket,
        check: NumberCheck | None,
        budget: Budget | None,
        unseen: list[CandidateOffer] | None = None,
    ) -> None:
        """Count a ticket as a hit or a miss, and give it a task if something must be measured."""
        if unseen is None:
            unseen = self._look_up(ticket)
        ticket.planned = True
        ticket.hit = not unseen
        barred = [n for n, row in ticket.measured.items() if row is not ticket.recorded.get(n)]
        self._counters.add(
            problems=1,
            candidates=len(ticket.offers),
            quarantined=len(barred),
            record_hits=int(ticket.hit),
            record_misses=int(not ticket.hit),
        )
        if logger.isEnabledFor(logging.INFO):  # a warm compile plans each of its problems here
            logger.info("%s", looked_up(ticket, unseen, self._config.policy))
        if unseen and self._config.policy in ("tune", "build"):
            if budget is not None and budget.over:
                for offer in unseen:  # preparing them takes time, too
                    ticket.measured[offer.candidate_id] = unmeasured(
                        offer, "skipped", OUT_OF_TIME, {}, time.time()
                    )
            else:
                ticket.task = self._task(ticket, unseen, check, budget)
        elif ticket.pin is not None:
            ticket.task = self._build_of(ticket, ticket.pin.winner)
        elif ticket.hit and self._remote is not None:  # a record may come without its kernel
            ticket.task = self._build_of(
                ticket, of_graph(self.chosen(ticket), held=ticket.held).winner
            )

    def decide(self, ticket: TuningTicket) -> Verdict:
        """Return which candidate runs; the task, if any, has ended."""
        alone = self.chosen(ticket)
        verdict = of_graph(alone, held=ticket.held)
        if verdict is not alone:
            ticket.verdict = verdict
        return verdict

    def chosen(self, ticket: TuningTicket) -> Verdict:
        """Return which candidate is the best alone: `decide` without what its graph gives up."""
        return ticket.verdict or ticket.decide(self._pinned(ticket) or self._by_times(ticket))

    def _by_times(self, ticket: TuningTicket) -> Verdict:
        # Another thread may put another rank's measurements in their place meanwhile.
        ticket = replace(ticket, measured=ticket.measured)
        libraries = [o.candidate_id for o in ticket.offers if o.library and is_usable(ticket, o)]
        times_ms = contending(ticket)
        others = {n: ms for n, ms in times_ms.items() if n not in libraries}
        if others and unwanted_libraries(ticket.problem, self._config):
            times_ms, libraries = others, []
        disturbed = {n for n in times_ms if ticket.measured[n].disturbed}
        samples = {n: ticket.measured[n].samples_ms for n in times_ms} if disturbed else {}
        out = apart(ticket, times_ms, libraries)
        times_ms |= upper_bounds(times_ms, samples, libraries, disturbed)
        margin, noise = self._config.never_slower_margin, spreads(ticket)

        def decided(of_ms: Mapping[str, float], turns: Mapping[str, tuple[float, ...]]) -> Verdict:
            return decide(of_ms, libraries, margin, noise, disturbed, turns, out)

        turns = turns_of(ticket)
        verdict = decided(times_ms, turns)
        launches = launches_of(ticket) if self._host_counts else {}
        if launches:
            cost_ms = costs(times_ms, launches)
            # Where the times on the device decide for all, so do the turns there.
            paid = turns if cost_ms == times_ms else sample_costs(turns, launches)
            verdict = explained(decided(cost_ms, paid), verdict, launches)
        return open_to_late(ticket, verdict)

    def record_of(self, ticket: TuningTicket) -> Record:
        """Return what is known of a problem, and what was decided, as a record."""
        margin = self._config.never_slower_margin
        return record_of(ticket, self.chosen(ticket), ticket.measured, self._environment, margin)

    def keep(self, ticket: TuningTicket) -> None:
        """Keep measurements of another rank in this cache; those that it shares with that rank it has already."""
        agreed = ticket.agreed
        if agreed is None or agreed.record is None:
            return
        record = self._store.record(self._environment, ticket.problem.op, ticket.digest)
        if record is None or not agreed.rows.keys() <= record.candidates.keys():
            self._store.put_record(agreed.record)

    def build_of(self, ticket: TuningTicket) -> Task | None:
        """Return a task that builds the library of an agreed kernel, as of a pinned one; None if that is not needed."""
        agreed = ticket.agreed
        return None if agreed is None else self._build_of(ticket, agreed.winner)

    def medians(self, ticket: TuningTicket) -> dict[str, float]:
        """Return milliseconds of every offered candidate with valid measurements."""
        return medians_of(ticket)

    def _pinned(self, ticket: TuningTicket) -> Verdict | None:
        if self._pins is None:
            return None
        here = self._environment, self.environment_fields
        return pinned(ticket, self._pins.absence(*here, ticket.problem.op, ticket.digest))

    def _build_of(self, ticket: TuningTicket, winner: str | None) -> Task | None:
        """Return a task that builds the library of a decided kernel; None if it has none, or it is in the cache.

        Inductor compiles the code it generates itself. An operator's library has to be there when the code runs.
        """
        offer = next((o for o in ticket.offers if o.candidate_id == winner), None)
        if offer is None or offer.kind != "template":
            return None
        entry = offer.entry()
        build = entry.build
        if not isinstance(build, CppBuild) or self._store.kernel(build.key.digest) is not None:
            return None
        return self._task_of(ticket, [entry], None, None, measured=False)

    def _task(
        self,
        ticket: TuningTicket,
        unseen: Sequence[CandidateOffer],
        check: NumberCheck | None,
        budget: Budget | None,
    ) -> Task:
        chosen = sorted([*raced_again(ticket, unseen), *unseen], key=lambda o: not o.library)
        compared = check if self._config.verify_numerics and has_reference(ticket) else None
        return self._task_of(ticket, [o.entry() for o in chosen], compared, budget)

    def _task_of(
        self,
        ticket: TuningTicket,
        entries: list[TaskCandidate],
        check: NumberCheck | None,
        budget: Budget | None,
        *,
        measured: bool = True,
    ) -> Task:
        measured &= self._config.policy == "tune"
        return Task(
            problem=ticket.problem,
            digest=ticket.digest,
            entries=entries,
            check=check,
            budget=budget,
            exclusive=on_host(ticket.problem.output.device) and measured,
            refresh=lambda task: self._refresh(ticket, task),
            finish=lambda task: self._finish(ticket, task),
            measured=measured,
            library_may_win=not unwanted_libraries(ticket.problem, self._config),
        )

    def _refresh(self, ticket: TuningTicket, task: Task) -> int:
        """Take over measurements of other processes since the ticket was created."""
        if ticket.agreed is not None:
            return 0
        record = self._store.record(self._environment, ticket.problem.op, ticket.digest)
        if record is None:
            return 0
        offered = {o.candidate_id: o for o in ticket.offers}
        fresh = {
            name: measured
            for name, measured in record.candidates.items()
            if name in offered
            and name not in ticket.measured
            and self._is_valid(ticket, offered[name], measured)
            # What was known before is why it is measured again.
            and (name not in ticket.void or measured.measured_at > ticket.created)
        }
        ticket.measured.update(fresh)
        before = len(task.entries)
        if not {e.candidate_id for e in task.entries} - set(ticket.measured):
            task.entries.clear()
        else:
            task.entries = [e for e in task.entries if e.candidate_id not in fresh or e.library]
        return before - len(task.entries)

    def _finish(self, ticket: TuningTicket, task: Task) -> None:
        """Turn outcomes into measurements, decide, and write the record."""
        if ticket.agreed is not None:  # by the ranks, meanwhile
            return
        offers = {o.candidate_id: o for o in ticket.offers}
        common = dict(self._provenance())
        for candidate in task.entries:
            require_reference(task, candidate)
            offer = offers[candidate.candidate_id]
            measured = measured_now(ticket, task, candidate, offer, self._config, common)
            ticket.measured[candidate.candidate_id] = measured
            if measured is ticket.recorded.get(candidate.candidate_id):
                continue
            # A library kernel is tried again: without it there is no reference and no guard.
            if not candidate.library:
                self._isolation.judge(ticket, measured)
        verdict = self.chosen(ticket) if task.measured else None
        fresh = {e.candidate_id for e in task.entries}
        margin = self._config.never_slower_margin
        merged = self._store.put_record(
            record_of(ticket, verdict, fresh, self._environment, margin)
        )
        if self._remote is not None and task.measured:
            self._remote.send(ticket.problem.op, ticket.digest)
        if ticket.agreed is None:  # else the ranks have decided while this was measured
            self._decide_again(ticket, merged)

    def _decide_again(self, ticket: TuningTicket, merged: Record) -> None:
        """Decide from the merged record, as all processes of a machine that share it."""
        for offer in ticket.offers:
            merged_row = merged.candidates.get(offer.candidate_id)
            if merged_row is not None and self._preferred(ticket, offer, merged_row):
                ticket.measured[offer.candidate_id] = merged_row
        ticket.reopen()
        self.chosen(ticket)  # not `decide`: ranks publish it for all graphs

    def _preferred(self, ticket: TuningTicket, offer: CandidateOffer, merged: Measured) -> bool:
        """Return True if the record's measurement of a candidate replaces that of this process.

        Not where this process saw it fail, or where its numbers were not checked: a clock that is ahead
        makes an old measurement the newer.
        """
        own = ticket.measured.get(offer.candidate_id)
        failed_here = own is not None and own.status not in NOT_FAILED
        if merged.status == "skipped" or (failed_here and merged.status in NOT_FAILED):
            return False
        return own is None or self._is_valid(ticket, offer, merged)

    def _is_valid(self, ticket: TuningTicket, offer: CandidateOffer, row: Measured) -> bool:
        return is_valid(row, self._config, library=offer.library, reference=ticket.has_library)
