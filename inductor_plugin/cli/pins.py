"""The verbs of pinned decisions: a file that says which kernels win, and records that are never evicted."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store, report
from inductor_plugin.cache.transfer.draft import draft_of, exclusive
from inductor_plugin.cli.source import (
    condemned,
    environments_here,
    environments_of,
    faults_of,
    identities_for,
    read_pin_file,
)
from inductor_plugin.cli.verb import (
    Verb,
    check_environment,
    check_op,
    find_record,
    force_argument,
    in_environment,
    open_cache,
    open_to_write,
    output_file,
    say,
)
from inductor_plugin.errors import CacheError, printable
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.pins.check import stale
from inductor_plugin.tuning.pins.document import dump
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import Pin, Tried, by_template, pin_file, pin_of_record, tried
from inductor_plugin.worker.devices.templates import add_templates


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
    check_environment(store, arguments.environment)
    pins: list[Pin] = []
    records = _selected(store.iter_records(), arguments)
    failed = _failures(store, records, arguments)
    for record in records:
        pin = pin_of_record(record)
        if pin is None:
            continue
        pins.append(pin)
        if arguments.keep:
            store.pin_record(record)
    if store.degraded is not None and arguments.keep:
        raise CacheError(f"the records are not kept: {store.degraded}")
    environments = environments_of(store, pins, failed)
    # Merged with nothing: what the quarantine has condemned is no decision, whatever its record says.
    content = merge([pin_file(pins, environments, identities_for(pins), failed)])
    with exclusive(file), draft_of(file) as draft:
        draft.write_text(dump(content), encoding="utf-8")
    text = f"{len(content.pins)} decisions pinned"
    text += f"; the file also names {len(failed)} failures" if failed else ""
    say(arguments, {"file": str(file), "pins": len(content.pins)}, text)
    return 0


def _failures(store: Store, records: Sequence[Record], arguments: Namespace) -> Mapping[Tried, str]:
    """Return what a cache has seen fail; of selected records, on their problems."""
    failed = condemned(store)
    if arguments.op or arguments.environment:
        problems = {tried(record.environment, "", record.digest) for record in records}
        failed = {
            (environment, name): status
            for (environment, name), status in failed.items()
            if (environment, f"-{name.rpartition('-')[2]}") in problems
        }
    for record in records:
        failed |= faults_of(record)
    return failed


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
    lines = [f"{row['key'][:12]} {printable(row['describe'])}" for row in fields]
    lines.append(f"{len(unpinned)} records are not pinned any more; eviction may take them")
    say(arguments, {"unpinned": fields}, "\n".join(lines))
    return 0


def _check_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument(
        "--templates",
        metavar="MODULE:FUNCTION",
        help="called first: it registers the templates that your program registers",
    )


def _check(arguments: Namespace) -> int:
    file = read_pin_file(arguments.file)
    store = open_cache(arguments, must_exist=False)
    if arguments.templates:
        from inductor_plugin.aot.models import function  # noqa: PLC0415  loads torch

        function(arguments.templates, "--templates", " and registers templates")()
    from inductor_plugin.inductor.candidates.pinned import check_offer  # noqa: PLC0415  loads torch

    add_templates()  # those that an entry point names, which no compile has registered here
    here = environments_here()
    known_here = by_template(default_registry().identity())
    templates = {name: identity for name, (identity,) in known_here.items()}
    known = {
        pin.environment: store.environment(pin.environment) or {} for pin in file.pins.values()
    }
    compared: dict[Pin, bool] = {}

    def not_offered(pin: Pin) -> str:
        offer = check_offer(pin)
        compared[pin] = offer.is_complete
        return offer.reason

    gone = dict(stale(file, here, templates, known, not_offered))
    different = [
        (pin, winner)
        for pin in file.pins.values()
        if pin not in gone and (winner := _decided(store, pin)) not in (None, pin.winner)
    ]
    fields = {
        "pins": len(file.pins),
        "apply": len(file.pins) - len(gone),
        "unsure": sum(not compared[pin] for pin in file.pins.values() if pin not in gone),
        "stale": [
            {**_named(pin), "pinned": pin.winner, "reason": why} for pin, why in gone.items()
        ],
        "different": [
            {**_named(pin), "pinned": pin.winner, "found": winner} for pin, winner in different
        ],
    }
    say(arguments, fields, "\n".join(_check_lines(fields)))
    return 1 if gone or different else 0


def _decided(store: Store, pin: Pin) -> str | None:
    """Return the winner of a pin's problem in a cache, None if it has none."""
    record = store.record(pin.environment, pin.op, pin.digest)
    decision = record.valid_decision if record else None
    return decision.winner if decision else None


def _named(pin: Pin) -> dict[str, str]:
    return {
        "environment": pin.environment,
        "op": pin.op,
        "digest": pin.digest,
        "describe": pin.describe,
    }


def _check_lines(fields: dict[str, Any]) -> Iterator[str]:
    """Yield what was found, the pins that do not apply by their reason."""
    by_reason: dict[str, list[dict[str, Any]]] = {}
    for row in fields["stale"]:
        by_reason.setdefault(row["reason"], []).append(row)
    for why, rows in by_reason.items():
        yield f"{len(rows)} of {fields['pins']} pins do not apply here: {why}"
        yield from (f"  {row['describe']}: {row['pinned']}" for row in report.shown(rows))
    for row in report.shown(fields["different"]):
        yield f"{row['describe']}: pinned {row['pinned']}, this cache decides for {row['found']}"
    text = f"{fields['apply']} of {fields['pins']} pins apply here"
    if fields["unsure"]:
        text += f"; of {fields['unsure']} only the template was compared, a compile tells the rest: kernels that are compiled or fused"
    yield text


VERBS = (
    Verb("pin", "write all decisions to a file", _pin_arguments, _pin),
    Verb("unpin", "let eviction take records that `pin --keep` protects", _unpin_arguments, _unpin),
    Verb(
        "check",
        "which pins of a file do not apply here, and why; does this cache decide otherwise",
        _check_arguments,
        _check,
    ),
)
