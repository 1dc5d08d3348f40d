"""What is done to a file: values of each type in each field, bytes of each class, something that is no file."""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, settings, strategies
from hypothesis.strategies import SearchStrategy

from inductor_plugin.cache import document

Attack = tuple[str, Callable[[Path], None]]
"""A description, and what is done to a file."""

CPU_S, WALL_S = 1.0, 5.0
"""Seconds of this process and of the clock that a use of an attacked file may take; it takes 0.05 s. The clock's
limit is for waits, on a machine that does something else as well."""


@contextmanager
def quick(what: str) -> Generator[None]:
    """Fail if the block takes long; collecting the garbage of all tests before is not part of it."""
    gc.disable()
    start, busy = time.monotonic(), time.process_time()
    try:
        yield
        took_s, busy_s = time.monotonic() - start, time.process_time() - busy
    finally:
        gc.enable()
    assert busy_s < CPU_S, f"{what}: {busy_s:.1f} s"
    assert took_s < WALL_S, f"{what}: {took_s:.1f} s"


WORDS = ("field", "bytes", "signed", "cut", "flip", "odd", "drop")


def cases(number: int) -> settings:
    """Return the settings of a test with so many cases."""
    return settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


VALUES: SearchStrategy[Any] = strategies.recursive(
    strategies.one_of(
        strategies.none(),
        strategies.booleans(),
        strategies.sampled_from([0, -1, 1, 2, 2**63, 10**400, -0.0, 0.5, 1e300, 1e308]),
        strategies.sampled_from(["", "x", "../../x", "a\0b", "\x1b[2J", "n" * 5000, "ü\n"]),
    ),
    lambda inner: strategies.one_of(
        strategies.lists(inner, max_size=2),
        strategies.dictionaries(
            strategies.sampled_from(["a", "format", "extra"]), inner, max_size=2
        ),
    ),
    max_leaves=4,
)


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field, nested ones included."""
    if at:
        yield at
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value)[:2])
    for name, inner in items:
        yield from paths_of(inner, (*at, name))


def signed(body: bytes) -> bytes:
    """Return a document whose checksum fits any text."""
    return b'{\n  "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body


BODIES = [
    b"",
    b"}",
    b"null}",
    b'"a": NaN}',
    b'"format": 1, "a": 1e999}',
    b'"format": 2}',
    b'"format": 1}',
    b'"format": 1, "fields": ' + b"[" * 60 + b"]" * 60 + b"}",
    b'"format": 1, "a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'"format": 1, "\\ud800": 1}',
    b'"format": 1, "a": "\xff"}',
    b'"format": 1, "a": ' + b"9" * 5000 + b"}",
]


@strategies.composite
def attacks(draw: strategies.DrawFn, kinds: Sequence[str] = WORDS) -> Attack:
    """Return what is done to a file."""
    how = draw(strategies.sampled_from(kinds))
    if how == "odd":
        odd = draw(strategies.sampled_from(["pipe", "folder", "link", "zero", "loop", "sparse"]))
        return odd, lambda path: replace_by(path, odd)
    if how in ("field", "drop"):
        index, value = draw(strategies.integers(0, 200)), draw(VALUES)
        return f"{how} {index} {value!r:.80}", lambda path: change_field(path, index, how, value)
    if how == "signed":
        body = draw(strategies.sampled_from(BODIES))
        return f"signed {body[:60]!r}", lambda path: rewrite(path, lambda _: signed(body))
    if how == "bytes":
        data = draw(strategies.binary(max_size=60))
        return f"bytes {data!r}", lambda path: rewrite(path, lambda _: data)
    at = draw(strategies.integers(0, 4000))
    if how == "cut":
        return f"cut {at}", lambda path: rewrite(path, lambda data: data[:at])
    return f"flip {at}", lambda path: rewrite(path, lambda data: flipped(data, at))


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flipped(data: bytes, at: int) -> bytes:
    at %= max(1, len(data))
    return data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :] if data else b"x"


def change_field(path: Path, index: int, how: str, value: Any) -> None:
    """Give one field another value, or take it out; the checksum fits."""
    try:
        fields = document.load(path.read_bytes())
    except ValueError:
        fields = {}  # a library or a lock
    options = list(paths_of(fields)) or [("format",)]
    *outer, last = options[index % len(options)]
    at: Any = fields
    for name in outer:
        at = at[name]
    if how == "drop" and fields:
        del at[last]
    else:
        at[last] = copy.deepcopy(value)
    path.write_bytes(document.dump(fields))


def replace_by(path: Path, odd: str) -> None:
    path.unlink()
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    elif odd == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.symlink_to({"link": "/etc/hostname", "zero": "/dev/zero", "loop": path.name}[odd])
