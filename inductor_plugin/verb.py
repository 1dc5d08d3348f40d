"""One verb of the command line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """One verb of ``inductor-plugin``: its name, its arguments and what it does.

    Attributes:
        name: The word on the command line.
        help: One line for ``--help``.
        add_arguments: Adds the verb's own arguments to its parser.
        run: Does the work and returns the exit status.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
