"""The keys of a group of ranks in the store of their job.

GROUP/claim/PROBLEM         the rank that tunes it, the first to set this key, with its process and the part of that
GROUP/decision/PROBLEM      what the job has decided, by the first to set this key; it never changes
GROUP/refused/PROBLEM       the candidates that have failed, each with a rank on which it has
GROUP/tuners                counts those that measure, or did
GROUP/absent                counts ranks whose device measures nothing now
GROUP/decided               counts decisions, so that a rank that waits asks for a single number
GROUP/log/NUMBER            the problem of each decision, by that number, so that a rank that waits reads what is new
GROUP/beat/RANK             the rank's latest sign of life, while it tunes
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from inductor_plugin.cache.document import is_object
from inductor_plugin.tuning.ranks.agreed import Agreed, dump, load
from inductor_plugin.tuning.ranks.claim import FREE, Claim, parse
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.store import StoreLostError

_HOLE_S = 2.0
"""Seconds in which a rank that has counted a decision writes its problem into the log, unless it is dead or stopped."""
_MOST_NEW = 200
"""Entries of the log that are read at once: a rank that reads thousands gives no sign of life meanwhile."""


class Board:
    """What a rank reads and writes; each method raises `StoreLostError`."""

    def __init__(self, job: Job, group: str) -> None:
        """Use the keys of ``group``; nothing is asked of the store yet."""
        self._store = job.store
        self._group = group
        self._rank = job.rank
        self._roll = job.roll
        self._own = Claim(job.rank, job.token, job.roll.part())
        self._hole = 0, 0.0

    def decision(self, problem: str) -> str | None:
        """Return what the job has decided, None if nothing yet."""
        return self._store.get(self._key("decision", problem))

    def decide(self, problem: str, text: str) -> str:
        """Return what the job decides: ``text``, unless it has decided before."""
        stored = self._store.put_once(self._key("decision", problem), text)
        if stored == text:
            number = self._store.count(self._key("decided"), 1)
            self._store.put(self._key("log", str(number)), problem)
        return stored

    def decided(self) -> int:
        """Return a number that grows with each decision."""
        return self._store.count(self._key("decided"))

    def decided_since(self, seen: int, now: float) -> tuple[Sequence[str], int]:
        """Return problems that were decided, and how many decisions are read then.

        An entry that a rank did not live to write is left out after a while: a rank that waits for that problem has to ask for it.

        Args:
            seen: How many decisions have been read.
            now: The time.
        """
        last, names = min(self.decided(), seen + _MOST_NEW), list[str]()
        while seen < last:
            name = self._store.get(self._key("log", str(seen + 1)))
            if name is None and not self._is_old_hole(seen + 1, now):
                break  # its writer is between count and entry
            seen += 1
            names += [] if name is None else [name]
        return names, seen

    def _is_old_hole(self, number: int, now: float) -> bool:
        if self._hole[0] != number:
            self._hole = number, now
        return now - self._hole[1] > _HOLE_S

    def claim(self, problem: str) -> int | None:
        """Claim a problem; return the rank that tunes it, which may be another part of this process; None where this part does.

        A rank that was started again takes over what its former process has claimed: no other rank tunes that.
        """
        key = self._key("claim", problem)
        stored = self._store.put_once(key, self._own.text)
        while (holder := parse(stored)) is None or self._is_open(holder):
            if stored == self._own.text:
                return None
            stored = self._store.exchange(key, stored, self._own.text)
        return holder.rank

    def holder(self, problem: str) -> int | None:
        """Return the rank that is waited for, which may be another part of this process; None where this part may claim the problem."""
        claim = parse(self._store.get(self._key("claim", problem)) or FREE)
        return None if claim is None or self._is_open(claim) else claim.rank

    def _is_open(self, claim: Claim | None) -> bool:
        """Return whether a claim keeps this part from nothing: it was given back, is its own, or of a former process of this rank."""
        if claim is None or claim == self._own:
            return True
        return claim.rank == self._rank and claim.process != self._own.process

    def give_back(self, problem: str) -> None:
        """Let others claim a problem that this part of the process has claimed."""
        self._store.exchange(self._key("claim", problem), self._own.text, FREE)

    def tuners(self, change: int = 0) -> int:
        """Return how many ranks have announced that they measure; 1 counts this one in."""
        return self._store.count(self._key("tuners"), change)

    def absent(self) -> int:
        """Return how many ranks can measure nothing now."""
        return self._store.count(self._key("absent"))

    def report_absence(self, part: int, *, absent: bool) -> int:
        """Say whether a part of this process can measure nothing now, and return how many ranks say so; see `Roll.report_absence`."""
        change = self._roll.report_absence(self._group, part, absent=absent)
        return self._store.count(self._key("absent"), change)

    def refuse(self, problem: str, candidates: Collection[str]) -> None:
        """Say that candidates have failed on this rank."""
        key = self._key("refused", problem)
        stored = self._store.get(key) or ""
        while not {*candidates} <= _refusals(stored).keys():
            all_known = {**dict.fromkeys(candidates, self._rank), **_refusals(stored)}
            text = json.dumps(all_known, sort_keys=True, separators=(",", ":"))
            after = self._store.exchange(key, stored, text)
            if after == text:
                return
            stored = after

    def refusal(self, problem: str, candidate: str) -> int | None:
        """Return a rank on which a candidate has failed, None if there is none."""
        return _refusals(self._store.get(self._key("refused", problem)) or "").get(candidate)

    def beat(self, text: str) -> None:
        """Give a sign of life."""
        self._store.put(self._key("beat", str(self._rank)), text)

    def beat_of(self, rank: int) -> str | None:
        """Return a rank's latest sign of life, None if it has given none."""
        return self._store.get(self._key("beat", str(rank)))

    def _key(self, kind: str, *names: str) -> str:
        return "/".join((self._group, kind, *names))


def _refusals(stored: str) -> Mapping[str, int]:
    """Return the candidates that a value names, each with its rank; none where it is damaged."""
    try:
        fields: object = json.loads(stored)
    except ValueError:
        return {}
    if not is_object(fields):
        return {}
    return {name: rank for name, rank in fields.items() if isinstance(rank, int)}


def publish(job: Job, group: str, problem: str, own: Agreed) -> Agreed | None:
    """Return what a job decides about a problem whose decision is known: ``own``, unless there is one; None without its store.

    Args:
        job: The job.
        group: The name of the group.
        problem: Operator and digest.
        own: The decision that is known.
    """
    try:
        return load(Board(job, group).decide(problem, dump(own)))
    except (StoreLostError, ValueError):
        return None
