"""Shared by the verbs of the command line: opening the cache, reading arguments, printing."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store, open_store, report
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.layout import Layout, part
from inductor_plugin.cache.lookup.find import Match, find
from inductor_plugin.cache.records import environment_files, parse_record
from inductor_plugin.cache.trust.keys import Signer, open_signer
from inductor_plugin.cache.trust.policy import parse_trust, trust_or_nobody
from inductor_plugin.config import Config, default_cache_dir, default_trusted_keys
from inductor_plugin.config.value import PARSERS
from inductor_plugin.errors import CacheError, OptionError, expanded

_LONGEST_S = 52 * 604800
"""Longest interval. The system waits for no more than 292 years at once."""
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def count(text: str) -> int:
    """Return a whole number, 0 or more. Every number of a verb is a count, a size or a span of time.

    Raises:
        ArgumentTypeError: The text is no such number.
    """
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise ArgumentTypeError(f"{text!r} is no count; write a whole number, 0 or more")
    return int(text)


def size_bytes(text: str) -> int:
    """Return the bytes in ``500``, ``20M``, ``1.5GB`` or ``1.5GiB``, as the option ``cache_limit_bytes`` does.

    Raises:
        ArgumentTypeError: The text is not a size.
    """
    try:
        size = PARSERS["size"](text, "size")
    except OptionError:
        size = -1
    if not isinstance(size, int) or size < 0:
        raise ArgumentTypeError(f"{text!r} is no size; write bytes, or 20M, 1.5GiB")
    return size


def seconds(text: str) -> float:
    """Return the seconds in ``90``, ``12h`` or ``30d``.

    Raises:
        ArgumentTypeError: The text is not a span of time.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([smhdw]?)", text.strip().lower())
    if not match:
        raise ArgumentTypeError(f"{text!r} is no span of time; write seconds, or 12h, 30d")
    return float(match[1]) * _TIMES[match[2]]


def interval(text: str) -> float:
    """Return a span of time as `seconds` does, which is longer than none and can be waited for.

    Raises:
        ArgumentTypeError: The text is not such a span.
    """
    span = seconds(text)
    if not 0 < span <= _LONGEST_S:
        most = f"{_LONGEST_S // _TIMES['w']}w"
        raise ArgumentTypeError(
            f"{text!r} is no interval; write a time longer than 0, and of {most} at most"
        )
    return span


def open_cache(arguments: Namespace, *, must_exist: bool = True) -> Store:
    """Return the cache that the arguments name, to be read: nothing in it changes.

    Args:
        arguments: With ``cache_dir``; the default directory if it is empty.
        must_exist: Whether the default directory has to exist; a named one always has to.

    Raises:
        CacheError: The cache does not exist.
        CacheRefusedError: Another user owns the directory or may write to it.
    """
    path = cache_dir(arguments)
    if not path.is_dir() and (must_exist or arguments.cache_dir or path.exists()):
        what = "is no directory" if path.exists() else "does not exist"
        raise CacheError(f"there is no cache at {path}, which {what}; name one with --cache-dir")
    return open_store(path, read_only=True, trust=trust_or_nobody(default_trusted_keys()))


def open_to_write(arguments: Namespace, *, create: bool = False) -> Store:
    """Return the cache that the arguments name, to be changed.

    Raises:
        CacheError: The cache does not exist and ``create`` is False, or it cannot be written to.
        CacheRefusedError: Another user owns the directory or may write to it.
    """
    path = cache_dir(arguments)
    if not create:
        open_cache(arguments)
    store = open_store(path, create=create, trust=trust_or_nobody(default_trusted_keys()))
    if store.degraded is not None:
        raise CacheError(f"{path} cannot be changed: {store.degraded}")
    return store


def cache_dir(arguments: Namespace) -> Path:
    """Return the cache directory that the arguments name, or the default one."""
    return named_cache(arguments) or default_cache_dir()


def named_cache(arguments: Namespace) -> Path | None:
    """Return the cache directory that the arguments name, None if they name none.

    Raises:
        CacheError: It is below the folder of a user who is not known here.
    """
    if not arguments.cache_dir:
        return None
    return expanded(arguments.cache_dir, "--cache-dir", CacheError)


def is_cache(path: Path) -> bool:
    """Return True if a folder has ``schema.json`` or one of the folders of a cache."""
    layout = Layout(path)
    marks = (layout.schema, layout.records, layout.kernels, layout.packs, layout.quarantined)
    return any(mark.exists() for mark in marks)


