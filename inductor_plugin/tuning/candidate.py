"""The identity of a candidate, used when it is offered, compiled, measured and recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CandidateId:
    """A candidate's identity.

    Attributes:
        candidate_id: Stable identity: name and digest.
        name: Name shown in the AUTOTUNE table.
        kind: ``extern``, ``cpp``, ``triton``, ``subgraph``, ``sequence`` or ``template``.
        description: Its configuration, for people.
        library: True for a library kernel (ATen, oneDNN, MKL).
        template: The registered template it is of; empty for a library kernel and for Inductor's own.
    """

    candidate_id: str
    name: str
    kind: str
    description: str
    library: bool = False
    template: str = ""


class Identified:
    """Base of classes with a candidate's identity; exposes the fields of the identity."""

    identity: CandidateId

    @property
    def candidate_id(self) -> str:
        """See `CandidateId`."""
        return self.identity.candidate_id

    @property
    def name(self) -> str:
        """See `CandidateId`."""
        return self.identity.name

    @property
    def kind(self) -> str:
        """See `CandidateId`."""
        return self.identity.kind

    @property
    def description(self) -> str:
        """See `CandidateId`."""
        return self.identity.description

    @property
    def library(self) -> bool:
        """See `CandidateId`."""
        return self.identity.library
