"""The verbs that move tuning results between machines: archives and merging."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cache.report import printable
from inductor_plugin.cache.transfer.archive import (
    Imported,
    export_archive,
    import_archive,
    merge_stores,
)
from inductor_plugin.cache.transfer.tape import check_start
from inductor_plugin.cli.verb import (
    Verb,
    announcement,
    cache_dir,
    check_op,
    check_source,
    check_target,
    counted,
    force_argument,
    open_cache,
    open_to_write,
    output_file,
    say,
)
from inductor_plugin.errors import CacheError


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
    counts = export_archive(store, file, environment=arguments.environment, op=arguments.op)
    say(arguments, {"file": str(file), **counts}, f"{printable(str(file))}: {counted(counts)}")
    return 0


def _import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="written by `export` or `precompile`. Your processes will load the compiled kernels in it: "
        "name only files from someone whose code you would run",
    )


def _import(arguments: Namespace) -> int:
    check_start(arguments.file)  # before a cache directory is created for it
    path = cache_dir(arguments)
    is_new, is_missing = check_target(path, named=bool(arguments.cache_dir)), not path.exists()
    store = open_to_write(arguments, create=True)
    try:
        imported = import_archive(store, arguments.file)
    except CacheError:
        if is_missing:
            _remove_empty(store)
        raise
    _say_imported(arguments, imported, store, is_new=is_new)
    return 0


def _say_imported(arguments: Namespace, imported: Imported, store: Store, *, is_new: bool) -> None:
    """Print what was taken over, and whether the cache is new."""
    text = _imported_text(imported)
    if is_new:
        text = f"{announcement(store.root)}\n{text}"
    say(arguments, {**asdict(imported), "cache_dir": str(store.root), "created": is_new}, text)


def _remove_empty(store: Store) -> None:
    """Remove a cache directory that was created for an import in vain."""
    with suppress(OSError):
        if {path.name for path in store.root.iterdir()} <= {"schema.json", "private", "locks"}:
            shutil.rmtree(store.root)


def _imported_text(imported: Imported) -> str:
    separate = ("merged", "unchanged", "packs", "libraries")
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
    if imported.libraries:
        lines.append(
            f"It holds {imported.libraries} libraries of native code, which your processes will load."
        )
    return "\n".join(lines)


def _merge_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="A", type=Path, help="cache directory that takes over")
    parser.add_argument("source", metavar="B", type=Path, help="cache directory that is read")


def _merge(arguments: Namespace) -> int:
    target_path, source_path = arguments.target.expanduser(), arguments.source.expanduser()
    check_source(source_path)
    is_new = check_target(target_path)
    if not is_new and target_path.samefile(source_path):
        raise CacheError(f"{target_path} and {source_path} are the same cache; name two")
    source = open_store(source_path, read_only=True)
    target = open_store(target_path)
    _say_imported(arguments, merge_stores(target, source), target, is_new=is_new)
    return 0


VERBS = (
    Verb("export", "write the cache, or a part of it, to one file", _export_arguments, _export),
    Verb("import", "take over an exported file, checked first", _import_arguments, _import),
    Verb("merge", "take cache directory B over into A", _merge_arguments, _merge, cache=False),
)
