"""The command line: ``inductor-plugin VERB``. It starts without torch."""

from __future__ import annotations

import logging
import os
import select
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from inductor_plugin.cli import (
    cache,
    listing,
    pack,
    pins,
    remote,
    removal,
    repair,
    run,
    transfer,
)
from inductor_plugin.cli.again import bench, repro
from inductor_plugin.cli.output import completion, page, versions
from inductor_plugin.cli.trust import key
from inductor_plugin.cli.verb import Verb
from inductor_plugin.errors import InductorPluginError, OptionError, printable

VERBS: tuple[Verb, ...] = (
    *run.VERBS,
    *listing.VERBS,
    *cache.VERBS,
    *page.VERBS,
    *repro.VERBS,
    *bench.VERBS,
    *removal.VERBS,
    *repair.VERBS,
    *transfer.VERBS,
    *remote.VERBS,
    *pins.VERBS,
    *pack.VERBS,
    *key.VERBS,
    *completion.VERBS,
)
"""Every verb. A verb imports heavy packages only when it runs."""

_REFUSED = 2
_UNREAD = 141
"""The status of a program whose reader is gone, as a shell has it: 128 and the number of SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0 done, 1 something is wrong, 2 could not be done, 141 its output was not read.

    Args:
        argv: The arguments; this process's own by default.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.shows_versions:
        if arguments.json:
            parser.error("--version is text; leave out --json")
        print(versions.versions_text())
        return 0
    if arguments.verb is None:
        parser.print_help(sys.stderr)
        return _REFUSED
    try:
        if arguments.cache_dir and not arguments.uses_cache:
            raise OptionError("--cache-dir has no meaning here; name the directories or files")
        with _printable_warnings():
            status: int = arguments.run(arguments)
        _is_read()  # a verb that has done its work keeps its status, whether the rest is read or not
    except (InductorPluginError, OSError, UnicodeError) as error:
        if isinstance(error, BrokenPipeError) and not _is_read():
            return _UNREAD
        reason = printable(str(error))
        print(f"inductor-plugin {arguments.verb}: {reason}", file=sys.stderr)
        return _REFUSED
    except KeyboardInterrupt:
        return 130
    return status


def _is_read() -> bool:
    """Write what is printed so far; return False if the reader (``| head``) is gone, and print nothing from now on."""
    try:
        sys.stdout.flush()
        # A failed write of much leaves nothing that a flush would write.
        is_read = not _has_no_reader()
    except BrokenPipeError:
        is_read = False
    if not is_read:
        # Without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_read


def _has_no_reader() -> bool:
    """Return True if standard output is a pipe whose other end is closed."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is no file of the system
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Printable(logging.Formatter):
    """Warnings on one line: they quote what is in the cache, which may be someone else's."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return printable(super().formatMessage(record))


@contextmanager
def _printable_warnings() -> Generator[None]:
    """Write the plugin's warnings to standard error, unless logging is set up."""
    logger = logging.getLogger("inductor_plugin")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Printable())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="inductor-plugin",
        description="Look at, check and move what tuning has learnt.",
        epilog="Exit status: 0 done, 1 something is wrong, 2 could not be done.",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        dest="shows_versions",  # `wheel` has a --version of its own
        help="the versions of the plugin, of torch and of the tools",
    )
    _shared_arguments(parser, default=None)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        subparser = verbs.add_parser(verb.name, help=verb.help, description=verb.help)
        # Not set there, they keep what was given before the verb.
        _shared_arguments(subparser, default=SUPPRESS, cache=verb.cache)
        verb.add_arguments(subparser)
        subparser.set_defaults(run=verb.run, uses_cache=verb.cache, parser=parser)
    return parser


def _shared_arguments(parser: ArgumentParser, *, default: str | None, cache: bool = True) -> None:
    if cache:
        parser.add_argument(
            "--cache-dir",
            metavar="DIR",
            default=default,
            help="cache directory; the default one if unset",
        )
    parser.add_argument(
        "--json", action="store_true", default=default or False, help="write JSON instead of text"
    )
