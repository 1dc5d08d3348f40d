"""Which problems of a cache belong to a model, a graph or the last process, as far as the cache says so. Pure.

A record of a problem does not say which model it is from, and one problem may be in many. Four entries do: that of each compiled
graph has its program, its function and its problems, the record of a graph (option ``verify_graph``) the problems whose kernel it was
compared with, a pack the models and problems that it was compiled for, and the misses of the last process that had some are kept
(``explain --last``). What none of them says is in no group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from inductor_plugin.cache import Pack, Record, digest_of
from inductor_plugin.cache.graph import GraphEntry, choices_in
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.tuning.report.page.source import ProblemGroup

_SHORT = 8

_Origin = tuple[str, str]
"""The program and the function of a graph."""


def groups_of(
    records: Sequence[Record],
    packs: Sequence[Pack],
    misses: Mapping[str, Any] | None,
    compiled: Sequence[GraphEntry] = (),
) -> list[ProblemGroup]:
    """Return the groups of a cache: models, then graphs, then the last process; each group has a problem.

    Args:
        records: All of its records.
        packs: Its packs.
        misses: The misses of the last process that had some, as of `Store.misses`.
        compiled: Its entries of compiled graphs, the newest first.
    """
    functions = _functions(compiled)
    groups = [*_models(records, packs), *functions, *_parts(compiled, functions), *_graphs(records)]
    if misses is not None:
        groups.append(_process(misses))
    return [group for group in groups if group.places]


def _models(records: Sequence[Record], packs: Sequence[Pack]) -> list[ProblemGroup]:
    """Return the problems of each pack: the pack names them in words, so a kernel of the record has to be in it, too."""
    named: dict[str, list[Record]] = defaultdict(list)
    if packs:
        for record in records:
            named[record.describe].append(record)
    groups: list[ProblemGroup] = []
    for pack in packs:
        kernels = frozenset(pack.kernels)
        places = [
            record.place
            for problem in dict.fromkeys(pack.problems)
            for record in named[problem]
            if any(row.kernel in kernels for row in record.candidates.values())
        ]
        name = f"{', '.join(pack.models) or 'no model named'} for {pack.target}"
        groups.append(ProblemGroup("model", pack.name, name, tuple(places), at_s=pack.created))
    return groups


def _functions(compiled: Sequence[GraphEntry]) -> list[ProblemGroup]:
    """Return the problems of each function that a program compiled, of all of its graphs, as a model."""
    named = _by_origin(compiled)
    names = _names(named)
    return [
        ProblemGroup(
            "model",
            _key(origin),
            names[origin],
            tuple(dict.fromkeys(place for entry in own for place in entry.problems)),
            at_s=max(entry.compiled for entry in own),
        )
        for origin, own in named.items()
    ]


def _parts(compiled: Sequence[GraphEntry], functions: Sequence[ProblemGroup]) -> list[ProblemGroup]:
    """Return the graphs of functions that have several: forward and backward, other sizes, both sides of a graph break."""
    names = {function.key: function.name for function in functions}
    return [
        ProblemGroup(
            "graph",
            entry.digest,
            f"{entry.kind} {entry.digest[:_SHORT]}, {names[_key(origin)]}",
            entry.problems,
            at_s=entry.compiled,
        )
        for origin, own in _by_origin(compiled).items()
        for entry in own
        if len(own) > 1
    ]


def _by_origin(compiled: Sequence[GraphEntry]) -> dict[_Origin, list[GraphEntry]]:
    named: dict[_Origin, list[GraphEntry]] = defaultdict(list)
    for entry in compiled:
        named[entry.program, entry.function].append(entry)
    return named


def _key(origin: _Origin) -> str:
    return digest_of(dict(zip(("program", "function"), origin, strict=True)))[:16]


def _names(origins: Collection[_Origin]) -> dict[_Origin, str]:
    """Return the name of each origin: its program without folders, unless another has the same name then."""
    short = {origin: _origin_name(PurePath(origin[0]).name, origin[1]) for origin in origins}
    often = Counter(short.values())
    return {
        origin: name if often[name] == 1 else _origin_name(*origin)
        for origin, name in short.items()
    }


def _origin_name(program: str, function: str) -> str:
    program = program or "no program"
    return f"{function}, {program}" if function else program


def _graphs(records: Sequence[Record]) -> list[ProblemGroup]:
    """Return the problems of each graph that has a record; the newest graph first."""
    calls: dict[tuple[str, str], list[str]] = defaultdict(list)
    graphs = [record for record in records if record.op == GRAPH]
    if graphs:
        for record in records:
            calls[record.environment, record.digest].append(record.place)
    return [
        ProblemGroup(
            "graph",
            graph.digest,
            f"{graph.describe} {graph.digest[:_SHORT]}",
            tuple(
                place
                for digest in choices_in(graph)
                for place in calls.get((graph.environment, digest)) or (_absent(graph, digest),)
            ),
            graph.place,
            graph.updated,
        )
        for graph in sorted(graphs, key=lambda each: (-each.updated, each.place))
    ]


def _absent(graph: Record, digest: str) -> str:
    """Return a `Record.place` that no record has: the graph does not name the operator of a problem."""
    return f"{graph.environment}//{digest}"


def _process(misses: Mapping[str, Any]) -> ProblemGroup:
    program = PurePath(str(misses["program"] or "")).name
    name = f"{program or 'no program'}, process {misses['pid']}"
    places = (f"{row['environment']}/{row['op']}/{row['digest']}" for row in misses["misses"])
    unique = tuple(dict.fromkeys(places))
    return ProblemGroup("process", "last", name, unique, at_s=float(misses["time"]))
