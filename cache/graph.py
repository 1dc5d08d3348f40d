"""A compiled graph in the cache: the entry that its compile leaves, and what the record of one that was compared says.

An entry says which program and function a graph is of, and which problems it has; nothing is decided by it, and it stays in its
cache. The record of a graph (option ``verify_graph``) decides what the graph gives up, so it is merged, exported and pinned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.document import is_object, list_of, moment, table_of, text, typed
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.guard import exists, is_folder, read
from inductor_plugin.cache.key import SCHEMA, digest_of
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.record import Record

TUNED = "tuned"
"""The candidate that is the graph as it was tuned."""
LIBRARY = "library"
"""The candidate that is the graph with library kernels alone."""
_LESS = "tuned, less "
_SHORT = 12
CHOICES = "choices"
"""Field of its provenance with the winner of each problem, by the problem's digest; library kernels are not in it."""
MOST_GRAPHS = 500
"""Entries that a cache keeps, the last ones."""
MOST_PROBLEMS = 500
"""Problems that an entry names, the first ones: 38 kB."""
_KEPT = 450
"""Entries that stay when there are more than `MOST_GRAPHS`, so that not every compile looks how old they are."""


def choices_in(record: Record) -> Mapping[str, str]:
    """Return the winner of each problem, by the problem's digest, that the record's graph was compared with."""
    tuned = record.candidates.get(TUNED)
    choices: object = tuned.provenance.get(CHOICES) if tuned is not None else None
    return choices if is_object(choices) else {}


@dataclass(frozen=True)
class HeldProblems:
    """Problems of a graph whose library kernel runs.

    Attributes:
        digests: The first characters of their digests.
        everything: True for all problems of the graph.
    """

    digests: frozenset[str] = frozenset()
    everything: bool = False

    def __contains__(self, problem_digest: object) -> bool:
        """Return True if a problem is held."""
        return self.everything or str(problem_digest)[:_SHORT] in self.digests

    @property
    def candidate(self) -> str:
        """The name of the graph with these problems held, as a candidate of its record."""
        if self.everything:
            return LIBRARY
        return _LESS + " ".join(sorted(self.digests)) if self.digests else TUNED


def held(digests: Iterable[str]) -> HeldProblems:
    """Return the problems with these digests, held."""
    return HeldProblems(frozenset(digest[:_SHORT] for digest in digests))


def held_by(winner: str | None) -> HeldProblems:
    """Return which problems the winner of a graph's record, or pin, holds."""
    if winner is None:
        return HeldProblems()
    if winner == LIBRARY:
        return HeldProblems(everything=True)
    return held(winner.removeprefix(_LESS).split()) if winner.startswith(_LESS) else HeldProblems()


def held_in(graph: Record | None) -> HeldProblems:
    """Return which problems the record of a graph holds: those that it was compared with, also where all library kernels stay.

    A graph of dynamic sizes has other problems at other sizes, and a graph may get others after a new measurement: of these
    the record knows nothing.
    """
    if graph is None or graph.decision is None:
        return HeldProblems()
    known, choices = held_by(graph.decision.winner), choices_in(graph)
    return held(choices) if known.everything and choices else known


def gives_up(graph: Record, problem_digest: str) -> bool:
    """Return True if a graph's record says that the library kernel of one of its problems runs in it, and the winner alone does not.

    Args:
        graph: The record of a graph.
        problem_digest: Digest of the problem, of the same environment.
    """
    return problem_digest in choices_in(graph) and problem_digest in held_in(graph)


