"""The verbs that inspect, verify and prune the cache directory. None of them needs torch."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Quarantined, Record, Store, differences, report
from inductor_plugin.cache.document import load
from inductor_plugin.cache.entry import ENTRY, KernelEntry, read_entry
from inductor_plugin.cache.find import Match, find
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.record import to_fields
from inductor_plugin.cache.records import parse_environment, parse_record
from inductor_plugin.cli import misses, second
from inductor_plugin.cli.verb import (
    Verb,
    counted,
    find_record,
    in_environment,
    open_cache,
    read_record,
    say,
    seconds,
    size_bytes,
    undamaged,
)
from inductor_plugin.errors import CacheError

_LISTED = 50


def _none(parser: ArgumentParser) -> None:
    del parser


def _stats(arguments: Namespace) -> int:
    store = open_cache(arguments, must_exist=False)
    usage = store.usage(look=True)
    counters = store.counters()
    fields = {
        "cache_dir": str(store.root),
        **usage.fields(),
        **counters,
        "hits": counters.get("hits", 0),
        "misses": counters.get("misses", 0),
        # Damaged entries removed so far, and those on disk now.
        "corrupt": counters.get("corrupt", 0) + (usage.damaged or 0),
        **second.counts(),
    }
    lines = (f"{name:<13}{_stat_text(name, value)}" for name, value in fields.items())
    say(arguments, fields, "\n".join(lines))
    return 0


def _stat_text(name: str, value: Any) -> str:
    return report.size_text(value) if name.endswith("bytes") else str(value)


def _ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--op", help="only records of this operator")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--kernels", action="store_true", help="list compiled kernels")
    what.add_argument("--quarantine", action="store_true", help="list candidates not tried again")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"show the N newest, 0 for all ({_LISTED} by default, all with --json)",
    )


def _ls(arguments: Namespace) -> int:
    store = open_cache(arguments, must_exist=False)
    rows: list[dict[str, Any]]
    if arguments.kernels:
        rows = [report.kernel_row(entry) for entry in store.iter_kernels()]
        rows.sort(key=lambda row: -row["created"])
        total, rows, text = len(rows), _limited(arguments, rows), report.kernels_text
    elif arguments.quarantine:
        rows = [
            asdict(entry)
            for entry in store.iter_quarantine()
            if in_environment(arguments, entry.environment)
        ]
        total, rows, text = len(rows), _limited(arguments, rows), _quarantine_text
    else:
        paths = sorted(_record_paths(store, arguments), key=lambda path: -path.stat().st_mtime_ns)
        total, text = len(paths), report.records_text
        rows = [row for path in _limited(arguments, paths) if (row := _row(path))]
    more = f"\n{total - len(rows)} more; --limit 0 shows all" if total > len(rows) else ""
    say(arguments, rows, f"{text(rows)}{more}" if rows else "nothing there")
    return 0


def _row(path: Path) -> dict[str, Any] | None:
    try:
        return report.record_row(to_fields(parse_record(read(path), path)))
    except (OSError, ValueError) as error:
        print(f"inductor-plugin ls: {path} is damaged ({error}); see `verify`", file=sys.stderr)
        return None


def _quarantine_text(rows: list[dict[str, Any]]) -> str:
    heads = ("ENVIRONMENT", "LAST", "TIMES", "STATUS", "CANDIDATE", "REASON")
    return report.columns(
        heads,
        (
            (
                row["environment"][:8],
                report.time_text(row["updated"]),
                str(row["count"]),
                row["status"],
                row["candidate"],
                row["reason"],
            )
            for row in rows
        ),
    )


def _limited(arguments: Namespace, rows: list[Any]) -> list[Any]:
    limit = arguments.limit
    if limit is None:
        limit = 0 if arguments.json else _LISTED
    return rows[:limit] if limit > 0 else rows


def _record_paths(store: Store, arguments: Namespace) -> Iterator[Path]:
    for path in store.record_paths():
        same_op = arguments.op is None or path.parent.name == arguments.op
        if same_op and in_environment(arguments, path.parent.parent.name):
            yield path


def _key_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "key", metavar="KEY", help="start of a key, or environment/key; `ls` shows them"
    )


def _show(arguments: Namespace) -> int:
    store = open_cache(arguments)
    match = find(store.layout, arguments.key)
    fields = _fields(match)
    text = json.dumps(fields, indent=2)
    if match.kind == "record":
        text = (match.path).read_text(encoding="utf-8")
        kernel = _winner_kernel(store, read_record(match))
        resources = kernel and report.kernel_fields(kernel)
        fields["winner_kernel"] = resources
        if resources is not None:
            text += f"\nwinner's kernel: {report.kernel_text(resources)}"
    say(arguments, {"kind": match.kind, **fields}, f"{match.kind} {match.name}\n{text.rstrip()}")
    return 0


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
    say(arguments, explained, report.explanation_text(record, explained))
    return 0


def _winner_kernel(store: Store, record: Record) -> KernelEntry | None:
    """Return the compiled kernel of a record's winner, None if it is not in the cache."""
    winner = record.candidates.get(record.decision.winner) if record.decision else None
    if winner is None or winner.kernel is None:
        return None
    folder = store.layout.kernel(winner.kernel)
    try:
        return read_entry(folder)
    except (OSError, ValueError):
        return None  # `verify` reports a damaged entry


