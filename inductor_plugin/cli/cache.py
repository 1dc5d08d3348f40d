"""The verbs that show entries of the cache: whole, explained, compared. None of them needs torch."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from inductor_plugin.cache import Record, Store, differences, document, report
from inductor_plugin.cache.entry import ENTRY, KernelEntry, read_entry
from inductor_plugin.cache.graph import gives_up
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.key import ABSENT
from inductor_plugin.cache.lookup.find import Match, find
from inductor_plugin.cache.record import GRAPH, to_fields
from inductor_plugin.cache.records import parse_environment, parse_record
from inductor_plugin.cache.trust.keys import is_installed
from inductor_plugin.cache.trust.signatures import true_signatures
from inductor_plugin.cli.explain import misses
from inductor_plugin.cli.source import is_source, read_source, row_of, rows_text
from inductor_plugin.cli.verb import Verb, find_record, open_cache, read_record, say, undamaged
from inductor_plugin.errors import CacheError, expanded, printable
from inductor_plugin.problem.description import described
from inductor_plugin.tuning.pins.merge import compare

_LONG = 200


def _key_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "key", metavar="KEY", help="start of a key, or environment/key; `ls` shows them"
    )


def _show(arguments: Namespace) -> int:
    store = open_cache(arguments)
    match = find(store.layout, arguments.key)
    fields = _fields(match)
    text = json.dumps(_brief(fields), indent=2)
    if match.kind == "record":
        text = (match.path).read_text(encoding="utf-8")
        kernel = _winner_kernel(store, read_record(match))
        resources = kernel and report.kernel_fields(kernel)
        fields["winner_kernel"] = resources
        if resources is not None:
            text += f"\nwinner's kernel: {report.kernel_text(resources)}"
    say(arguments, {"kind": match.kind, **fields}, f"{match.kind} {match.name}\n{text.rstrip()}")
    return 0


def _brief(value: Any) -> Any:
    """Return plain values with long texts cut, such as what a compiler says of itself."""
    if isinstance(value, str) and len(value) > _LONG:
        return f"{value[:_LONG]}... ({len(value) - _LONG} more characters; --json has all)"
    if isinstance(value, dict):
        return {n: _brief(inner) for n, inner in cast("dict[str, Any]", value).items()}
    return value


def _explain(arguments: Namespace) -> int:
    store = open_cache(arguments)
    match, record = find_record(store, arguments.key, "are decided; use `show`")
    layout, here = store.layout, match.path
    digests = {path.parent.parent.name for path in store.record_paths()}
    environments = {digest: store.environment(digest) or {} for digest in sorted(digests)}
    elsewhere = [
        digest for digest in digests if layout.record(digest, record.op, record.digest).exists()
    ]
    siblings = (path for path in sorted(here.parent.glob("*.json")) if path != here)
    others = [outline for path in siblings if (outline := _outline(path))]
    kernel = _winner_kernel(store, record)
    explained = report.explanation(record, others, environments, elsewhere, kernel)
    explained["problem"] = described(record.problem, record.describe)
    explained["given_up_by"] = [report.giving_up(graph) for graph in _giving_up(store, record)]
    say(arguments, explained, report.explanation_text(record, explained))
    return 0


def _winner_kernel(store: Store, record: Record) -> KernelEntry | None:
    """Return the compiled kernel of a record's winner, None if it is not in the cache."""
    decision = record.valid_decision
    winner = record.candidates.get(decision.winner) if decision else None
    if winner is None or winner.kernel is None:
        return None
    folder = store.layout.kernel(winner.kernel)
    try:
        return read_entry(folder)
    except (OSError, ValueError):
        return None  # `verify` reports a damaged entry


def _giving_up(store: Store, record: Record) -> list[Record]:
    """Return the records of the graphs in which the library kernel runs in place of a record's winner."""
    folder = store.layout.record(record.environment, GRAPH, record.digest).parent
    digests = sorted(path.stem for path in folder.glob("*.json"))
    graphs = (store.record(record.environment, GRAPH, digest) for digest in digests)
    return [graph for graph in graphs if graph is not None and gives_up(graph, record.digest)]


