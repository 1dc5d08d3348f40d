"""Where results and caches of an arm are: in a folder for exactly these sources, this torch and these tests.

What other sources have left says nothing: a fault that is mended since would still be there, and a new one would not.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.sources import PLUGIN as SOURCES
from benchmarks.harness.sources import sources_digest
from benchmarks.pytorch.suite import ARMS, PLUGIN, Suite

_REASONS = "reasons.py"
"""It explains results, and decides none."""


@dataclass(frozen=True)
class Place:
    """The folders of one run.

    Attributes:
        tests: PyTorch's folder ``test/inductor``.
        copies: Where the copies are that name the CPU.
        arms: The folder of each arm.
    """

    tests: Path
    copies: Path
    arms: dict[str, Path]

    def folder(self, suite: Suite) -> Path:
        """Return where the file of a suite is."""
        return self.copies if suite.is_copied else self.tests

    def journal(self, arm: str, suite: Suite, shard: tuple[int, int], again: str = "") -> Path:
        """Return the file for the results of a shard.

        Args:
            arm: The arm.
            suite: The file.
            shard: Which of how many.
            again: What distinguishes it from the results of the first time.
        """
        index, count = shard
        return self.arms[arm] / f"{suite.name}{again}.{index}-{count}.jsonl"

    def journals(self, arm: str, suite: Suite, again: str = "") -> Iterable[Path]:
        """Return the files that there are, of all shards."""
        return self.arms[arm].glob(f"{suite.name}{again}.*.jsonl")


def place_in(work: Path, tests: Path) -> Place:
    """Return the folders of a run.

    Args:
        work: The folder for all runs.
        tests: PyTorch's folder ``test/inductor``.
    """
    digests = {arm: digest(tests, arm) for arm in ARMS}
    folders = {arm: work / f"{arm}-{digests[arm]}" for arm in ARMS}
    return Place(tests, work / f"tests-{digest(tests, '')}", folders)


def digest(tests: Path, arm: str) -> str:
    """Return 16 hexadecimal digits that change with whatever results of an arm depend on.

    Args:
        tests: PyTorch's folder ``test/inductor``.
        arm: The arm; that of the plugin depends on the plugin's sources, too.
    """
    known = hashlib.sha256()
    own = [str(file) for file in Path(__file__).parent.glob("*.py") if file.name != _REASONS]
    places = [*SOURCES, *own] if arm == PLUGIN else own
    facts = (version("torch"), sys.version, sources_digest(places))
    for fact in facts:
        known.update(f"{fact}\n".encode())
    for file in sorted(tests.glob("*.py")):
        known.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return known.hexdigest()[:16]
