"""The command line: ``inductor-plugin VERB``. It starts without torch."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from inductor_plugin.cli import cache, pack, repro, run, transfer
from inductor_plugin.cli.verb import Verb
from inductor_plugin.errors import InductorPluginError
from inductor_plugin.version import __version__

VERBS: tuple[Verb, ...] = (
    *run.VERBS,
    *cache.VERBS,
    *transfer.VERBS,
    *pack.VERBS,
    *repro.VERBS,
)
"""Every verb. A verb imports heavy packages only when it runs."""

_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0 done, 1 something is wrong, 2 could not be done.

    Args:
        argv: The arguments; this process's own by default.
    """
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InductorPluginError, OSError) as error:
        print(f"inductor-plugin {arguments.verb}: {error}", file=sys.stderr)
        return _REFUSED
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="inductor-plugin", description="Look at, check and move what tuning has learnt."
    )
    parser.add_argument("--version", action="version", version=f"inductor-plugin {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        subparser = verbs.add_parser(verb.name, help=verb.help, description=verb.help)
        subparser.add_argument(
            "--cache-dir", metavar="DIR", help="cache directory; the default one if unset"
        )
        subparser.add_argument("--json", action="store_true", help="write JSON instead of text")
        verb.add_arguments(subparser)
        subparser.set_defaults(run=verb.run)
    return parser
