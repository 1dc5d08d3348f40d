"""The verbs that move tuning results between machines: archives and merging."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cache.entry import MAX_SIGNATURES
from inductor_plugin.cache.transfer.archive import (
    Imported,
    export_archive,
    import_archive,
    merge_stores,
    total,
)
from inductor_plugin.cache.transfer.draft import draft_of, exclusive
from inductor_plugin.cache.transfer.tape import check_start
from inductor_plugin.cache.trust.policy import trust_or_nobody
from inductor_plugin.cli.source import identified, names_pins, read_source, row_of, rows_text
from inductor_plugin.cli.verb import (
    Verb,
    announcement,
    cache_dir,
    check_environment,
    check_op,
    check_source,
    check_target,
    check_trusted_keys,
    counted,
    force_argument,
    open_cache,
    open_to_write,
    output_file,
    process_signer,
    say,
    trust_argument,
)
from inductor_plugin.config import default_trusted_keys
from inductor_plugin.errors import CacheError, expanded, printable
from inductor_plugin.tuning.pins.document import dump
from inductor_plugin.tuning.pins.merge import compare, merge
from inductor_plugin.tuning.pins.pin import PinFile


def _file_argument(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)


def _export_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument("--op", help="only records of this operator, and their kernels")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")
    force_argument(parser)


def _export(arguments: Namespace) -> int:
    store, file = open_cache(arguments), output_file(arguments.file, force=arguments.force)
    check_op(store, arguments.op)
    check_environment(store, arguments.environment)
    signer = process_signer()
    counts = export_archive(
        store, file, environment=arguments.environment, op=arguments.op, signer=signer
    )
    text = f"{printable(str(file))}: {counted(counts)}"
    if counts["kernels"]:
        text += (
            f"; signed by {signer.public}" if signer else "; not signed (signing_key names no key)"
        )
    fields = {"file": str(file), **counts, "signed_by": signer.public if signer else ""}
    say(arguments, fields, text)
    return 0


def _import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="written by `export` or `precompile`. Your processes will load the compiled kernels in it, so they have to be "
        "signed by one of INDUCTOR_PLUGIN_TRUSTED_KEYS, or taken with --trust",
    )
    trust_argument(parser)


def _import(arguments: Namespace) -> int:
    check_trusted_keys()
    check_start(arguments.file)  # before a cache directory is created for it
    path = cache_dir(arguments)
    is_new, is_missing = check_target(path, named=bool(arguments.cache_dir)), not path.exists()
    store = open_to_write(arguments, create=True)
    try:
        imported = import_archive(store, arguments.file, trusted=arguments.trust)
    except CacheError:
        if is_missing:
            _remove_empty(store)
        raise
    _say_imported(arguments, imported, store, is_new=is_new)
    return 0


def _say_imported(
    arguments: Namespace,
    imported: Imported,
    store: Store,
    *,
    is_new: bool,
    conflicts: list[dict[str, Any]] | None = None,
) -> None:
    """Print what was taken over, whether the cache is new, and what several caches decide differently."""
    lines = [announcement(store.root)] if is_new else []
    kept = "a pinned decision is kept, or else the timing with more samples"
    lines += [_imported_text(imported), *_conflict_lines(conflicts or [], kept)]
    fields = {**asdict(imported), "cache_dir": str(store.root), "created": is_new}
    if conflicts is not None:
        fields["conflicts"] = conflicts
    say(arguments, fields, "\n".join(lines))


def _remove_empty(store: Store) -> None:
    """Remove a cache directory that was created for an import in vain."""
    with suppress(OSError):
        if {path.name for path in store.root.iterdir()} <= {"schema.json", "private", "locks"}:
            shutil.rmtree(store.root)


def _imported_text(imported: Imported) -> str:
    separate = ("merged", "unchanged", "packs", "libraries", "signed", "signatures_left_out")
    new = {name: n for name, n in asdict(imported).items() if name not in separate}
    lines = [
        f"new: {counted(new)}; records that were there and changed: {imported.merged}; "
        f"there already and unchanged: {imported.unchanged}"
    ]
    lines += [
        f"pack {pack.name} for {pack.target}: {len(pack.kernels)} kernels, {len(pack.problems)} problems "
        f"of {printable(', '.join(pack.models))}"
        for pack in imported.packs
    ]
    if imported.libraries:
        lines.append(
            f"It holds {imported.libraries} libraries of native code, which your processes will load; of its new kernels "
            f"trusted keys have signed {imported.signed}."
        )
    if imported.signatures_left_out:
        lines.append(
            f"{imported.signatures_left_out} signatures are left out: a kernel keeps {MAX_SIGNATURES}, one of a key in "
            "trusted_keys first; `show KEY` names those that are kept."
        )
    return "\n".join(lines)


def _merge_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="A", type=Path, help="cache directory or pin file that takes over"
    )
    parser.add_argument(
        "sources",
        metavar="B",
        type=Path,
        nargs="+",
        help="cache directories that are read; if A is a pin file (.json), pin files, too",
    )


def _merge(arguments: Namespace) -> int:
    target = expanded(arguments.target, "the target", CacheError)
    sources = [expanded(source, "a source", CacheError) for source in arguments.sources]
    if names_pins(target):
        return _merge_pins(arguments, target, sources)
    for source in sources:
        if source.is_file():
            raise CacheError(
                f"{source} is a file: a cache takes over measurements, which a pin file does not have; "
                "merge into a pin file (A.json), or `import` an exported file"
            )
        check_source(source)
    is_new = check_target(target)
    sources = list({source.resolve(): source for source in sources}.values())
    same = next((source for source in sources if source.resolve() == target.resolve()), None)
    if same is not None:
        raise CacheError(f"{target} and {same} are the same cache; name two")
    everyone = sources if is_new else [target, *sources]
    conflicts = _conflicts(_read(everyone))
    store = open_store(target, trust=trust_or_nobody(default_trusted_keys()))
    taken = [merge_stores(store, open_store(source, read_only=True)) for source in sources]
    for conflict in conflicts:
        record = store.record(conflict["environment"], conflict["op"], conflict["digest"])
        decision = record.valid_decision if record is not None else None
        void = {fault["winner"] for fault in conflict["failed"]}  # by the quarantine, too
        conflict["kept"] = decision.winner if decision and decision.winner not in void else None
    _say_imported(arguments, total(taken), store, is_new=is_new, conflicts=conflicts)
    return 0


def _merge_pins(arguments: Namespace, target: Path, sources: Sequence[Path]) -> int:
    """Merge the decisions of pin files and caches into a pin file."""
    file = output_file(target, force=True)
    with exclusive(file):
        everyone = [file, *sources] if file.exists() else [*sources]
        read = _read(everyone)
        caches = [content for path, content in read.items() if not Path(path).is_file()]
        conflicts, merged = _conflicts(read), identified(merge([*read.values()]), caches)
        with draft_of(file) as draft:
            draft.write_text(dump(merged), encoding="utf-8")
    pins = len(merged.pins)
    said = _conflict_lines(conflicts, "the timing with more samples is kept")
    text = "\n".join([*said, f"{printable(str(file))}: {pins} decisions"])
    say(arguments, {"file": str(file), "pins": pins, "conflicts": conflicts}, text)
    return 0


def _read(paths: Sequence[Path]) -> dict[str, PinFile]:
    return {str(path): read_source(path) for path in paths}


def _conflicts(sources: Mapping[str, PinFile]) -> list[dict[str, Any]]:
    """Return the problems that sources decide differently, or whose winner one has seen fail."""
    return [row_of(each) for each in compare(sources) if each.is_conflict]


def _conflict_lines(conflicts: list[dict[str, Any]], kept: str) -> list[str]:
    if not conflicts:
        return []
    heading = f"{len(conflicts)} problems are decided differently; {kept}"
    void = sum(bool(conflict["failed"]) for conflict in conflicts)
    if void:
        heading += f", in {void} of them not that of a winner which a source has seen to fail"
    lost = sum(conflict["kept"] is None for conflict in conflicts)
    if lost:
        heading += f"; {lost} are not decided any more"
    return [heading, rows_text(conflicts)]


VERBS = (
    Verb("export", "write the cache, or a part of it, to one file", _export_arguments, _export),
    Verb("import", "take over an exported file, checked first", _import_arguments, _import),
    Verb(
        "merge",
        "take caches over into cache A, or caches and pin files into pin file A.json",
        _merge_arguments,
        _merge,
        cache=False,
    ),
)
