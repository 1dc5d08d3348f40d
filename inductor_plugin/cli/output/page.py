"""The verb that writes what caches, pin files and benchmarks hold as one HTML page: ``report``."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from inductor_plugin.cache import open_store, report
from inductor_plugin.cli.verb import (
    Verb,
    check_source,
    force_argument,
    open_cache,
    output_file,
    say,
)
from inductor_plugin.errors import CacheError, expanded
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.gather import (
    cache_source,
    file_source,
    peak_here,
    read_json,
)
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import Source, title
from inductor_plugin.tuning.report.page.write import write_page

_MOST = 2


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="OUT.html", type=Path, help="the page to write")
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="*",
        type=Path,
        help="a cache directory, a pin file or the JSON of a benchmark; two are shown side by side. "
        "The cache by default",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="also draw what the option trace_path had written",
    )
    force_argument(parser)


def _report(arguments: Namespace) -> int:
    paths: list[Path] = [expanded(path, "a source", CacheError) for path in arguments.sources]
    if len(paths) > _MOST:
        raise CacheError(f"a page shows one source, or two side by side; there are {len(paths)}")
    if paths and arguments.cache_dir:
        raise CacheError("--cache-dir has no meaning beside a SOURCE; name the cache as one")
    file = output_file(arguments.file, force=arguments.force)
    sources: list[Source] = [_source(path) for path in paths]
    if not sources:
        sources = [cache_source(open_cache(arguments, must_exist=False))]
    trace = None
    if arguments.trace:
        trace = read_json(expanded(arguments.trace, "--trace", CacheError))
    try:
        model = page_model(sources, trace, time.time(), peak_here)
    except CacheError as error:
        raise CacheError(f"{arguments.trace}: {error}") from error
    size = write_page(file, document(model, title(sources)))
    fields = {"file": str(file), "bytes": size, "records": len(model["records"])}
    text = f"{file}: {report.size_text(size)}, {fields['records']} records"
    say(arguments, fields, text)
    return 0


def _source(path: Path) -> Source:
    if path.is_dir():
        check_source(path)
        return cache_source(open_store(path, read_only=True))
    return file_source(path)


VERBS = (
    Verb(
        "report",
        "one HTML page of a cache, a pin file or a benchmark, or of two side by side",
        _arguments,
        _report,
    ),
)
