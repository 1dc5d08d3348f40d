"""What identifies a candidate: the same when it is offered, compiled, measured and recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CandidateId:
    """A candidate's identity.

    Attributes:
        candidate_id: Stable identity: name and digest.
        name: What people read in the AUTOTUNE table.
        kind: ``extern``, ``cpp``, ``triton``, ``subgraph``, ``sequence`` or ``template``.
        description: Configuration in words.
        library: True for a library kernel (ATen, oneDNN, MKL).
    """

    candidate_id: str
    name: str
    kind: str
    description: str
    library: bool = False


class Identified:
    """Something that has a candidate's identity, and hands its fields on."""

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
