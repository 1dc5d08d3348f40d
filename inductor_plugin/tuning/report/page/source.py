"""What a report is about, as values: caches, pin files and results of benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record
from inductor_plugin.errors import printable
from inductor_plugin.tuning.pins.pin import PinFile

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Holding:
    """How much of one kind a cache holds.

    Attributes:
        name: The kind: ``records``, ``kernels of triton_mm`` ...
        count: Number of entries.
        bytes: Their size.
    """

    name: str
    count: int
    bytes: int


@dataclass(frozen=True)
class CompiledGraphRow:
    """A graph that a process compiled.

    Attributes:
        name: Its number in the process, and its direction: ``1 forward``.
        places: Its problems, as of `Record.place`, in the order of their calls.
        known: How many had a record already.
        spent: Counters of the graph, as of `Stats.to_dict`.
        at_s: Time when it was decided, in seconds since 1970.
    """

    name: str
    places: tuple[str, ...]
    known: int
    spent: Mapping[str, float]
    at_s: float


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of a cache that belong together.

    Attributes:
        kind: What they are of: ``model``, ``graph`` or ``process``.
        key: Tells it from the other groups of its kind.
        name: Its name for people.
        places: Its problems, as of `Record.place`, whether they have a record or not.
        record: The record of the graph itself, as of `Record.place`; empty if there is none.
        at_s: Time of what the group was read from, in seconds since 1970.
    """

    kind: str
    key: str
    name: str
    places: tuple[str, ...]
    record: str = ""
    at_s: float = 0.0


@dataclass(frozen=True)
class CacheSource:
    """The content of a cache, or what one process used of it.

    Attributes:
        name: Its directory.
        records: Its records.
        environments: The fields of each environment, by digest.
        holdings: What it holds, by kind.
        counters: Hits, misses ... of all processes.
        quarantined: Candidates that are not tried again: name, status, reason.
        graphs: The graphs of a process, where the report is one of a process.
        groups: What the cache knows of models, graphs and the last process, where the report is one of a cache.
        option: What a command on a record of it ends with: ``--cache-dir DIR``, empty for the default directory.
    """

    name: str
    records: Sequence[Record]
    environments: Mapping[str, Fields]
    holdings: Sequence[Holding] = ()
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    quarantined: Sequence[tuple[str, str, str]] = ()
    graphs: Sequence[CompiledGraphRow] = ()
    groups: Sequence[ProblemGroup] = ()
    option: str = ""


@dataclass(frozen=True)
class PinSource:
    """The content of a pin file.

    Attributes:
        name: The file.
        content: Its pins.
    """

    name: str
    content: PinFile


@dataclass(frozen=True)
class BenchSource:
    """The JSON that a benchmark wrote.

    Attributes:
        name: The file.
        content: What is in it.
    """

    name: str
    content: Fields


Source = CacheSource | PinSource | BenchSource


def title(sources: Sequence[Source], between: str = " beside ") -> str:
    """Return the title of a page about these sources, on one line: of several, their paths without the folders they share.

    Args:
        sources: What the page is about.
        between: What is written between two names.
    """
    parts = [Path(printable(source.name)).parts for source in sources]
    shared = 0
    if len(parts) > 1:
        levels = zip(*(each[:-1] for each in parts), strict=False)
        shared = sum(itertools.takewhile(bool, (len(set(level)) == 1 for level in levels)))
    return between.join(str(Path(*each[shared:])) for each in parts)
