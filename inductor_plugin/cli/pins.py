"""The verbs of pinned decisions: a file that says who wins, and records that are never evicted."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, guard, report
from inductor_plugin.cli.verb import (
    Verb,
    check_op,
    find_record,
    force_argument,
    in_environment,
    open_cache,
    open_to_write,
    output_file,
    say,
)
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.pins import Pin, dump_pins, parse_pins


def _selection_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--op", help="only records of this operator")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")


def _selected(records: Iterable[Record], arguments: Namespace) -> list[Record]:
    return [
        record
        for record in records
        if arguments.op in (None, record.op) and in_environment(arguments, record.environment)
    ]


def _pin_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    _selection_arguments(parser)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="also protect these records and their kernels from eviction; `unpin` ends that",
    )
    force_argument(parser)


def _pin(arguments: Namespace) -> int:
    store = open_to_write(arguments) if arguments.keep else open_cache(arguments)
    file = output_file(arguments.file, force=arguments.force)
    check_op(store, arguments.op)
    pins: list[Pin] = []
    for record in _selected(store.iter_records(), arguments):
        if record.decision is None:
            continue
        winner = record.decision.winner
        pins.append(Pin(record.environment, record.op, record.digest, record.describe, winner))
        if arguments.keep:
            store.pin_record(record)
    if store.degraded is not None and arguments.keep:
        raise CacheError(f"the records are not kept: {store.degraded}")
    file.write_text(dump_pins(pins), encoding="utf-8")
    say(arguments, {"file": str(file), "pins": len(pins)}, f"{len(pins)} decisions pinned")
    return 0


def _unpin_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "keys", metavar="KEY", nargs="*", help="start of a record's key, or environment/key"
    )
    parser.add_argument("--all", action="store_true", help="all records that are pinned")
    _selection_arguments(parser)


def _unpin(arguments: Namespace) -> int:
    if bool(arguments.keys) == arguments.all:
        raise CacheError("name records by their keys, or write --all for all that are pinned")
    store = open_to_write(arguments)
    if arguments.all:
        records = _selected(store.iter_records(), arguments)
    else:
        records = [find_record(store, key, "are pinned")[1] for key in arguments.keys]
    unpinned = [record for record in records if record.pinned]
    for record in unpinned:
        store.pin_record(record, pinned=False)
    if store.degraded is not None:
        raise CacheError(f"they stay pinned: {store.degraded}")
    fields = [{"key": record.digest, "describe": record.describe} for record in unpinned]
    lines = [f"{row['key'][:12]} {report.printable(row['describe'])}" for row in fields]
    lines.append(f"{len(unpinned)} records are not pinned any more; eviction may take them")
    say(arguments, {"unpinned": fields}, "\n".join(lines))
    return 0


def _check_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)


def _check(arguments: Namespace) -> int:
    store = open_cache(arguments)
    try:
        pins = parse_pins(guard.read(arguments.file).decode())
    except FileNotFoundError:
        raise CacheError(
            f"there is no file {arguments.file}; write one with `inductor-plugin pin FILE`"
        ) from None
    except ValueError as error:
        raise CacheError(f"{arguments.file} is not a pin file: {error}; write one again") from error
    different: list[dict[str, Any]] = []
    for pin in pins:
        record = store.record(pin.environment, pin.op, pin.digest)
        winner = record.decision.winner if record and record.decision else None
        if winner != pin.winner:
            fields = {name: text for name, text in asdict(pin).items() if name != "winner"}
            different.append({**fields, "pinned": pin.winner, "found": winner})
    lines = [
        f"{row['describe']}: pinned {row['pinned']}, here {row['found'] or 'none'}"
        for row in report.shown(different)
    ]
    lines.append(f"{len(pins) - len(different)} of {len(pins)} pinned decisions agree")
    say(arguments, {"pins": len(pins), "different": different}, "\n".join(lines))
    return 1 if different else 0


VERBS = (
    Verb("pin", "write all decisions to a file", _pin_arguments, _pin),
    Verb("unpin", "let eviction take records that `pin --keep` protects", _unpin_arguments, _unpin),
    Verb("check", "does this cache decide as a pin file says", _check_arguments, _check),
)
