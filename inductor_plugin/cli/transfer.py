"""The verbs that move tuning results between machines: archives, merging, pinned decisions."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.archive import (
    Imported,
    export_archive,
    import_archive,
    merge_stores,
)
from inductor_plugin.cli.verb import Verb, counted, in_environment, open_cache, say
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.pins import Pin, dump_pins, parse_pins


def _file_argument(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)


def _export_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument("--op", help="only records of this operator, and their kernels")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")


def _export(arguments: Namespace) -> int:
    counts = export_archive(
        open_cache(arguments), arguments.file, environment=arguments.environment, op=arguments.op
    )
    say(arguments, {"file": str(arguments.file), **counts}, f"{arguments.file}: {counted(counts)}")
    return 0


def _import(arguments: Namespace) -> int:
    imported = import_archive(open_cache(arguments, create=True), arguments.file)
    say(arguments, asdict(imported), _imported_text(imported))
    return 0


def _imported_text(imported: Imported) -> str:
    separate = ("merged", "unchanged", "packs")
    new = {name: n for name, n in asdict(imported).items() if name not in separate}
    lines = [
        f"new: {counted(new)}; records that were there and changed: {imported.merged}; "
        f"there already and unchanged: {imported.unchanged}"
    ]
    lines += [
        f"pack {pack.name} for {pack.target}: {len(pack.kernels)} kernels, {len(pack.problems)} problems "
        f"of {', '.join(pack.models)}"
        for pack in imported.packs
    ]
    return "\n".join(lines)


def _merge_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="A", type=Path, help="cache directory that takes over")
    parser.add_argument("source", metavar="B", type=Path, help="cache directory that is read")


def _merge(arguments: Namespace) -> int:
    if not arguments.source.is_dir():
        raise CacheError(f"there is no cache at {arguments.source}; name an existing directory")
    source = open_store(arguments.source, create=False)
    imported = merge_stores(open_store(arguments.target), source)
    say(arguments, asdict(imported), _imported_text(imported))
    return 0


def _pin_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument("--op", help="only records of this operator")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="also protect these records and their kernels from eviction",
    )


def _pin(arguments: Namespace) -> int:
    store = open_cache(arguments)
    pins: list[Pin] = []
    for record in store.iter_records():
        same_op = arguments.op is None or record.op == arguments.op
        decision = record.decision
        if decision is None or not same_op or not in_environment(arguments, record.environment):
            continue
        pins.append(
            Pin(record.environment, record.op, record.digest, record.describe, decision.winner)
        )
        if arguments.keep:
            store.pin_record(record)
    arguments.file.write_text(dump_pins(pins), encoding="utf-8")
    say(
        arguments, {"file": str(arguments.file), "pins": len(pins)}, f"{len(pins)} decisions pinned"
    )
    return 0


def _check(arguments: Namespace) -> int:
    store = open_cache(arguments)
    try:
        pins = parse_pins(arguments.file.read_text(encoding="utf-8"))
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
        for row in different
    ]
    lines.append(f"{len(pins) - len(different)} of {len(pins)} pinned decisions agree")
    say(arguments, {"pins": len(pins), "different": different}, "\n".join(lines))
    return 1 if different else 0


VERBS = (
    Verb("export", "write the cache, or a part of it, to one file", _export_arguments, _export),
    Verb("import", "take over an exported file, checked first", _file_argument, _import),
    Verb("merge", "take cache directory B over into A", _merge_arguments, _merge),
    Verb("pin", "write all decisions to a file", _pin_arguments, _pin),
    Verb("check", "does this cache decide as a pin file says", _file_argument, _check),
)
