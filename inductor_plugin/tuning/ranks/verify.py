"""``inductor_plugin.verify_ranks``: do all ranks run the same kernels, and if not, where do they first differ."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from inductor_plugin.config import Config
from inductor_plugin.errors import RankError
from inductor_plugin.tuning.ranks.code import first_difference
from inductor_plugin.tuning.ranks.job import Job, joined
from inductor_plugin.tuning.ranks.ledger import LEDGER, Ledger, RankGraph, Statement
from inductor_plugin.tuning.ranks.packing import packed, unpacked
from inductor_plugin.tuning.ranks.store import StoreLostError
from inductor_plugin.tuning.ranks.terms import differing, is_same_device

_POLL_S = 0.05
_MEETINGS = "verify/meetings"
"""Counts how often rank 0 has called: a rank that has missed a call comes to the next one, not to an old one."""


@dataclass(frozen=True)
class RankReport:
    """What `verify_ranks` has found.

    Attributes:
        ranks: Number of ranks that were compared.
        difference: The first difference from rank 0, of the lowest rank that has one; empty if there is none.
        missing: Ranks that did not answer in time.
    """

    ranks: int
    difference: str = ""
    missing: tuple[int, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether all ranks have answered, and run the same."""
        return not self.difference and not self.missing


def verify_ranks(timeout_s: float = 60.0) -> RankReport:
    """Compare the decisions and the generated code of all ranks so far; every rank calls this, outside of a compile.

    Graphs that only some ranks have compiled are not compared: in a pipeline, ranks have other layers. Ranks meet
    in the job's store, not in a collective, so that one that does not come costs the time-out.

    Args:
        timeout_s: Seconds in which a rank is waited for.

    Returns:
        The report, the same on all ranks.

    Raises:
        RankError: ``torch.distributed`` is not initialized with two ranks or more, or its store is lost.
    """
    job = joined(Config.load())
    if job is None:
        raise RankError(
            "verify_ranks needs a job: call torch.distributed.init_process_group with two ranks or more"
        )
    try:
        return compare(job, LEDGER, timeout_s)
    except StoreLostError as error:
        raise RankError(f"ranks cannot be compared: the job's store is lost ({error})") from error


def compare(job: Job, ledger: Ledger, timeout_s: float) -> RankReport:
    """Compare a rank with rank 0, and return what all ranks have found.

    Raises:
        StoreLostError: The store does not answer.
    """
    own, deadline = ledger.statement(), time.monotonic() + timeout_s
    if job.rank == 0:
        meeting = job.store.count(_MEETINGS, 0) + 1
        prefix = f"verify/{meeting}"
        for digest in {graph.code for graph in own.graphs}:
            # Keys are never deleted: who compares each epoch is not to fill the store.
            job.store.put(f"verify/code/{digest}", packed(ledger.text(digest)))
        job.store.put(f"{prefix}/first", packed(asdict(own)))
        job.store.count(_MEETINGS, 1)
        report = _collected(job, prefix, deadline)
        job.store.put(f"{prefix}/report", packed(asdict(report)))
        return report
    meeting = _opened(job, deadline)
    if meeting is None:
        return RankReport(job.world, missing=(0,))
    prefix = f"verify/{meeting}"
    first = _statement(unpacked(job.store.get(f"{prefix}/first") or ""))

    def text_of(digest: str) -> str:
        return str(unpacked(job.store.get(f"verify/code/{digest}") or packed("")))

    mismatch = difference(own, first, job.rank, ledger.text, text_of)
    job.store.put(f"{prefix}/found/{job.rank}", packed(mismatch))
    # Rank 0 waits for the others as long as this one has waited for it.
    stored = _awaited(job, f"{prefix}/report", deadline + timeout_s)
    if stored is None:
        return RankReport(job.world, mismatch, missing=(0,))
    fields = cast("dict[str, Any]", unpacked(stored))
    fields["missing"] = tuple(fields["missing"])
    return RankReport(**fields)


def difference(
    own: Statement,
    first: Statement,
    rank: int,
    own_text: Callable[[str], str],
    first_text: Callable[[str], str],
) -> str:
    """Return the first difference between a rank and rank 0, empty if there is none.

    Args:
        own: What the rank says.
        first: What rank 0 says.
        rank: The rank.
        own_text: Returns the rank's code with a digest.
        first_text: Returns rank 0's.
    """
    for place, winner in sorted(own.winners.items()):
        other = first.winners.get(place, winner)
        if other != winner:
            name = own.names.get(place) or first.names.get(place) or place
            fact = differing(
                own.terms.get(_group(place), {}), first.terms.get(_group(place), {}), rank, 0
            )
            why = f" ({fact})" if fact else ""
            return f"{name}: rank {rank} runs {winner}, rank 0 runs {other}{why}"
    if apart := _apart(own, first, rank):
        return apart
    mine, theirs = _by_problems(own.graphs), _by_problems(first.graphs)
    for number, graph in enumerate(own.graphs):
        here = mine[graph.problems] - theirs[graph.problems]
        there = theirs[graph.problems] - mine[graph.problems]
        if graph.code in here and there:  # else one rank has compiled it more often
            where = first_difference(own_text(graph.code), first_text(next(iter(there))))
            return f"graph {number} of rank {rank} has other code than rank 0: {where}"
    return ""


def _apart(own: Statement, first: Statement, rank: int) -> str:
    """Return the first problem that two ranks have decided under other terms, which neither shares; empty if there is none.

    Ranks with another GPU, whose times say nothing here, differ on purpose; whether their code does is seen below.
    """
    there = {_problem(place): place for place in first.winners if _group(place) not in own.terms}
    for place in sorted(own.winners):
        other = there.get(_problem(place))
        if other is None or _group(place) in first.terms:
            continue
        mine, theirs = own.terms.get(_group(place)), first.terms.get(_group(other))
        if mine and theirs and is_same_device(mine, theirs):
            name, why = own.names.get(place) or place, differing(mine, theirs, rank, 0)
            return f"{name}: rank {rank} and rank 0 decide apart: {why}"
    return ""


def _group(place: str) -> str:
    return place.partition("/")[0]


def _problem(place: str) -> str:
    return place.partition("/")[2]


def _by_problems(graphs: Sequence[RankGraph]) -> Mapping[str, Counter[str]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for graph in graphs:
        counts[graph.problems][graph.code] += 1
    return counts


def _collected(job: Job, prefix: str, deadline: float) -> RankReport:
    answers = {
        rank: _awaited(job, f"{prefix}/found/{rank}", deadline) for rank in range(1, job.world)
    }
    texts = [str(unpacked(stored)) for stored in answers.values() if stored is not None]
    missing = tuple(rank for rank, stored in answers.items() if stored is None)
    return RankReport(job.world - len(missing), next(filter(None, texts), ""), missing)


def _opened(job: Job, deadline: float) -> int | None:
    """Return the number of a comparison that rank 0 has begun and not ended; None if there is none in time."""
    while True:
        meeting = job.store.count(_MEETINGS)
        if meeting and job.store.get(f"verify/{meeting}/report") is None:
            return meeting
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)


def _awaited(job: Job, key: str, deadline: float) -> str | None:
    """Return a key's value as soon as it has one; None if that is not in time."""
    while (stored := job.store.get(key)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return stored


def _statement(fields: Any) -> Statement:
    graphs = tuple(RankGraph(**graph) for graph in fields["graphs"])
    return Statement(fields["winners"], fields["names"], graphs, fields["terms"])
