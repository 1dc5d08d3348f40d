"""Candidates offered for a problem, and their limit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inductor_plugin.tuning.candidate import CandidateId, Identified
from inductor_plugin.tuning.task import TaskCandidate


@dataclass(frozen=True)
class CandidateOffer(Identified):
    """A candidate as offered, before anything is compiled or measured.

    Attributes:
        identity: The candidate's identity.
        prepare: Creates the candidate to compile and measure, from the identity.
    """

    identity: CandidateId
    prepare: Callable[[CandidateId], TaskCandidate]

    def entry(self) -> TaskCandidate:
        """Return the candidate to compile and measure; costly, so only for new candidates."""
        return self.prepare(self.identity)


def limited(
    offers: Sequence[CandidateOffer], limit: int, pinned: str | None = None
) -> list[CandidateOffer]:
    """Return the library kernels and ``limit`` others, each family's most promising first; 0 keeps all.

    The families take turns: Inductor offers its own candidates first, which would use up the limit.

    Args:
        offers: The candidates.
        limit: Most candidates besides the library kernels.
        pinned: A candidate that is kept in any case.
    """
    others = [o for o in offers if not o.library]
    if not limit or len(others) <= limit:
        return list(offers)
    families: dict[str, list[CandidateOffer]] = {}
    for offer in others:
        families.setdefault(_family(offer), []).append(offer)
    turns = itertools.zip_longest(*families.values())
    in_turn = [offer for turn in turns for offer in turn if offer is not None]
    kept = {pinned, *(o.candidate_id for o in in_turn[:limit])}
    return [o for o in offers if o.library or o.candidate_id in kept]


def _family(offer: CandidateOffer) -> str:
    """Return the template a candidate is a configuration of, or its kind."""
    return offer.name.partition("::")[0] if offer.kind in ("template", "triton") else offer.kind
