"""``inductor_plugin.verify_ranks``: do all ranks run the same kernels, and if not, where do they first differ."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from inductor_plugin.errors import RankError
from inductor_plugin.tuning.ranks.code import first_difference
from inductor_plugin.tuning.ranks.job import Job, has_no_store, joined
from inductor_plugin.tuning.ranks.ledger import LEDGER, Ledger, RankGraph, Statement
from inductor_plugin.tuning.ranks.pace import Pace
from inductor_plugin.tuning.ranks.packing import packed, unpacked
from inductor_plugin.tuning.ranks.store import StoreLostError
from inductor_plugin.tuning.ranks.terms import device_of, differing, is_same_device

_POLL_S = 0.05
"""Seconds between the first two looks at the store; see `Pace` for the later ones."""
_MEETINGS = "verify/meetings"
"""Counts how often rank 0 has called: a rank that has missed a call comes to the next one, not to an old one."""
_Fact = tuple[str, ...]
"""Something that several ranks may have: its kind, and what names it."""


@dataclass(frozen=True)
class RankReport:
    """What `verify_ranks` has found.

    Attributes:
        ranks: Number of ranks that were compared.
        difference: The first difference, of the lowest rank that has one from a lower rank; empty if there is none.
        missing: Ranks that did not answer in time.
        alone: Number of graphs and decided problems that only one rank has, which were not compared.
    """

    ranks: int
    difference: str = ""
    missing: tuple[int, ...] = ()
    alone: int = 0

    @property
    def agree(self) -> bool:
        """Whether all ranks have answered, and run the same where several have the same graph or problem."""
        return not self.difference and not self.missing


def verify_ranks(timeout_s: float = 60.0) -> RankReport:
    """Compare the decisions and the generated code of all ranks so far; every rank calls this, outside of a compile.

    Each graph and problem is compared with that of the lowest rank that has it: in a pipeline, ranks have other layers. What only
    one rank has is not compared; the report has its number. Ranks meet in the job's store, not in a collective, so that
    one that does not come costs the time-out.

    Args:
        timeout_s: Seconds in which a rank is waited for.

    Returns:
        The report, the same on all ranks that compare within the time-out; one that comes later, or does not come, has another.

    Raises:
        RankError: ``torch.distributed`` is not initialized with two ranks or more, or its store is lost.
    """
    job = joined()
    if job is None:
        raise RankError(
            "verify_ranks needs a process group with a store: use gloo or nccl instead of mpi"
            if has_no_store()
            else "verify_ranks needs a job: call torch.distributed.init_process_group with two ranks or more"
        )
    try:
        return compare(job, LEDGER, timeout_s)
    except StoreLostError as error:
        raise RankError(f"ranks cannot be compared: the job's store is lost ({error})") from error


def compare(job: Job, ledger: Ledger, timeout_s: float) -> RankReport:
    """Say what this rank runs, and return what rank 0 has found in the statements of all ranks.

    Raises:
        StoreLostError: The store does not answer.
    """
    own, deadline = ledger.statement(), time.monotonic() + timeout_s
    if job.rank == 0:
        meeting = job.store.count(_MEETINGS, 0) + 1
        prefix = f"verify/{meeting}"
        _say(job, prefix, ledger, own, _codes(own))
        job.store.count(_MEETINGS, 1)
        report = _collected(job, prefix, deadline)
        job.store.put(f"{prefix}/report", packed(asdict(report)))
        return report
    meeting = _opened(job, deadline)
    if meeting is None:
        return RankReport(job.world, missing=(0,))
    prefix = f"verify/{meeting}"
    first = _statement(job, job.store.get(f"{prefix}/said/0") or "")
    _say(job, prefix, ledger, own, _codes(own) - _codes(first))
    # Rank 0 waits for the others as long as this one has waited for it.
    stored = _awaited(job, f"{prefix}/report", deadline + timeout_s)
    if stored is None:
        return RankReport(job.world, missing=(0,))
    fields = cast("dict[str, Any]", unpacked(stored))
    fields["missing"] = tuple(fields["missing"])
    return RankReport(**fields)


def compared(said: Mapping[int, Statement], text_of: Callable[[str], str]) -> tuple[str, int]:
    """Return the first difference between two ranks, empty if there is none, and how much only one rank has.

    Each graph and problem is compared with that of the lowest rank that has it; there may be none that all ranks have.

    Args:
        said: What each rank says.
        text_of: Returns the code with a digest.
    """
    holders: dict[_Fact, int] = {}
    counts: Counter[_Fact] = Counter()
    text = ""
    for rank, own in sorted(said.items()):
        facts = {*_facts(own), *_decided_on(own)}
        counts.update(_facts(own))
        for other in sorted({holders[fact] for fact in facts if fact in holders}):
            text = text or difference(own, said[other], rank, other, text_of)
        for fact in facts:
            holders.setdefault(fact, rank)
    return text, sum(count == 1 for count in counts.values())


def difference(
    own: Statement, other: Statement, rank: int, other_rank: int, text_of: Callable[[str], str]
) -> str:
    """Return the first difference between two ranks, empty if there is none.

    Args:
        own: What a rank says.
        other: What another one says.
        rank: The rank.
        other_rank: The other one.
        text_of: Returns the code with a digest.
    """
    for place, winner in sorted(own.winners.items()):
        theirs = other.winners.get(place, winner)
        if theirs != winner:
            name = own.names.get(place) or other.names.get(place) or place
            group = _group(place)
            fact = differing(own.terms.get(group, {}), other.terms.get(group, {}), rank, other_rank)
            why = f" ({fact})" if fact else ""
            return f"{name}: rank {rank} runs {winner}, rank {other_rank} runs {theirs}{why}"
    if apart := _apart(own, other, rank, other_rank):
        return apart
    ours, others = _by_outline(own.graphs), _by_outline(other.graphs)
    for number, graph in enumerate(own.graphs):
        here = ours[graph.outline] - others[graph.outline]
        there = others[graph.outline] - ours[graph.outline]
        if graph.code in here and there:  # else one rank has compiled it more often
            where = first_difference(text_of(graph.code), text_of(next(iter(there))))
            return f"graph {number} of rank {rank} has other code than rank {other_rank}: {where}"
    return ""


def _facts(said: Statement) -> set[_Fact]:
    """Return what ranks are compared by: decided problems and graphs."""
    return {
        *(("place", place) for place in said.winners),
        *(("graph", graph.outline) for graph in said.graphs),
    }


def _decided_on(said: Statement) -> set[_Fact]:
    """Return the problems with the kind of device on which they were decided, whatever the options."""
    return {
        ("problem", _problem(place), *device_of(said.terms.get(_group(place), {})))
        for place in said.winners
    }


def _apart(own: Statement, other: Statement, rank: int, other_rank: int) -> str:
    """Return the first problem that two ranks have decided under other terms; empty if there is none.

    Where one of the ranks has compiled something under the terms of the other, too, and they run the same kernel, it is none: a rank
    may compile more than another. Ranks with another GPU, whose times say nothing here, differ on purpose; whether their code does is seen below.
    """
    shared = {_problem(place) for place in own.winners if place in other.winners}
    there: defaultdict[str, list[str]] = defaultdict(list)
    for theirs in sorted(other.winners):
        there[_problem(theirs)].append(theirs)
    apart = (
        (p, t) for p in sorted(own.winners) if _problem(p) not in shared for t in there[_problem(p)]
    )
    for place, theirs in apart:
        here, beside = own.terms.get(_group(place)), other.terms.get(_group(theirs))
        knows = _group(place) in other.terms or _group(theirs) in own.terms
        is_same = own.winners[place] == other.winners[theirs]
        if here and beside and is_same_device(here, beside) and not (knows and is_same):
            name, why = own.names.get(place) or place, differing(here, beside, rank, other_rank)
            return f"{name}: rank {rank} and rank {other_rank} decide apart: {why}"
    return ""


def _group(place: str) -> str:
    return place.partition("/")[0]


def _problem(place: str) -> str:
    return place.partition("/")[2]


def _by_outline(graphs: Sequence[RankGraph]) -> Mapping[str, Counter[str]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for graph in graphs:
        counts[graph.outline][graph.code] += 1
    return counts


def _codes(said: Statement) -> set[str]:
    return {graph.code for graph in said.graphs}


def _say(job: Job, prefix: str, ledger: Ledger, own: Statement, codes: Iterable[str]) -> None:
    """Put what a rank says into the store, and code that rank 0 may not have.

    By their digests, and once: keys are never deleted, and who compares each epoch with a thousand ranks is not to fill the store.
    """
    for digest in codes:
        key = f"verify/code/{digest}"
        if not _is_there(job, key):
            _put(job, key, packed(ledger.text(digest)))
    fields = asdict(own)
    for name in ("winners", "names", "terms"):  # ranks come to them in another order
        fields[name] = dict(sorted(fields[name].items()))
    text = packed(fields)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if not _is_there(job, f"verify/statement/{digest}"):
        _put(job, f"verify/statement/{digest}", text)
    job.store.put(f"{prefix}/said/{job.rank}", digest)


def _is_there(job: Job, key: str) -> bool:
    """Return whether a key has its value; asked without reading it, which is long."""
    return job.store.get(f"{key}/there") is not None


def _put(job: Job, key: str, value: str) -> None:
    """Set a key that several ranks may set to the same value."""
    job.store.put(key, value)
    job.store.put(f"{key}/there", "1")


def _collected(job: Job, prefix: str, deadline: float) -> RankReport:
    digests = {rank: _awaited(job, f"{prefix}/said/{rank}", deadline) for rank in range(job.world)}
    unique = {digest: _statement(job, digest) for digest in {*filter(None, digests.values())}}
    said = {rank: unique[digest] for rank, digest in digests.items() if digest is not None}

    def text_of(digest: str) -> str:
        return str(unpacked(job.store.get(f"verify/code/{digest}") or packed("")))

    text, alone = compared(said, text_of)
    missing = tuple(rank for rank, digest in digests.items() if digest is None)
    return RankReport(len(said), text, missing, alone)


def _opened(job: Job, deadline: float) -> int | None:
    """Return the number of a comparison that rank 0 has begun and not ended; None if there is none in time."""
    for _ in _looks(job, deadline):
        meeting = job.store.count(_MEETINGS)
        if meeting and job.store.get(f"verify/{meeting}/report") is None:
            return meeting
    return None


def _awaited(job: Job, key: str, deadline: float) -> str | None:
    """Return a key's value as soon as it has one; None if that is not in time."""
    for _ in _looks(job, deadline):
        stored = job.store.get(key)
        if stored is not None:
            return stored
    return None


def _looks(job: Job, deadline: float) -> Iterator[None]:
    """Yield when it is time to look at the store: at once, less and less often then, and at the deadline for the last time."""
    pace = Pace(job.rank, job.world, _POLL_S)
    yield
    while (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(left_s, pace.ask(0.0, changed=False)))
        yield


def _statement(job: Job, digest: str) -> Statement:
    """Return the statement with a digest; an empty one where there is none."""
    stored = job.store.get(f"verify/statement/{digest}")
    if not stored:
        return Statement()
    fields = cast("dict[str, Any]", unpacked(stored))
    graphs = tuple(RankGraph(**graph) for graph in fields["graphs"])
    return Statement(fields["winners"], fields["names"], graphs, fields["terms"])
