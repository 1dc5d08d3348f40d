"""``inductor-plugin explain --last``: why the last process had misses; and what else ``explain`` takes instead of a key."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inductor_plugin.cache import report
from inductor_plugin.cli.explain.profile import explain_profile
from inductor_plugin.cli.verb import open_cache, say
from inductor_plugin.errors import CacheError


def arguments(parser: ArgumentParser) -> None:
    """Add a key, and what may be there instead of it."""
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "key", nargs="?", metavar="KEY", help="first digits of a key, or environment/key"
    )
    chosen.add_argument(
        "--last", action="store_true", help="the misses of the process that had some last"
    )
    chosen.add_argument(
        "--profile",
        metavar="FILE",
        type=Path,
        help="of which records the kernels in a trace of torch.profiler are (JSON, also .gz)",
    )


def explaining(by_key: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """Return what ``explain`` runs: ``by_key``, the misses of the last process, or a trace."""

    def run(arguments: Namespace) -> int:
        if arguments.profile:
            return explain_profile(arguments)
        return _last(arguments) if arguments.last else by_key(arguments)

    return run


def _last(arguments: Namespace) -> int:
    store = open_cache(arguments)
    fields = store.misses()
    if fields is None:
        raise CacheError(f"no process had a miss in {store.root}, or its file is damaged")
    say(arguments, fields, _text(fields))
    return 0


def _text(fields: Mapping[str, Any]) -> str:
    fields = report.shown(fields)
    misses: list[Mapping[str, Any]] = fields["misses"]
    when = report.time_text(fields["time"])
    head = (
        f"{len(misses)} {'miss' if len(misses) == 1 else 'misses'} of process {fields['pid']} ({fields['program'] or 'no program'}), "
        f"{when}, policy {fields['policy']}:"
    )
    lines = [head]
    for miss in misses:
        lines += [f"{miss['describe']}   {miss['op']}, key {miss['digest'][:12]}"]
        lines += [f"  {miss['reason']}"]
    return "\n".join(lines)