def _outline(path: Path) -> report.Outline | None:
    try:  # without its candidates, which take half the time of reading a record
        fields = document.load(read(path), any_depth=True)
        known = document.typed(fields, {"describe": document.text, "problem": document.table})
        line = described(known["problem"], known["describe"])
        return report.Outline(path.stem, line, known["problem"])
    except (OSError, ValueError):
        return None  # `verify` reports it


def _diff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "left", metavar="A", help="start of a key, or a cache directory or pin file"
    )
    parser.add_argument(
        "others",
        metavar="B",
        nargs="+",
        help="start of another key of the same kind, or other directories and files",
    )


def _diff(arguments: Namespace) -> int:
    names = [arguments.left, *arguments.others]
    paths = [expanded(name, "a side", CacheError) for name in names]
    if any(map(is_source, paths)):
        return _diff_sources(arguments, dict(zip(names, paths, strict=True)))
    if len(names) > 2:
        raise CacheError("diff compares two keys, or any number of cache directories and pin files")
    store = open_cache(arguments)
    left, right = find(store.layout, names[0]), find(store.layout, names[1])
    if left.kind != right.kind:
        raise CacheError(f"{names[0]!r} is a {left.kind}, {names[1]!r} a {right.kind}")
    changed = differences(_comparable(store, left), _comparable(store, right))
    # A side that lacks the field has none: a value "(absent)" could be one of a field's own.
    fields = [
        {"field": difference.path}
        | ({} if difference.left is ABSENT else {"left": difference.left})
        | ({} if difference.right is ABSENT else {"right": difference.right})
        for difference in changed
    ]
    lines = [
        f"{printable(difference.path)}: {difference.left!r} -> {difference.right!r}"
        for difference in changed
    ]
    say(arguments, fields, "\n".join(lines) or "they do not differ")
    return 0


def _diff_sources(arguments: Namespace, sources: dict[str, Path]) -> int:
    """Compare the decisions of caches and pin files, problem by problem."""
    if arguments.cache_dir:
        raise CacheError("--cache-dir has no meaning here; name the directories or files")
    compared = compare({name: read_source(path) for name, path in sources.items()})
    rows = [row_of(each) for each in compared]
    conflicts = sum(each.is_conflict for each in compared)
    text = "they decide alike"
    if rows:
        text = (
            f"{rows_text(rows)}\n{conflicts} problems are decided differently, "
            f"{len(rows) - conflicts} are not decided everywhere"
        )
    say(arguments, {"sources": list(sources), "different": rows}, text)
    return 0


def _comparable(store: Store, match: Match) -> dict[str, Any]:
    """Return the fields to compare: without names and times, environments by their fields."""
    fields = _fields(match)
    if match.kind == "record":
        record = read_record(match)
        decision = record.valid_decision
        return {
            "environment": store.environment(record.environment) or record.environment,
            "op": record.op,
            "problem": record.problem,
            "winner": decision.winner if decision else None,
            "reason": decision.reason if decision else None,
            "status": {name: candidate.status for name, candidate in record.candidates.items()},
            "median_ms": {
                name: candidate.median_ms for name, candidate in record.candidates.items()
            },
            "rejected": record.rejected,
        }
    return {name: value for name, value in fields.items() if name not in ("digest", "created")}


def _fields(match: Match) -> dict[str, Any]:
    """Return the fields of an entry; raise CacheError if it is damaged."""
    with undamaged(match):
        if match.kind == "record":
            return to_fields(parse_record(read(match.path), match.path))
        if match.kind == "environment":
            return parse_environment(read(match.path), match.name)
        entry = read_entry(match.path)
        fields = document.load(read(match.path / ENTRY))
        taken = asdict(entry.taken) if entry.taken else {"by": "built here", "source": ""}
        fields.pop("signatures", None)
        true = true_signatures(entry)  # without `cryptography` those that are only claimed
        origin = {**taken, "signers": sorted(true) if true and is_installed() else []}
        return {**fields, "taken": origin, "folder": str(entry.folder)}


VERBS = (
    Verb("show", "one record, kernel or environment, whole", _key_argument, _show),
    Verb(
        "explain",
        "why this winner; what would make it a miss",
        misses.arguments,
        misses.explaining(_explain),
    ),
    Verb(
        "diff",
        "two entries field by field, or the decisions of caches and pin files problem by problem",
        _diff_arguments,
        _diff,
    ),
)
