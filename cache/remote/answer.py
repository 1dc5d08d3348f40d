"""What a remote said of one record."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cache.remote.chain import Chain


@dataclass(frozen=True)
class Answer:
    """What a remote said of one record.

    Attributes:
        chain: Its editions.
        hit: Whether it knew more than the cache.
        damage: Damaged objects, and why.
        refused: Why its winner's kernel may not run here, empty if it may.
        expired: Whether its winner's kernel is described, and no build of it has all its files any more.
        error: Why something could not be read; None if it could.
    """

    chain: Chain
    hit: bool = False
    damage: tuple[str, ...] = ()
    refused: str = ""
    expired: bool = False
    error: OSError | None = None
