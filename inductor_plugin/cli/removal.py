"""The verbs that remove: measurements, entries, failures, and what was not used for longest."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Pruned, Quarantined, Record, Store, report
from inductor_plugin.cache.lookup.find import Match, find
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.cli.verb import (
    Verb,
    counted,
    find_record,
    force_argument,
    in_environment,
    open_cache,
    open_to_write,
    read_record,
    say,
    seconds,
    size_bytes,
)
from inductor_plugin.errors import CacheError

_GRAPHS = (
    "A graph in Inductor's own cache is not compiled again: run once with "
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"
)


def _keys_argument(parser: ArgumentParser, what: str) -> None:
    parser.add_argument("keys", metavar="KEY", nargs="+", help=f"start of {what}; `ls` shows them")


def _retune_arguments(parser: ArgumentParser) -> None:
    _keys_argument(parser, "a record's key, or environment/key")
    force_argument(parser, "also pinned records")


def _retune(arguments: Namespace) -> int:
    """Drop the measurements of problems and what is in quarantine on them; compiled kernels stay."""
    store = open_to_write(arguments)
    records = [find_record(store, key, "are measured again")[1] for key in arguments.keys]
    _refuse_pinned(records, arguments)
    if graph := next((record for record in records if record.op == GRAPH), None):
        raise CacheError(
            f"{graph.digest[:12]} is a whole graph; `rm` it and compile with verify_graph=on to compare it again"
        )
    rows = [_forgotten(store, record) for record in dict.fromkeys(map(_place, records))]
    lines = [
        f"{row['key'][:12]} {row['describe']}: {row['candidates']} measurements and "
        f"{row['quarantined']} quarantine entries dropped"
        for row in report.shown(rows)
    ]
    lines += ["The next compile measures these problems again; compiled kernels are kept.", _GRAPHS]
    say(arguments, {"retuned": rows}, "\n".join(lines))
    return 0


def _rm_arguments(parser: ArgumentParser) -> None:
    _keys_argument(parser, "the key of a record, a kernel or an environment")
    force_argument(parser, "also pinned records, and environments with all their records")


def _rm(arguments: Namespace) -> int:
    store = open_to_write(arguments)
    matches = list(dict.fromkeys(find(store.layout, key) for key in arguments.keys))
    whole = [match for match in matches if match.kind == "environment"]
    if whole and not arguments.force:
        raise CacheError(
            f"{whole[0].name[:12]} is an environment; --force removes it with all its records"
        )
    if not arguments.force:
        _refuse_pinned([read_record(m) for m in matches if m.kind == "record"], arguments)
    removed = [
        {"kind": match.kind, "name": match.name} for match in matches if _removed(store, match)
    ]
    lines = [f"{row['kind']} {row['name']}" for row in removed]
    lines.append(f"{len(removed)} of {len(matches)} removed")
    if len(removed) < len(matches):
        lines.append("the others are in use by a process, or gone already")
    say(arguments, {"removed": removed}, "\n".join(lines))
    return 0 if len(removed) == len(matches) else 1


def _removed(store: Store, match: Match) -> bool:
    """Remove an entry; return False if a process uses it."""
    if match.kind == "kernel":
        return store.remove_kernel(match.name)
    if match.kind == "record":
        environment, op, digest = match.name.split("/")
        return store.remove_record(environment, op, digest)
    paths = [p for p in store.record_paths() if p.parent.parent.name == match.name]
    gone = [store.remove_record(match.name, path.parent.name, path.stem) for path in paths]
    if all(gone):
        match.path.unlink(missing_ok=True)
    return all(gone)


def _clear_arguments(parser: ArgumentParser) -> None:
    force_argument(parser, "do it; without it the verb only says what would be removed")


def _clear(arguments: Namespace) -> int:
    store = open_to_write(arguments) if arguments.force else open_cache(arguments)
    usage = store.usage()
    here = {"records": usage.records, "kernels": usage.kernels, "bytes": usage.bytes}
    if not arguments.force:
        raise CacheError(
            f"this would remove everything in {store.root}, pinned records included: "
            f"{counted(here)}; do it with --force"
        )
    removed = store.clear()
    left = store.usage()
    text = f"removed {counted(removed)}"
    if left.records or left.kernels:
        text += f"; {left.records} records and {left.kernels} kernels are in use and stay"
    say(arguments, removed, text)
    return 1 if left.records or left.kernels else 0


def _refuse_pinned(records: list[Record], arguments: Namespace) -> None:
    pinned = [record for record in records if record.pinned]
    if pinned and not arguments.force:
        raise CacheError(
            f"record {pinned[0].digest[:12]} is pinned; end that with `inductor-plugin unpin`, or use "
            "--force"
        )


def _forgotten(store: Store, place: tuple[str, str, str]) -> dict[str, Any]:
    """Remove a record and what is in quarantine on its problem; return what that was."""
    environment, op, digest = place
    record = store.record(environment, op, digest)
    quarantined = [
        entry
        for entry in store.iter_quarantine()
        if entry.environment == environment
        and (failure := entry.failure()) is not None
        and digest.startswith(failure[1])
    ]
    if record is not None and not store.remove_record(environment, op, digest):
        raise CacheError(f"record {digest[:12]} is in use by another process; try again")
    for entry in quarantined:
        store.release(environment, entry.candidate)
        if store.quarantined(environment, entry.candidate) is not None:
            why = store.degraded or "another process writes there; try again"
            raise CacheError(f"{entry.candidate} stays in quarantine: {why}")
    return {
        "key": digest,
        "environment": environment,
        "describe": record.describe if record else op,
        "candidates": len(record.candidates) if record else 0,
        "quarantined": len(quarantined),
    }


def _place(record: Record) -> tuple[str, str, str]:
    return record.environment, record.op, record.digest


def _prune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--max-bytes", type=size_bytes, metavar="SIZE", help="20M, 1.5GiB ...")
    parser.add_argument(
        "--older-than", type=seconds, metavar="TIME", help="unused for 12h, 30d ..."
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, remove nothing")


def _prune(arguments: Namespace) -> int:
    store = open_cache(arguments) if arguments.dry_run else open_to_write(arguments)
    pruned = store.prune(arguments.max_bytes, arguments.older_than, dry_run=arguments.dry_run)
    counts = {n: v for n, v in asdict(pruned).items() if n not in ("pinned", "in_use")}
    verb = "would remove" if arguments.dry_run else "removed"
    lines = [f"{verb} {counted(counts)}", *_why_they_stay(pruned, arguments)]
    say(arguments, {**asdict(pruned), "dry_run": arguments.dry_run}, "\n".join(lines))
    return 0


def _why_they_stay(pruned: Pruned, arguments: Namespace) -> list[str]:
    """Return why more was not removed, a line for each reason."""
    if arguments.max_bytes is None and arguments.older_than is None:
        return [
            "without --max-bytes or --older-than only leftovers of killed processes go, and graphs without a record"
        ]
    reasons: list[str] = []
    if pruned.pinned:
        reasons.append(f"{pruned.pinned} entries stay because they are pinned; see `unpin`")
    if pruned.in_use:
        reasons.append(f"{pruned.in_use} entries stay because a process uses them")
    if not (pruned.kernels or pruned.records or reasons):
        reasons.append(
            f"nothing had to go: {report.size_text(pruned.bytes_left)} are there"
            + ("" if arguments.older_than is None else ", all of it used since then")
        )
    return reasons


def _release_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "name", nargs="?", metavar="NAME", help="a candidate as `ls --quarantine` shows it"
    )
    what.add_argument("--all", action="store_true", help="all that are in quarantine")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")


def _release(arguments: Namespace) -> int:
    store = open_to_write(arguments)
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
        for row in report.shown(released)
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
    Verb("retune", "measure problems again in the next compile", _retune_arguments, _retune),
    Verb("release", "try a candidate in quarantine again", _release_arguments, _release),
    Verb("rm", "remove records, kernels or an environment", _rm_arguments, _rm),
    Verb("clear", "remove everything in the cache", _clear_arguments, _clear),
    Verb("prune", "remove what was not used for longest", _prune_arguments, _prune),
)
