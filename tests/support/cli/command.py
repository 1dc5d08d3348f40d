"""A small cache for tests of the command line, and how they run a verb on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cli import main
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record
from tests.support.cli.committed import hold_answer

OTHER = {"device": {"name": "cpu"}, "software": {"torch": "2.15.0"}}


def filled(cache_dir: Path) -> Store:
    """Fill a cache: three records of two environments, a kernel, a quarantine entry, counters."""
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    kernel = store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    store.put_record(
        record(
            measured("fast", 1.0, kernel=kernel.digest),
            measured("slow", 2.0),
            measured("bad", None, status="hung", reason="no answer in 30 s"),
            decision=decision("fast", 3),
            rejected={"cutlass": "A must be row-major"},
        )
    )
    store.put_record(record(measured("fast", 1.5), problem=2, decision=decision("fast")))
    store.put_record(
        record(
            measured("slow", 3.0),
            environment=store.put_environment(OTHER),
            decision=decision("slow"),
            updated=2000.0,
        )
    )
    store.quarantine(record().environment, "bad-1", {"status": "hung", "reason": "r"})
    store.add_counts(hits=4, misses=2)
    return store


def run(store: Store, *arguments: object, status: int = 0) -> int:
    """Run a verb on a cache, and compare its exit status."""
    verb, *rest = map(str, arguments)
    ended = main([verb, "--cache-dir", str(store.root), *rest])
    assert ended == status
    return ended


def answer_of(
    store: Store, capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0
) -> Any:
    """Run a verb on a cache, and return what it says with ``--json``, which follows the committed schema."""
    run(store, *arguments, "--json", status=status)
    said = json.loads(capsys.readouterr().out)
    hold_answer([str(word) for word in arguments], said)
    return said


def key() -> str:
    """Name the first record uniquely: another environment has the same problem."""
    return f"{record().environment[:12]}/{record().digest[:12]}"
