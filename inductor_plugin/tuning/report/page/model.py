"""The content of a report page, as plain JSON values. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from inductor_plugin.cache import Record
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.errors import printable
from inductor_plugin.tuning.pins.pin import environment_name
from inductor_plugin.tuning.report.page.bench import MOST_ROWS, bench
from inductor_plugin.tuning.report.page.candidates import CANDIDATE, Detail, detail_of
from inductor_plugin.tuning.report.page.comparison import compared
from inductor_plugin.tuning.report.page.rows import RECORD, Tables, pin_row, record_row
from inductor_plugin.tuning.report.page.source import (
    BenchSource,
    CacheSource,
    CompiledGraphRow,
    PinSource,
    ProblemGroup,
    Source,
)
from inductor_plugin.tuning.report.page.summary import summary_of_pins, summary_of_records
from inductor_plugin.tuning.report.page.texts import Texts
from inductor_plugin.tuning.report.page.timeline import timeline
from inductor_plugin.tuning.report.page.work import Peak, peak_of
from inductor_plugin.version import __version__

VERSION = 1
"""Number of the form of this content."""
_KEY = 16


def page_model(
    sources: Sequence[Source],
    trace: Any = None,
    now: float = 0.0,
    figures: Callable[[Mapping[str, Any]], Peak | None] = peak_of,
    *,
    compares: bool = True,
) -> dict[str, Any]:
    """Return what a page shows of one source, or of several.

    Args:
        sources: What it is about.
        trace: The content of a trace file, if there is one.
        now: The time, in seconds since 1970.
        figures: Returns the peaks of an environment's device, None if they are not known.
        compares: Whether two sources are compared: not the caches of one process, which have different problems.

    Raises:
        CacheError: The trace is none.
    """
    tables = Tables.empty()
    fields = _environments(sources)
    peaks = {digest: peak for digest, each in fields.items() if (peak := figures(each))}
    caches = [source for source in sources if isinstance(source, CacheSource)]
    detail = detail_of(record for cache in caches for record in cache.records)
    rows: list[list[Any]] = []
    places: list[list[tuple[str, str, str]]] = []
    listed: list[dict[str, Any]] = []
    for index, source in enumerate(sources):
        own, named = _rows(source, index, tables, peaks, detail)
        listed.append(_source(source, named, len(rows), tables.texts))
        rows += own
        places.append(named)
    alike, left_out = _compared(sources)
    is_paired = compares and len(sources) == 2 and not any(map(_is_bench, sources))
    model: dict[str, Any] = {
        "version": VERSION,
        "plugin": __version__,
        "created": int(now),
        "sources": listed,
        "columns": {"record": RECORD, "candidate": CANDIDATE},
        "detail": asdict(detail),
        "records": rows,
        "pairs": _pairs(places) if is_paired else None,
        "compared": None if alike is None else alike[:MOST_ROWS],
        "compared_left_out": left_out + max(0, len(alike or ()) - MOST_ROWS),
        "timeline": None if trace is None else timeline(trace, tables.texts),
        "environments": [
            _environment(digest, fields.get(digest, {}), peaks.get(digest))
            for digest in tables.environments.values
        ],
        "forms": tables.forms.forms.values,
        "outcomes": tables.forms.outcomes.values,
        "refusals": tables.refusals.values,
    }
    return {**model, "texts": tables.texts.values}


def _environments(sources: Sequence[Source]) -> dict[str, Mapping[str, Any]]:
    fields: dict[str, Mapping[str, Any]] = {}
    for source in sources:
        if isinstance(source, PinSource):
            fields |= source.content.environments
        elif isinstance(source, CacheSource):
            fields |= source.environments
    return fields


def _rows(
    source: Source, index: int, tables: Tables, peaks: Mapping[str, Peak], detail: Detail
) -> tuple[list[list[Any]], list[tuple[str, str, str]]]:
    """Return the rows of a source, and the environment, operator and digest of each."""
    if isinstance(source, CacheSource):
        rows = [record_row(record, index, tables, peaks, detail) for record in source.records]
        return rows, [_place(record) for record in source.records]
    if isinstance(source, PinSource):
        pins = list(source.content.pins.values())
        rows = [pin_row(pin, index, tables, peaks) for pin in pins]
        return rows, [(pin.environment, pin.op, pin.digest) for pin in pins]
    return [], []


def _place(record: Record) -> tuple[str, str, str]:
    return record.environment, record.op, record.digest


def _source(
    source: Source, named: Sequence[tuple[str, str, str]], first: int, texts: Texts
) -> dict[str, Any]:
    """Return what the page says of a source besides its rows, which begin at ``first``."""
    name = texts.place(source.name)
    if isinstance(source, BenchSource):
        return {"kind": "bench", "name": name, **bench(source.content)}
    if isinstance(source, PinSource):
        summary = summary_of_pins(list(source.content.pins.values()))
        return {"kind": "pins", "name": name, "summary": summary.fields()}
    at = {"/".join(place): first + index for index, place in enumerate(named)}
    return {
        "kind": "cache",
        "name": name,
        "option": texts.place(source.option),
        "summary": summary_of_records(source.records).fields(),
        "holdings": [[texts.place(h.name), h.count, h.bytes] for h in source.holdings],
        "counters": dict(source.counters),
        "quarantined": [[texts.place(text) for text in row] for row in source.quarantined],
        "graphs": [_graph(graph, at, texts) for graph in source.graphs],
        "groups": [_group(group, at, texts) for group in source.groups],
    }


def _graph(graph: CompiledGraphRow, at: Mapping[str, int], texts: Texts) -> dict[str, Any]:
    return {
        "name": texts.place(graph.name),
        "records": [at[place] for place in graph.places if place in at],
        "known": graph.known,
        "spent": {name: round(value, 3) for name, value in graph.spent.items() if value},
        "at": int(graph.at_s),
    }


def _group(group: ProblemGroup, at: Mapping[str, int], texts: Texts) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "key": printable(group.key[:_KEY] if group.kind == GRAPH else group.key),
        "name": texts.place(group.name),
        "records": [at[place] for place in group.places if place in at],
        "record": at.get(group.record, -1),
        "total": len(group.places),
        "at": int(group.at_s),
    }


def _is_bench(source: Source) -> bool:
    """Return whether a source has no problems to compare."""
    return isinstance(source, BenchSource)


def _pairs(places: Sequence[Sequence[tuple[str, str, str]]]) -> list[list[int]]:
    """Return the rows of two sources that are about the same problem, -1 where a source lacks it.

    Those of the same environment belong together; what is left of a problem is paired in its order, since two sources of
    different machines or versions of torch have no environment in common.
    """
    lefts, rights = places
    first = len(lefts)
    same = {place: first + index for index, place in enumerate(rights)}
    pairs = [[index, same.pop(place)] for index, place in enumerate(lefts) if place in same]
    paired = {left for left, _ in pairs}
    others: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (_, op, digest), index in same.items():
        others[op, digest].append(index)
    for index, (_, op, digest) in enumerate(lefts):
        if index not in paired:
            rest = others[op, digest]
            pairs.append([index, rest.pop(0) if rest else -1])
    return pairs + [[-1, index] for rest in others.values() for index in rest]


def _compared(sources: Sequence[Source]) -> tuple[list[list[Any]] | None, int]:
    results = [source.content for source in sources if isinstance(source, BenchSource)]
    return compared(*results) if len(results) == 2 else (None, 0)


def _environment(digest: str, fields: Mapping[str, Any], peak: Peak | None) -> dict[str, Any]:
    return {
        "key": printable(digest[:_KEY]),
        "name": printable(environment_name(digest, fields)),
        "device": printable(_device(digest, fields)),
        "fields": [[printable(path), printable(str(value))] for path, value in _flat("", fields)],
        "peak": peak.fields() if peak else None,
    }


def _device(digest: str, fields: Mapping[str, Any]) -> str:
    device = fields.get("device")
    known = cast("Mapping[str, Any]", device).get("name") if isinstance(device, Mapping) else None
    return str(known or environment_name(digest, fields))


def _flat(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value).items()
        return [
            pair for name, each in inner for pair in _flat(f"{path}.{name}" if path else name, each)
        ]
    return [(path, value)]