def check_target(path: Path, *, named: bool = True) -> bool:
    """Return True if filling this cache will create it; nothing is created yet.

    Args:
        path: The cache directory.
        named: Whether the user named it. The folders above the default one may be created.

    Raises:
        CacheError: It is no directory, it holds something else, or its parent folder does not exist: most
            likely a typing error.
    """
    if str(path) == "-":
        raise CacheError("'-' is no directory; name one")
    if path.exists():
        if not path.is_dir():
            raise CacheError(f"there is no cache at {path}, which is no directory; name another")
        if is_cache(path):
            return False
        if any(path.iterdir()):
            raise CacheError(
                f"{path} holds other files and is no cache; name a cache, an empty folder or a new one"
            )
    elif named and not path.parent.is_dir():
        raise CacheError(
            f"cannot make a cache at {path}: there is no folder {path.parent}; make it or name another"
        )
    return True


def check_source(path: Path) -> None:
    """Raise CacheError if there is no cache at a path."""
    if not path.is_dir():
        raise CacheError(f"there is no cache at {path}; name an existing directory")
    if not is_cache(path):
        raise CacheError(
            f"{path} is no cache: it has neither schema.json nor records; name another"
        )


def announcement(path: Path) -> str:
    """Return the line that says that a cache was created."""
    return f"new cache at {path}"


def force_argument(parser: ArgumentParser, what: str = "replace a file that is there") -> None:
    """Add ``--force`` and ``-y``, two names of one switch."""
    parser.add_argument("--force", "-y", action="store_true", help=what)


def output_file(file: Path, *, force: bool | None = None) -> Path:
    """Return the path of a file to write.

    Args:
        file: As it was named.
        force: Whether it may replace a file; None where the verb never does.

    Raises:
        CacheError: Its folder does not exist, it is no plain file, or it exists and ``force`` is not True.
    """
    path = expanded(file, "the file", CacheError)
    if str(file) == "-":
        raise CacheError("'-' is no file; name one")
    if not path.parent.is_dir():
        raise CacheError(
            f"cannot write {path}: there is no folder {path.parent}; make it or name another file"
        )
    if path.exists() and not path.is_file():
        raise CacheError(f"cannot write {path}: it is no plain file; name another")
    if path.exists() and not force:
        ways = (
            "name another file"
            if force is None
            else "replace it with --force, or name another file"
        )
        raise CacheError(f"{path} is there already; {ways}")
    return path


def trust_argument(parser: ArgumentParser) -> None:
    """Add ``--trust``."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="take native code that no key of trusted_keys has signed, too: your processes will run it, so name only what comes "
        "from someone whose code you would run",
    )


def check_trusted_keys() -> None:
    """Raise TrustError if ``INDUCTOR_PLUGIN_TRUSTED_KEYS`` cannot be used: nothing would be trusted that should be."""
    parse_trust(default_trusted_keys())


def process_signer() -> Signer | None:
    """Return the key that ``INDUCTOR_PLUGIN_SIGNING_KEY`` names, None if it names none.

    Raises:
        TrustError: It cannot be used.
    """
    return open_signer(Config.load().signing_key)


def check_op(store: Store, op: str | None) -> None:
    """Raise CacheError if an operator is named that no record has."""
    ops = sorted({path.parent.name for path in store.record_paths()})
    if op is not None and part(op) not in ops:
        raise CacheError(f"no record is of operator {op!r}; there are {', '.join(ops) or 'none'}")


def check_environment(store: Store, start: str | None) -> None:
    """Raise CacheError if an environment is named that has neither fields nor a record."""
    if not start:
        return
    of_records = {path.parent.parent.name for path in store.record_paths()}
    known = of_records | {path.parent.name for path in environment_files(store.layout.records)}
    if not any(digest.startswith(start) for digest in known):
        listed = "`inductor-plugin ls --environments` lists them"
        raise CacheError(f"no environment begins with {start!r}; {listed}")


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
    """Print the fields as JSON, or the text without characters that a terminal obeys."""
    print(json.dumps(fields, indent=2) if arguments.json else report.plain_text(text))


def lines_to(arguments: Namespace) -> Callable[[str], None]:
    """Return a function that prints progress lines; with ``--json``, or once their reader has gone, they are dropped."""

    def print_line(text: str) -> None:
        if not arguments.json:
            # Progress is not the result: the work goes on without a reader (`| head -1`).
            with suppress(BrokenPipeError):
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
        cache: Whether it works on the cache that ``--cache-dir`` names.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    cache: bool = True
