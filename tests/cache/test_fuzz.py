"""Whatever lies in a cache: no traceback, no long wait, no sound data lost.

Files are filled with bytes of each class (text, JSON that a checksum fits, nested, cut, flipped, huge), with a
value of each type in each field, or replaced by what is no file. Then everything that reads is called.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from hypothesis.strategies import SearchStrategy

from inductor_plugin.cache import Pack, Store, document, open_store
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.record import from_fields, merge, to_fields
from inductor_plugin.errors import CacheError, OptionError
from inductor_plugin.tuning.decision import decide
from inductor_plugin.tuning.pins import Pin, dump_pins, read_pins
from tests.support.cache import ENVIRONMENT, decision, kernel_key, measured, put_library, record

DIGEST = kernel_key().digest
SOUND = record(measured("a"), problem=2)
"""A record beside the one that is attacked."""

QUICK = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=300)
KINDS = (
    "record",
    "environment",
    "kernel",
    "library",
    "quarantine",
    "pack",
    "counters",
    "schema",
    "lock",
)
SLOW_S = 5.0
"""Far above what a use takes, 0.05 s, on a machine that does something else as well."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with one entry of each kind, to be copied."""
    root = tmp_path_factory.mktemp("fuzz") / "cache"
    store = open_store(root)
    environment = store.put_environment(ENVIRONMENT)
    entry = put_library(store)
    store.put_record(record(measured("a", kernel=entry.digest), decision=decision("a")))
    store.put_record(SOUND)
    store.quarantine(environment, "c", {"candidate": "c", "status": "hung"})
    store.put_pack(Pack("H100", "sm_90a", 1.0, {"torch": "2"}, ("m:f",), ("mm",), (entry.digest,)))
    store.add_counts(hits=1)
    return root


def places(root: Path) -> dict[str, Path]:
    """Return one file of each kind."""
    store = open_store(root, create=False)
    wanted = record()
    layout, environment = store.layout, wanted.environment
    return {
        "record": layout.record(environment, wanted.op, wanted.digest),
        "environment": layout.environment(environment),
        "kernel": layout.kernel(DIGEST) / ENTRY,
        "library": layout.kernel(DIGEST) / "kernel.so",
        "quarantine": layout.quarantine(environment, "c"),
        "pack": next(layout.packs.glob("*.json")),
        "counters": layout.counters,
        "schema": layout.schema,
        "lock": layout.lock(f"records-{wanted.digest[:2]}"),
    }


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
def attacks(draw: strategies.DrawFn) -> tuple[str, Callable[[Path], None]]:
    """Return a description, and what is done to a file."""
    how = draw(strategies.sampled_from(["field", "bytes", "signed", "cut", "flip", "odd", "drop"]))
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


def use(root: Path) -> Store:
    """Call everything that reads, then what writes."""
    store, wanted = open_store(root), record()
    place = (wanted.environment, wanted.op, wanted.digest)
    store.verify()
    store.verify_packs()
    store.usage(look=True)
    store.counters()
    store.packs()
    store.packed()
    store.environment(wanted.environment)
    store.has_records(wanted.environment)
    store.kernel(DIGEST)
    list(store.iter_records())
    list(store.iter_kernels())
    store.kernels_like("gemm", "64x64", "x86_64")
    for entry in store.iter_quarantine():
        assert entry.condemned in (True, False)
    store.quarantined(wanted.environment, "c")
    stored = store.record(*place)
    if stored is not None:
        medians = {n: m.median_ms for n, m in stored.candidates.items() if m.median_ms is not None}
        decide(medians, [], 1.02, {n: m.spread_ms or 0.0 for n, m in stored.candidates.items()})
        assert merge(stored, wanted).digest == wanted.digest
    with suppress(CacheError):
        store.put_record(record(measured("b")))
    store.add_counts(hits=1)
    store.quarantine(wanted.environment, "c", {"status": "hung"})
    put_library(store)
    store.prune(max_bytes=10**15)
    return store


def survives(template: Path, kind: str, how: str, attack: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "cache"
        shutil.copytree(template, root)
        attack(places(root)[kind])
        start = time.monotonic()
        use(root)
        took_s = time.monotonic() - start
        again = open_store(root)
        sound = again.record(SOUND.environment, SOUND.op, SOUND.digest)
        if kind != "schema" or again.degraded is None:  # else the directory is another format's
            assert sound is not None, how
            assert sound.candidates["a"].median_ms == 1.0
            assert kind in ("kernel", "library") or again.kernel(DIGEST) is not None, how
        assert again.layout.record(SOUND.environment, SOUND.op, SOUND.digest).exists() == (
            again.degraded is None or sound is not None
        )
        assert took_s < SLOW_S, f"{kind} {how}: {took_s:.1f} s"


@QUICK
@given(strategies.sampled_from(KINDS), attacks())
def test_no_file_of_a_cache_does_harm(
    template: Path, kind: str, attack: tuple[str, Callable[[Path], None]]
) -> None:
    survives(template, kind, *attack)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@LONG
@given(attack=attacks())
def test_no_file_of_a_cache_does_harm_at_length(
    template: Path, kind: str, attack: tuple[str, Callable[[Path], None]]
) -> None:
    survives(template, kind, *attack)


def pins_survive(index: int, value: Any, body: bytes | None) -> None:
    fields = json.loads(dump_pins([Pin("e", "mm", "d", "mm(1)", "a")]))
    options = list(paths_of(fields))
    *outer, last = options[index % len(options)]
    at: Any = fields
    for name in outer:
        at = at[name]
    at[last] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pins.json"
        path.write_bytes(json.dumps(fields).encode() if body is None else b'{"pins": ' + body)
        with suppress(OptionError):
            pins = read_pins(str(path))
            assert all(isinstance(text, str) for item in pins.winners.items() for text in item)


@QUICK
@given(strategies.integers(0, 20), VALUES, strategies.none() | strategies.sampled_from(BODIES))
def test_no_pin_file_does_harm(index: int, value: Any, body: bytes | None) -> None:
    pins_survive(index, value, body)


@QUICK
@given(VALUES)
def test_fields_are_a_record_or_a_value_error(value: Any) -> None:
    with suppress(ValueError):
        from_fields({"format": 1, "candidates": value})
    with suppress(ValueError):
        from_fields({**to_fields(SOUND), "candidates": {"a": value}, "decision": value})
