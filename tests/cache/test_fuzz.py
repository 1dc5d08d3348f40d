"""Whatever lies in a cache: no traceback, no long wait, no sound data lost.

Files are filled with bytes of each class (text, JSON that a checksum fits, nested, cut, flipped, huge), with a
value of each type in each field, or replaced by what is no file. Then everything that reads is called.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies

from inductor_plugin.cache import Pack, Store, open_store
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.graph import GraphEntry
from inductor_plugin.cache.merge import merge
from inductor_plugin.cache.record import from_fields, to_fields
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.decision import decide
from tests.support.cache.fuzz import VALUES, Attack, attacks, cases, quick
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)

DIGEST = kernel_key().digest
SOUND = record(measured("a"), problem=2)
"""A record beside the one that is attacked."""

QUICK, LONG = cases(60), cases(200)
KINDS = (
    "record",
    "environment",
    "kernel",
    "library",
    "quarantine",
    "pack",
    "graph",
    "counters",
    "schema",
    "lock",
    "misses",
)


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
    store.graphs.put(GraphEntry("p", "f", "forward", (SOUND.place,), 1.0))
    store.add_counts(hits=1)
    names = "op", "digest", "describe", "environment", "reason"
    row = {**dict.fromkeys(names, "x"), "unseen": ["a"], "near": None}
    store.put_misses({"pid": 1, "time": 1.0, "program": "p", "policy": "tune", "misses": [row]})
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
        "graph": next(layout.graphs.glob("*.json")),
        "counters": layout.counters,
        "schema": layout.schema,
        "lock": layout.lock(f"records-{wanted.digest[:2]}"),
        "misses": layout.misses,
    }


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
    store.graphs.everything()
    store.misses()
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
        with quick(f"{kind} {how}"):
            use(root)
        again = open_store(root)
        sound = again.record(SOUND.environment, SOUND.op, SOUND.digest)
        if kind != "schema" or again.degraded is None:  # else the directory is another format's
            assert sound is not None, how
            assert sound.candidates["a"].median_ms == 1.0
            assert kind in ("kernel", "library") or again.kernel(DIGEST) is not None, how
        assert again.layout.record(SOUND.environment, SOUND.op, SOUND.digest).exists() == (
            again.degraded is None or sound is not None
        )


@QUICK
@given(strategies.sampled_from(KINDS), attacks())
def test_no_file_of_a_cache_does_harm(template: Path, kind: str, attack: Attack) -> None:
    survives(template, kind, *attack)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@LONG
@given(attack=attacks())
def test_no_file_of_a_cache_does_harm_at_length(template: Path, kind: str, attack: Attack) -> None:
    survives(template, kind, *attack)


@QUICK
@given(VALUES)
def test_fields_that_are_no_record_are_a_value_error(value: Any) -> None:
    """No value that is drawn is a candidate: one has more than a dozen fields."""
    for fields in (
        {"format": 1, "candidates": value},
        {**to_fields(SOUND), "candidates": {"a": value}, "decision": value},
    ):
        with pytest.raises(ValueError, match="it is not a record: "):
            from_fields(fields)


@QUICK
@given(VALUES)
def test_a_field_of_a_newer_version_is_written_as_it_was_read(value: Any) -> None:
    fields = to_fields(SOUND)
    newer = from_fields({**fields, "newer": value})
    assert newer == replace(from_fields(fields), extra={"newer": value})
    assert to_fields(newer) == {**fields, "newer": value}