def _outline(path: Path) -> report.Outline | None:
    try:
        record = parse_record(read(path), path)
        return report.Outline(record.digest, record.describe, record.problem)
    except (OSError, ValueError):
        return None  # `verify` reports it


def _diff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("left", metavar="A", help="start of a key, or environment/key")
    parser.add_argument("right", metavar="B", help="start of another key of the same kind")


def _diff(arguments: Namespace) -> int:
    store = open_cache(arguments)
    left, right = find(store.layout, arguments.left), find(store.layout, arguments.right)
    if left.kind != right.kind:
        raise CacheError(f"{arguments.left!r} is a {left.kind}, {arguments.right!r} a {right.kind}")
    changed = differences(_comparable(store, left), _comparable(store, right))
    fields = [
        {"field": difference.path, "left": difference.left, "right": difference.right}
        for difference in changed
    ]
    say(
        arguments,
        fields,
        "\n".join(f"{f['field']}: {f['left']!r} -> {f['right']!r}" for f in fields),
    )
    return 0


def _comparable(store: Store, match: Match) -> dict[str, Any]:
    """Return the fields to compare: without names and times, environments by their fields."""
    fields = _fields(match)
    if match.kind == "record":
        record = read_record(match)
        return {
            "environment": store.environment(record.environment) or record.environment,
            "op": record.op,
            "problem": record.problem,
            "winner": record.decision.winner if record.decision else None,
            "reason": record.decision.reason if record.decision else None,
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
        return {**load(read(match.path / ENTRY)), "folder": str(entry.folder)}


def _verify(arguments: Namespace) -> int:
    store = open_cache(arguments)
    damaged = store.verify()
    usage = store.usage()
    fields = {
        "damaged": [{**asdict(damage), "path": str(damage.path)} for damage in damaged],
        **{n: v for n, v in usage.fields().items() if n != "damaged"},
    }
    lines = [f"{damage.kind} {damage.path}: {damage.reason}" for damage in damaged]
    lines.append(
        f"{usage.records} records, {usage.kernels} kernels, {usage.quarantined} in quarantine: "
        f"{len(damaged)} damaged; {usage.leftovers} leftovers of killed processes"
    )
    say(arguments, fields, "\n".join(lines))
    return 1 if damaged else 0


def _prune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--max-bytes", type=size_bytes, metavar="SIZE", help="20M, 1.5G ...")
    parser.add_argument(
        "--older-than", type=seconds, metavar="TIME", help="unused for 12h, 30d ..."
    )


def _prune(arguments: Namespace) -> int:
    pruned = asdict(open_cache(arguments).prune(arguments.max_bytes, arguments.older_than))
    say(arguments, pruned, f"removed {counted(pruned)}")
    return 0


def _release_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "name", nargs="?", metavar="NAME", help="a candidate as `ls --quarantine` shows it"
    )
    what.add_argument("--all", action="store_true", help="all that are in quarantine")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")


def _release(arguments: Namespace) -> int:
    store = open_cache(arguments)
    quarantined = [
        entry for entry in store.iter_quarantine() if in_environment(arguments, entry.environment)
    ]
    chosen = quarantined if arguments.all else _named(quarantined, arguments.name, store.root)
    released = [
        {
            "environment": entry.environment,
            "candidate": entry.candidate,
            "problem": entry.fields.get("problem"),
            "status": entry.status,
            "reason": entry.reason,
            "records": store.retry(entry),
        }
        for entry in chosen
    ]
    lines = [
        f"{row['candidate']} ({row['status']}: {row['reason']}), "
        f"failure taken out of {row['records']} records"
        for row in released
    ]
    lines.append(f"{len(released)} of {len(quarantined)} released; the next run tries them again")
    say(arguments, {"released": released}, "\n".join(lines))
    return 0


def _named(quarantined: list[Quarantined], name: str, root: Path) -> list[Quarantined]:
    """Return the entries of a name: the full name, the candidate on every problem, or a unique prefix."""
    named = [
        entry for entry in quarantined if name in (entry.candidate, entry.fields.get("candidate"))
    ]
    named = named or [entry for entry in quarantined if name and entry.candidate.startswith(name)]
    if not named:
        raise CacheError(
            f"no candidate named {name!r} is in the quarantine of {root}; "
            "list them with `inductor-plugin ls --quarantine`"
        )
    names = sorted({entry.candidate for entry in named})
    if len(names) > 1 and name not in {entry.fields.get("candidate") for entry in named}:
        raise CacheError(
            f"{name!r} is the start of {len(names)} names, {names[0]} and {names[1]} among them; "
            "write more of it, or use --all"
        )
    return named


VERBS = (
    Verb("stats", "how much is in the cache, and how often it helped", _none, _stats),
    Verb("ls", "list records, kernels or the quarantine", _ls_arguments, _ls),
    Verb("show", "one record, kernel or environment, whole", _key_argument, _show),
    Verb(
        "explain",
        "why this winner; what would make it a miss",
        misses.arguments,
        misses.explaining(_explain),
    ),
    Verb("diff", "two records, kernels or environments, field by field", _diff_arguments, _diff),
    Verb("verify", "read everything and name what is damaged", _none, _verify),
    Verb("release", "try a candidate in quarantine again", _release_arguments, _release),
    Verb("prune", "remove what was not used for longest", _prune_arguments, _prune),
)
