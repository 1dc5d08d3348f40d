"""Quarantine of a problem's candidates: which are excluded from its race, which are tried again, and which are added."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from inductor_plugin.cache import Measured, Store
from inductor_plugin.cache.quarantine import Quarantined, quarantine_name
from inductor_plugin.config import Config
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.measurement import NOT_FAILED, unmeasured
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import is_strict, keeps_out, was_crowded, was_limited

logger = logging.getLogger(__name__)


class Isolation:
    """The quarantine of one environment, under one configuration."""

    def __init__(self, config: Config, store: Store, environment: str, counters: Counters) -> None:
        """Keep candidates out of the races of ``environment``, and count them in ``counters``."""
        self._config = config
        self._store = store
        self._environment = environment
        self._counters = counters

    def among(self, offers: Sequence[CandidateOffer], digest: str) -> dict[str, Quarantined]:
        """Return the entries of offered candidates on a problem, by candidate.

        Candidates that an earlier version blamed for others' memory are released.
        """
        names = {quarantine_name(o.candidate_id, digest): o.candidate_id for o in offers}
        return {
            names[name]: row
            for name, row in self._store.quarantined_among(self._environment, names).items()
            if not (was_crowded(row) and self._store.release(self._environment, name))
        }

    def condemned(self, row: Quarantined | None) -> bool:
        """Return True if a candidate with this entry is not tried."""
        return row is not None and keeps_out(row, self._config)

    def without(
        self,
        ticket: TuningTicket,
        unseen: list[CandidateOffer],
        quarantined: Mapping[str, Quarantined],
    ) -> list[CandidateOffer]:
        """Drop candidates quarantined for this problem, keeping the reason."""
        remaining: list[CandidateOffer] = []
        for offer in unseen:
            row = quarantined.get(offer.candidate_id)
            if row is None or not self.condemned(row):
                remaining.append(offer)
                if row is not None:
                    ticket.on_probation.add(offer.candidate_id)
                continue
            ticket.measured[offer.candidate_id] = unmeasured(
                offer, row.status, row.reason, {}, row.created
            )
        return remaining

    def judge(self, ticket: TuningTicket, measured: Measured) -> None:
        """Quarantine a candidate that failed in its race; release one that was tried again and did not."""
        if measured.status not in NOT_FAILED:
            self._put(ticket, measured)
        elif measured.status == "ok" and measured.candidate in ticket.on_probation:
            name = quarantine_name(measured.candidate, ticket.digest)
            self._store.release(self._environment, name)

    def _put(self, ticket: TuningTicket, measured: Measured) -> None:
        """Record a failure; a count that a raised limit has made void begins anew."""
        name = quarantine_name(measured.candidate, ticket.digest)
        before = self._store.quarantined(self._environment, name)
        if before and was_limited(before.status, before.fields.get("limits"), self._config):
            self._store.release(self._environment, name)
        entry = self._store.quarantine(
            self._environment,
            name,
            {
                "candidate": measured.candidate,
                "problem": ticket.problem.describe(),
                "status": measured.status,
                "reason": measured.reason,
                "limits": measured.provenance.get("limits"),
                "check": measured.provenance.get("check"),
            },
            counts=not is_strict(measured.status, self._config),
        )
        again = not keeps_out(entry, self._config)
        self._counters.add(failed=1, quarantined=1)
        if ticket.task is not None:
            ticket.task.spent.add(failed=1, quarantined=1)
        logger.warning(
            "inductor-plugin: %s is not used for %s: %s (%s)%s",
            measured.name,
            ticket.problem.describe(),
            measured.status,
            measured.reason,
            "; the next process tries it once more" if again else "",
        )
