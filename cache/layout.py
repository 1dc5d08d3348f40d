"""Paths inside a cache directory."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_SAFE = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.+-]{0,127}")


def place_of(environment: str, op: str, digest: str) -> str:
    """Return the full name of what an environment knows of a problem; the two are named by their digests."""
    return f"{environment}/{op}/{digest}"


@dataclass(frozen=True)
class Layout:
    """The paths below a cache directory.

    Attributes:
        root: The cache directory.
    """

    root: Path

    @property
    def schema(self) -> Path:
        """The file with the format's number."""
        return self.root / "schema.json"

    @property
    def counters(self) -> Path:
        """The file with hits, misses and other sums over processes."""
        return self.root / "counters.json"

    @property
    def misses(self) -> Path:
        """The file with the misses of the process that had some last."""
        return self.root / "misses.json"

    @property
    def kernels(self) -> Path:
        """The folder of compiled kernels."""
        return self.root / "kernels"

    @property
    def records(self) -> Path:
        """The folder of timings and decisions."""
        return self.root / "records"

    @property
    def quarantined(self) -> Path:
        """The folder of candidates that misbehaved."""
        return self.root / "quarantine"

    @property
    def graphs(self) -> Path:
        """The folder of compiled graphs: which program and function each is of, and which problems it has."""
        return self.root / "graphs"

    @property
    def packs(self) -> Path:
        """The folder of packs: lists of kernels that were compiled ahead of time together."""
        return self.root / "packs"

    @property
    def installed(self) -> Path:
        """The folder of markers: packs from wheels that were imported."""
        return self.root / "packs-installed"

    @property
    def damaged(self) -> Path:
        """The folder of damaged entries that `verify --repair` has set aside."""
        return self.root / "damaged"

    @property
    def locks(self) -> Path:
        """The folder of lock files."""
        return self.root / "locks"

    @property
    def private(self) -> Path:
        """The folder of unfinished files; a killed process leaves some, `prune` sweeps them."""
        return self.root / "private"

    def kernel(self, digest: str) -> Path:
        """Return the folder of one kernel."""
        name = part(digest)
        return self.kernels / name[:2] / name

    def record(self, environment: str, op: str, digest: str) -> Path:
        """Return the file of one problem."""
        names = part(environment), part(op), f"{part(digest)}.json"
        return self.records.joinpath(*names)

    def environment(self, digest: str) -> Path:
        """Return the file with an environment's fields."""
        return self.records / part(digest) / "environment.json"

    def quarantine(self, environment: str, candidate: str) -> Path:
        """Return the file of one candidate that misbehaved."""
        return self.quarantined / part(environment) / f"{part(candidate)}.json"

    def graph(self, digest: str) -> Path:
        """Return the file of one compiled graph."""
        return self.graphs / f"{part(digest)}.json"

    def pack(self, name: str) -> Path:
        """Return the file of one pack."""
        return self.packs / f"{part(name)}.json"

    def lock(self, name: str) -> Path:
        """Return the lock file of a key."""
        return self.locks / f"{part(name)}.lock"


@functools.lru_cache(maxsize=4096)
def part(name: str) -> str:
    """Return a name as one component of a path: itself if it is safe, else a digest."""
    if _SAFE.fullmatch(name):
        return name
    return "_" + hashlib.sha256(name.encode()).hexdigest()
