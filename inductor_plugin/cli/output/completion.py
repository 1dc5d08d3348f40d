"""The verb that prints the completion of verbs and options for a shell: ``completion``."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from inductor_plugin.cache.document import is_object
from inductor_plugin.cli.verb import Verb
from inductor_plugin.errors import OptionError

SHELLS = ("bash", "zsh")
_PATHS = ("A", "B")
"""Arguments that may be keys or paths."""


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def _completion(arguments: Namespace) -> int:
    if arguments.json:
        raise OptionError("completion is a script for a shell; leave out --json")
    try:
        import shtab  # noqa: PLC0415  an optional package
    except ImportError:
        raise OptionError(
            'completion needs the package shtab; pip install "inductor-plugin[completion]"'
        ) from None
    for action in _actions(arguments.parser):
        if action.metavar == "DIR":
            _complete_as(action, shtab.DIRECTORY)
        elif action.type is Path or action.metavar in _PATHS:
            _complete_as(action, shtab.FILE)
    print(shtab.complete(arguments.parser, arguments.shell))
    return 0


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yield the arguments of a parser and of its verbs; argparse has no public list of them."""
    actions: list[Action] = vars(parser)["_actions"]
    for action in actions:
        yield action
        if is_object(action.choices):  # the verbs
            for verb in action.choices.values():
                yield from _actions(verb)


def _complete_as(action: Action, what: object) -> None:
    """Let the shell offer what shtab names so: it reads an attribute that argparse does not know."""
    setattr(action, "complete", what)  # noqa: B010  as an assignment no type checker takes it


VERBS = (
    Verb(
        "completion",
        'completion for bash or zsh: eval "$(inductor-plugin completion bash)"',
        _arguments,
        _completion,
        cache=False,
    ),
)
