"""The verb that prints the completion of verbs and options for a shell: ``completion``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from inductor_plugin.cli.verb import Verb
from inductor_plugin.errors import OptionError

SHELLS = ("bash", "zsh")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def _completion(arguments: Namespace) -> int:
    try:
        import shtab  # noqa: PLC0415  an optional package
    except ImportError:
        raise OptionError(
            'completion needs the package shtab; pip install "inductor-plugin[completion]"'
        ) from None
    print(shtab.complete(arguments.parser, arguments.shell))
    return 0


VERBS = (
    Verb(
        "completion",
        'completion for a shell: eval "$(inductor-plugin completion bash)"',
        _arguments,
        _completion,
        cache=False,
    ),
)
