"""The verbs that fill a remote from the cache, and the cache from a remote; and what ``stats`` says of remotes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict

from inductor_plugin.cache.remote.files import Files, open_files
from inductor_plugin.cache.remote.transfer import TransferPart, Transferred, pull, push
from inductor_plugin.cache.report import size_text
from inductor_plugin.cli.verb import (
    Verb,
    announcement,
    cache_dir,
    check_environment,
    check_op,
    check_target,
    check_trusted_keys,
    open_cache,
    open_to_write,
    process_signer,
    say,
    trust_argument,
)
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError, printable, without_user


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="the remote; that of INDUCTOR_PLUGIN_REMOTE_URL if it is left out",
    )
    parser.add_argument("--op", help="only records of this operator")
    parser.add_argument(
        "--environment", metavar="KEY", default="", help="only this environment, by its start"
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="winners' compiled kernels, too. Your processes will load what `pull` takes over, so it has to be signed by one "
        "of INDUCTOR_PLUGIN_TRUSTED_KEYS, or taken with --trust; `push` signs with INDUCTOR_PLUGIN_SIGNING_KEY",
    )


def _pull_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)
    trust_argument(parser)


def _files(arguments: Namespace) -> tuple[Files, str]:
    """Return the remote that is named, and its URL for messages.

    Raises:
        CacheError: None is named, or it cannot be opened.
        OptionError: It is no URL.
    """
    options = {"remote_url": arguments.url} if arguments.url else {}
    url = Config.load(options).remote_url
    if not url:
        raise CacheError("no remote is named; name one, or set INDUCTOR_PLUGIN_REMOTE_URL")
    return open_files(url), without_user(url)


def _part(arguments: Namespace) -> TransferPart:
    return TransferPart(arguments.kernels, arguments.environment, arguments.op)


def _push(arguments: Namespace) -> int:
    store = open_cache(arguments)
    check_op(store, arguments.op)
    check_environment(store, arguments.environment)
    files, url = _files(arguments)
    signer = process_signer() if arguments.kernels else None
    done = push(store, files, _part(arguments), signer=signer, source=url)
    text = (
        f"{url}: {done.records} records, {done.changed} written, {_known(done)} known there, "
        f"{size_text(done.amounts.bytes_written)}"
    )
    return _said(arguments, done, url, text)


def _pull(arguments: Namespace) -> int:
    check_trusted_keys()
    files, url = _files(arguments)
    path = cache_dir(arguments)
    is_new = check_target(path, named=bool(arguments.cache_dir))
    store = open_to_write(arguments, create=True)
    done = pull(store, files, _part(arguments), trusted=arguments.trust, source=url)
    text = (
        f"{url}: {done.records} records, {done.changed} new or changed here, {done.amounts.kernels} kernels, "
        f"{size_text(done.amounts.bytes_read)}"
    )
    return _said(arguments, done, url, f"{announcement(path)}\n{text}" if is_new else text)


def _known(done: Transferred) -> int:
    return done.records - done.changed - done.failed


def _said(arguments: Namespace, done: Transferred, url: str, text: str) -> int:
    """Print what was done; return 1 if a part of it was not."""
    if done.refused:
        text += (
            f"\n{done.amounts.refused} kernels were refused, the first: {printable(done.refused)}"
        )
    if done.amounts.full:
        text += f"\n{done.amounts.full} records are full there: what is new in them stays here"
    if done.failed:
        text += f"\n{done.failed} records failed, the first: {printable(done.reason)}; run it again"
    say(arguments, {"url": url, **asdict(done)}, printable_lines(text))
    return int(done.failed > 0 or bool(done.refused))


def printable_lines(text: str) -> str:
    """Return text whose lines have no control characters."""
    return "\n".join(map(printable, text.splitlines()))


def lines(fields: Mapping[str, int]) -> dict[str, str]:
    """Return the lines of ``stats`` on remotes, none if no process has asked one."""
    counts = {n.removeprefix("remote_"): v for n, v in fields.items() if n.startswith("remote_")}
    if not counts:
        return {}

    def count(name: str) -> int:
        return counts.get(name, 0)

    asked, hits = count("asked"), count("hits")
    refused = f" ({count('refused')} refused)" if count("refused") else ""
    share = f"{hits} of {asked} ({hits / asked:.1%})" if asked else "0"
    return {
        "Remote": f"hits {share}, {count('kernels')} kernels{refused}, {size_text(count('bytes_read'))} read; "
        f"{count('sent')} written, {size_text(count('bytes_written'))}",
        "": f"{count('saved_ms') / 1e3:.1f} s of compiling and measuring saved, {count('waited_ms') / 1e3:.1f} s waited; "
        f"{count('failures')} failures, {count('corrupt')} damaged, {count('unsent')} not written, {count('full')} full",
    }


VERBS = (
    Verb("push", "write the cache's records to a remote (option remote_url)", _arguments, _push),
    Verb("pull", "take over what a remote knows, checked first", _pull_arguments, _pull),
)