@dataclass(frozen=True)
class GraphEntry:
    """Where a compiled graph is from, and which problems it has.

    Attributes:
        program: The program, as in ``sys.argv``; empty if there is none.
        function: The function that was compiled, with its class; empty if the graph does not say.
        kind: ``forward``, ``backward`` or ``inference``.
        problems: Its problems, as of `Record.place`.
        compiled: Time of the compile, in seconds since 1970.
    """

    program: str
    function: str
    kind: str
    problems: tuple[str, ...]
    compiled: float

    @property
    def digest(self) -> str:
        """The same for each compile of the graph, which so has one entry."""
        origin = {"program": self.program, "function": self.function, "kind": self.kind}
        return digest_of({**origin, "problems": sorted(self.problems)})

    def fields(self) -> dict[str, Any]:
        """Return it as plain JSON values: problems by environment, whose digest would be in each of them."""
        problems: dict[str, list[str]] = {}
        for place in self.problems:
            environment, _, rest = place.partition("/")
            problems.setdefault(environment, []).append(rest)
        return {
            "format": SCHEMA,
            "program": self.program,
            "function": self.function,
            "kind": self.kind,
            "compiled": self.compiled,
            "problems": problems,
        }


def parse_graph(data: bytes, path: Path) -> GraphEntry:
    """Return the entry in a file's bytes.

    Raises:
        ForeignError: The file is of another format.
        ValueError: It is damaged, or has another graph's name.
    """
    fields = document.load(data)
    document.check_format(fields, SCHEMA)
    values = typed(fields, _ENTRY)
    named: dict[str, tuple[str, ...]] = values.pop("problems")
    places = tuple(f"{environment}/{rest}" for environment in named for rest in named[environment])
    if any(place.count("/") != 2 for place in places):
        raise ValueError("its problems: one is no place of a record")
    entry = GraphEntry(**values, problems=places)
    if entry.digest != path.stem:
        raise ValueError("it lies under the name of another graph")
    return entry


def graph_files(graphs: Path) -> list[Path]:
    """Return the files of entries, sorted; empty if the folder does not exist."""
    return sorted(graphs.glob("*.json")) if is_folder(graphs) else []


def graphs_without_records(layout: Layout, removed: Collection[str]) -> list[Path]:
    """Return the files of entries none of whose problems has a record; those that cannot be read are not among them.

    Args:
        layout: The cache.
        removed: Files of records that count as gone.
    """
    lost: list[Path] = []
    for path in graph_files(layout.graphs):
        with suppress(OSError, ValueError):
            places = (place.split("/") for place in parse_graph(read(path), path).problems)
            files = (layout.record(environment, op, digest) for environment, op, digest in places)
            if not any(str(file) not in removed and exists(file) for file in files):
                lost.append(path)
    return lost


class GraphShelf:
    """The entries of compiled graphs in one cache directory."""

    def __init__(self, folder: Folder) -> None:
        """Keep entries in ``folder``."""
        self._folder = folder

    @property
    def is_kept(self) -> bool:
        """Whether entries are written: not without a disk, nor where it is only read."""
        return self._folder.degraded is None

    def put(self, entry: GraphEntry) -> None:
        """Keep the entry of a graph, in place of that of an earlier compile; dropped if writing fails. Takes less than a millisecond."""
        if not self.is_kept:
            return
        path = self._folder.layout.graph(entry.digest)
        is_new = not exists(path)
        if self._folder.write(path, entry.fields()):
            self._folder.forget_damage(path)
            if is_new:
                _drop_oldest(path.parent)

    def everything(self) -> list[GraphEntry]:
        """Return all entries, the newest first; damaged ones are reported and skipped."""
        files = graph_files(self._folder.layout.graphs)
        entries = (self._folder.parsed(file, parse_graph) for file in files)
        known = [entry for entry in entries if entry is not None]
        return sorted(known, key=lambda entry: (-entry.compiled, entry.digest))


def _drop_oldest(graphs: Path) -> None:
    """Remove entries above the limit, those that were written first."""
    with suppress(OSError):
        if len(os.listdir(graphs)) <= MOST_GRAPHS:  # noqa: PTH208 - names alone, 0.1 ms
            return
        with os.scandir(graphs) as files:
            aged = sorted((file.stat().st_mtime_ns, file.path) for file in files)
        for _, place in aged[:-_KEPT]:
            with suppress(OSError):
                Path(place).unlink()


_ENTRY: Mapping[str, Callable[[Any], Any]] = {
    "program": text,
    "function": text,
    "kind": text,
    "compiled": moment,
    "problems": table_of(list_of(text)),
}
