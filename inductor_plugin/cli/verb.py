"""Shared by the verbs of the command line: opening the cache, reading arguments, printing."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store, open_store, report
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.find import Match, find
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.records import parse_record
from inductor_plugin.config import default_cache_dir
from inductor_plugin.errors import CacheError

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def size_bytes(text: str) -> int:
    """Return the bytes in ``500``, ``20M`` or ``1.5GB``.

    Raises:
        ArgumentTypeError: The text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if not match:
        raise ArgumentTypeError(f"{text!r} is no size; write bytes, or 20M, 1.5G")
    return int(float(match[1]) * _SIZES[match[2]])


def seconds(text: str) -> float:
    """Return the seconds in ``90``, ``12h`` or ``30d``.

    Raises:
        ArgumentTypeError: The text is not a span of time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip().lower())
    if not match:
        raise ArgumentTypeError(f"{text!r} is no span of time; write seconds, or 12h, 30d")
    return float(match[1]) * _TIMES[match[2]]


def open_cache(arguments: Namespace, *, must_exist: bool = True, create: bool = False) -> Store:
    """Return the cache that the arguments name.

    Raises:
        CacheError: The cache does not exist, and this verb does not create it.
        CacheRefusedError: Another user owns the directory or may write to it.
    """
    path = Path(arguments.cache_dir) if arguments.cache_dir else default_cache_dir()
    path = path.expanduser()
    if must_exist and not create and not path.is_dir():
        raise CacheError(f"there is no cache at {path}; name one with --cache-dir")
    return open_store(path, create=create)


@contextmanager
def undamaged(match: Match) -> Generator[None]:
    """Convert a parser's error into a CacheError that names the entry.

    Raises:
        CacheError: The entry is damaged, another version's, or cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(f"{match.path} cannot be read: {error}") from error
    except ForeignError as error:
        raise CacheError(f"{match.path} is another version's: {error}") from error
    except ValueError as error:
        raise CacheError(
            f"{match.path} is damaged: {error}; see `inductor-plugin verify`"
        ) from error


def read_record(match: Match) -> Record:
    """Return the record of a match.

    Raises:
        CacheError: The record is damaged.
    """
    with undamaged(match):
        return parse_record(read(match.path), match.path)


def find_record(store: Store, key: str, hint: str) -> tuple[Match, Record]:
    """Return the only record whose key has this prefix, and where it is.

    Args:
        store: The cache.
        key: As in `find`.
        hint: Why other entries are refused, and the verb to use.

    Raises:
        CacheError: No entry matches, several do, it is no record, or it is damaged.
    """
    match = find(store.layout, key)
    if match.kind != "record":
        raise CacheError(f"key {key!r} is a {match.kind}, and only records {hint}")
    return match, read_record(match)


def say(arguments: Namespace, fields: Any, text: str) -> None:
    """Print the fields as JSON, or the text."""
    print(json.dumps(fields, indent=2) if arguments.json else text)


def lines_to(arguments: Namespace) -> Callable[[str], None]:
    """Return a function that prints progress lines; with ``--json`` they are dropped."""

    def print_line(text: str) -> None:
        if not arguments.json:
            print(text, flush=True)

    return print_line


def counted(counts: dict[str, int]) -> str:
    """Return the counts with their names, separated by commas."""
    named = ((name.replace("_", " "), value) for name, value in counts.items())
    return ", ".join(
        f"{name} {report.size_text(value) if 'bytes' in name else value}" for name, value in named
    )


def in_environment(arguments: Namespace, environment: str) -> bool:
    """Return True if the environment matches ``--environment``, or none was requested."""
    return environment.startswith(arguments.environment or "")


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
