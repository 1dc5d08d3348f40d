"""What is offered for a problem, and which of it is tried when not all can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inductor_plugin.tuning.candidate import CandidateId, Identified
from inductor_plugin.tuning.task import TaskCandidate


@dataclass(frozen=True)
class CandidateOffer(Identified):
    """One candidate as it is offered, before anything is spent on it.

    Attributes:
        identity: The candidate's identity.
        prepare: Makes what is compiled and measured, from the identity.
    """

    identity: CandidateId
    prepare: Callable[[CandidateId], TaskCandidate]

    def entry(self) -> TaskCandidate:
        """Return the candidate ready to be compiled and measured; costly, so only if it is unseen."""
        return self.prepare(self.identity)


def limited(offers: Sequence[CandidateOffer], limit: int) -> list[CandidateOffer]:
    """Return the library kernels and ``limit`` others, each family's best first; 0 keeps all.

    The families take turns: Inductor offers its own first, and would leave no room for ours.
    """
    others = [o for o in offers if not o.library]
    if not limit or len(others) <= limit:
        return list(offers)
    families: dict[str, list[CandidateOffer]] = {}
    for offer in others:
        families.setdefault(_family(offer), []).append(offer)
    turns = itertools.zip_longest(*families.values())
    in_turn = [offer for turn in turns for offer in turn if offer is not None]
    kept = {o.candidate_id for o in in_turn[:limit]}
    return [o for o in offers if o.library or o.candidate_id in kept]


def _family(offer: CandidateOffer) -> str:
    """Return what a candidate is a configuration of: Inductor's Triton texts share one name each."""
    return offer.name.partition("::")[0] if offer.kind in ("template", "triton") else offer.kind
