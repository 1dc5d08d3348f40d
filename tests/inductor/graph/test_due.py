"""A graph in Inductor's cache is compiled again once its decisions are, or there is time to compare it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor import codecache
from torch.compiler._cache import CacheArtifactManager

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor.allowance import MOST_S, Allowance, account_of
from inductor_plugin.inductor.graph import due as due_module
from inductor_plugin.inductor.graph.due import (
    DroppedGraph,
    Due,
    carry,
    due_of,
    due_of_decisions,
    first_of,
    is_dropped,
    keep_place,
    settle,
    taken_dropped,
)
from inductor_plugin.tuning import validity
from tests.support.cache.records import measured
from tests.support.fakes.selection import offers, race, rig

ACCOUNT = account_of("e" * 64)
KEY = "f" + "a" * 40


@pytest.mark.parametrize(("left_s", "is_due"), [(5.9, False), (6.0, True), (-1.0, False)])
def test_it_is_due_when_what_it_needs_is_left(left_s: float, *, is_due: bool) -> None:
    assert Due(need_s=6.0, account=ACCOUNT).is_affordable(left_s) is is_due
    assert not Due(at=5.0).is_affordable(left_s)


@pytest.mark.parametrize(
    ("due", "kept"),
    [
        (Due(at=0.0), False),  # the next compile decides again
        (Due(at=0.0, need_s=6.0), False),
        (Due(at=5.0), True),
        (Due(need_s=6.0), True),
        (Due(), False),  # nothing would ever make it due
    ],
)
def test_inductors_cache_keeps_what_becomes_due_later(due: Due, *, kept: bool) -> None:
    assert due.is_kept is kept


def test_of_several_reasons_the_first_counts() -> None:
    assert first_of([None]) is None
    dues = [
        Due(at=9.0, failures=2, tries=4),
        None,
        Due(need_s=6.0, account=ACCOUNT),
        Due(at=5.0, tries=2, compile_s=3.0),
    ]
    assert first_of(dues) == Due(5.0, 6.0, ACCOUNT, 2, 2, 3.0)


@pytest.mark.parametrize(
    ("tries", "compile_s", "left_s", "is_late"),
    [
        (0, 60.0, 0.0, True),  # of an earlier version
        (1, 60.0, 0.0, True),
        (2, 60.0, 59.0, False),
        (2, 60.0, 60.0, True),
        (9, MOST_S + 60.0, MOST_S, True),  # more is never saved up
        (9, 60.0, -1.0, False),
    ],
)
def test_after_a_free_one_each_compile_has_to_be_saved_up(
    tries: int, compile_s: float, left_s: float, *, is_late: bool
) -> None:
    due = Due(at=5.0, tries=tries, compile_s=compile_s)
    assert due.is_late(6.0, lambda: left_s) is is_late
    assert not due.is_late(4.0, lambda: 1e6)


def test_a_busy_machine_spends_no_more_than_the_share_on_measuring_again(
    cache_dir: Path, inductor_cache: Path
) -> None:
    """A graph that takes a minute, one provisional problem, a warm start a day and a cold compile of as long a week: a year."""
    config, graph = Config.load({"cache_dir": str(cache_dir)}, environ={}), SimpleNamespace()
    store, compiled_s, spent_s = open_store(cache_dir), 60.0, 0.0
    for day in range(365):
        if day % 7 == 0:
            keep_place(store, "e" * 64)
            assert settle(config, DroppedGraph(), 60.0) == ACCOUNT
            compiled_s += 60.0
        carry(graph, Due(at=time.time() - 1.0, account=ACCOUNT, tries=1 + day, compile_s=60.0))
        if is_dropped(graph, KEY, config):
            dropped = taken_dropped()
            assert dropped.is_paid is (day > 0)
            keep_place(store, "e" * 64)
            settle(config, dropped, 60.0)
            spent_s += 60.0
    assert 120.0 <= spent_s <= 60.0 + config.verify_graph_share * (compiled_s + 60.0)


def test_decisions_are_due_when_the_first_of_their_measurements_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", 10.0)
    ticket = rig(tmp_path).plan(offers("a"))
    race(ticket, {"library": 2.0, "a": 1.0})
    assert ticket.verdict is not None
    assert due_of_decisions([ticket]) is None
    ticket.verdict = replace(ticket.verdict, provisional=True)
    assert due_of_decisions([ticket]) == Due(at=0.0)  # it is not known why
    rows = (
        measured("library", provenance={"disturbed": True}, measured_at=9e9),
        measured("a", provenance={"disturbed": True}, measured_at=8e9),
    )
    ticket.measured = {row.candidate: row for row in rows}
    assert due_of_decisions([ticket]) == Due(at=8e9 + 10.0, tries=1)
    for row in rows:
        ticket.measured[row.candidate] = replace(row, provenance={"disturbed": True, "attempts": 3})
    assert due_of_decisions([ticket]) == Due(at=8e9 + 360.0, tries=3)


def test_a_graph_is_dropped_when_its_time_has_come(cache_dir: Path, inductor_cache: Path) -> None:
    config, graph = Config.load({"cache_dir": str(cache_dir)}, environ={}), SimpleNamespace()
    carry(graph, Due(at=time.time() + 1e6))
    assert not is_dropped(graph, KEY, config)
    carry(graph, Due(at=time.time() - 1.0, failures=3))
    assert not is_dropped(graph, KEY, replace(config, policy="cached"))
    assert taken_dropped() == DroppedGraph()
    assert is_dropped(graph, KEY, config)
    assert taken_dropped() == DroppedGraph(failures=3)
    assert taken_dropped() == DroppedGraph()


def test_a_mark_of_an_earlier_version_counts_no_failures() -> None:
    graph = SimpleNamespace(inductor_plugin_due=(5.0, 6.0, ACCOUNT))
    assert due_of(graph) == Due(5.0, 6.0, ACCOUNT, failures=0)


def test_a_graph_that_was_left_out_is_dropped_once_there_is_time(
    cache_dir: Path, inductor_cache: Path
) -> None:
    graph, config = SimpleNamespace(), Config.load({"cache_dir": str(cache_dir)}, environ={})
    config = replace(config, verify_graph="auto")
    assert due_of(graph) is None
    assert not is_dropped(graph, KEY, config)
    carry(graph, Due(need_s=6.0, account=ACCOUNT))
    assert due_of(graph) == Due(need_s=6.0, account=ACCOUNT)
    untyped: Any = codecache.FxGraphCache
    entry = Path(untyped._get_tmp_dir_for_key(KEY)) / "content"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"a graph")
    assert not is_dropped(graph, KEY, config)
    Allowance(open_store(cache_dir), ACCOUNT).earn(7.0)
    for other in ({"policy": "cached"}, {"verify_graph": "off"}, {"cache": "off"}):
        options: Any = other
        assert not is_dropped(graph, KEY, replace(config, **options))
    assert entry.exists()
    assert not taken_dropped().is_for_comparison
    assert is_dropped(graph, KEY, config)
    # The graph that is compared now is stored beside it, not in its place.
    assert not entry.exists()
    assert taken_dropped().is_for_comparison
    assert not taken_dropped().is_for_comparison


def test_a_graph_that_is_dropped_is_not_saved_among_the_artifacts(
    cache_dir: Path, inductor_cache: Path
) -> None:
    config, graph = Config.load({"cache_dir": str(cache_dir)}, environ={}), SimpleNamespace()
    carry(graph, Due(at=time.time() - 1.0))
    with CacheArtifactManager.with_fresh_cache():
        for key in (KEY, "of another graph"):
            CacheArtifactManager.record_artifact("inductor", key, b"a graph")
        assert is_dropped(graph, KEY, config)
        CacheArtifactManager.record_artifact("inductor", KEY, b"the next graph")
        saved = CacheArtifactManager.serialize()
        assert saved is not None
        artifacts = CacheArtifactManager.deserialize(saved[0])
    assert artifacts is not None
    contents = [artifact.content for artifact in artifacts["inductor"]]
    assert contents == [b"a graph", b"the next graph"]


def test_another_torch_that_keeps_its_entries_elsewhere_is_no_error(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_module, "codecache", SimpleNamespace(FxGraphCache=SimpleNamespace()))
    config = Config.load({"cache_dir": str(cache_dir), "verify_graph": "auto"}, environ={})
    graph = SimpleNamespace()
    carry(graph, Due(need_s=0.0, account=ACCOUNT))
    assert is_dropped(graph, KEY, config)
    assert taken_dropped().is_for_comparison
