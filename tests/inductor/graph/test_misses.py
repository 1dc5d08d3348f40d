"""Misses are told when they happen, and kept for the process that had them last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import misses
from inductor_plugin.inductor.graph.report import report
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.cache.records import ENVIRONMENT, measured, record
from tests.support.fakes.tasks import offer, problem


@pytest.fixture(autouse=True)
def none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "_MISSES", {})


@pytest.fixture
def store(cache_dir: Path) -> Store:
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    return store


def config(store: Store, policy: str = "cached") -> Config:
    return Config.load({"cache_dir": str(store.root), "policy": policy}, {})


def selection_of(store: Store, environment: str) -> Selection:
    return Selection(config(store), store, environment, dict, Counters())


def plan(store: Store, rows: int = 64, selection: Selection | None = None) -> TuningTicket:
    selection = selection or selection_of(store, record().environment)
    offers = [offer("library", library=True), offer("a")]
    ticket = selection.plan(problem(rows=rows), offers, {}, None, None)
    assert not ticket.hit
    return ticket


def test_a_miss_is_one_line_that_names_the_problem_and_why(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    known = problem(rows=32)
    store.put_record(record(measured("a"), problem=1))
    near = record(measured("a"), digest="d" * 64)
    store.put_record(replace(near, problem=known.fields(), describe=known.describe()))
    caplog.set_level("INFO", "inductor_plugin")
    misses.add(plan(store), store, record().environment)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("miss")]
    assert line.startswith(
        f"miss: {problem().describe()}: no record; the nearest, dddddddddddd of "
    )
    assert "inputs.0.size: [32, 32] -> [64, 32]" in line


def test_all_misses_of_a_process_are_kept(store: Store) -> None:
    for rows in (64, 65):
        misses.add(plan(store, rows), store, record().environment)
        misses.keep(store, config(store))
    kept = store.misses()
    assert kept is not None
    assert [m["describe"] for m in kept["misses"]] == [
        problem(rows=rows).describe() for rows in (64, 65)
    ]
    assert kept["policy"] == "cached"


def test_a_process_without_misses_leaves_those_before(store: Store) -> None:
    misses.keep(store, config(store))
    assert not store.layout.misses.exists()


def test_with_cached_alone_misses_are_one_warning(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    environment = record().environment
    ticket = plan(store)
    misses.warn_of_cached([ticket], config(store, "tune"), store, environment)
    misses.warn_of_cached([], config(store), store, environment)
    assert caplog.records == []
    for _ in range(2):
        misses.warn_of_cached([ticket], config(store), store, environment)
    (warning,) = caplog.records
    assert f"{store.root} has no record of this machine" in warning.getMessage()
    assert "explain --last" in warning.getMessage()


def test_a_missing_record_is_told_from_a_wrong_cache(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_record(record(measured("a")))
    misses.warn_of_cached([plan(store)], config(store), store, record().environment)
    assert "1 of 1 problems have no record in" in caplog.text


def test_a_record_that_nobody_checked_is_told_from_a_missing_record(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    known = problem()
    rows = [
        replace(measured(name), provenance={"numbers": "unchecked"}) for name in ("library", "a")
    ]
    fields: dict[str, Any] = {
        "op": known.op,
        "digest": problem_digest(known),
        "problem": known.fields(),
    }
    store.put_record(record(*rows, **fields))
    caplog.set_level("INFO", "inductor_plugin")
    ticket, environment = plan(store), record().environment
    misses.add(ticket, store, environment)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("miss")]
    assert line == (
        f"miss: {known.describe()}: its record {ticket.digest[:12]} has 1 of 2 candidates that are not "
        "used (numbers not checked): a; compile once with policy=tune to measure them, or set "
        "verify_numerics=off to use them unchecked"
    )
    misses.warn_of_cached([ticket], config(store), store, environment)
    warning = caplog.records[-1].getMessage()
    assert "no record" not in warning
    assert f"1 of 1 problems have measurements in {store.root} that are not used" in warning
    assert "(numbers not checked)" in warning


def test_a_graph_of_two_devices_counts_each_problem_once_and_each_device_has_its_own_misses(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_record(record(measured("a")))  # of the CPU; of the GPU the cache has none
    gpu = store.put_environment(ENVIRONMENT | {"device": {"name": "cuda"}})
    tickets: list[TuningTicket] = []
    contexts: list[Any] = []
    for environment, hits in ((record().environment, [True, True]), (gpu, [False])):
        selection = selection_of(store, environment)
        trace = SimpleNamespace(write=lambda: None)
        context = SimpleNamespace(trace=trace, store=store, environment=environment)
        contexts.append((context, selection))
        for hit in hits:
            tickets.append(plan(store, 64 + len(tickets), selection))
            tickets[-1].hit = hit
    report(tickets, contexts, config(store), untuned=False)
    counts = store.counters()
    assert (counts["hits"], counts["misses"]) == (2, 1)
    (warning,) = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert f"{store.root} has no record of this machine" in warning.getMessage()


def test_the_hint_of_freezing_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        misses.hint_of_freezing()
    assert "TORCHINDUCTOR_FREEZING=1" in caplog.text
    assert len(caplog.records) == 1
