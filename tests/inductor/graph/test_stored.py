"""Which decisions a graph carries into Inductor's cache: its own, not those of a graph before it."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.config import Config
from inductor_plugin.inductor.facts.scope import host_counts
from inductor_plugin.inductor.facts.toolchain import software_of
from inductor_plugin.inductor.graph import stored
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import load
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.ranks.simulated import MemoryStore, job_of, measured

untyped: Any = stored
DIGEST = "ab" * 32
KEYS = (f"decision/mm/{DIGEST}", "decided", "log/1")


def remember() -> None:
    """Lower a graph with one problem, as a session says at its end."""
    ticket = job_of(2)[0][0].ticket("problem")
    ticket.verdict = Verdict("fast", "library", "it is")
    stored.add_decisions([("group", ticket)])


def test_a_graph_carries_what_was_decided_for_it() -> None:
    remember()
    graph = SimpleNamespace()
    assert [each.winner for each in stored.carry_decisions(graph)] == ["fast"]
    assert [each.winner for each in stored.carry_decisions(graph)] == ["fast"]
    assert stored.carry_decisions(SimpleNamespace()) == ()


def test_branches_add_their_decisions_once() -> None:
    remember()
    remember()
    other = job_of(2)[0][0].ticket("another")
    other.verdict = Verdict("library", "library", "it is")
    stored.add_decisions([("group", other)])
    carried = stored.carry_decisions(SimpleNamespace())
    assert [each.winner for each in carried] == ["fast", "library"]


def test_decisions_of_a_graph_that_was_not_stored_are_not_the_next_ones() -> None:
    remember()  # provisional, or its compile has failed since
    untyped._looking_up(lambda: (None, {}))()  # a graph without products
    assert stored.carry_decisions(SimpleNamespace()) == ()


def test_without_inductors_cache_they_are_not_the_next_ones_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "active_config", lambda: Config.load({}, environ={}))
    monkeypatch.setattr(stored, "joined", lambda: None)
    remember()
    untyped._noting(lambda _self: None)(SimpleNamespace())
    assert stored.carry_decisions(SimpleNamespace()) == ()


def test_a_graph_that_is_served_is_in_the_trace_once_and_one_that_was_lowered_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(stored.torch_trace, "write_stored", written.append)
    monkeypatch.setattr(stored, "active_config", lambda: Config.load({}, environ={}))
    monkeypatch.setattr(stored, "joined", lambda: None)
    post_compile = untyped._noting(lambda _self: None)
    remember()
    lowered = SimpleNamespace()
    stored.carry_decisions(lowered)  # as it is stored
    post_compile(lowered)
    assert written == []
    served = SimpleNamespace(inductor_plugin_decisions=(("group", "mm/aa", "fast", "library"),))
    post_compile(served)
    assert written == [[("mm/aa", "fast", "library")]]
    post_compile(SimpleNamespace(inductor_plugin_decisions=()))  # without problems
    assert len(written) == 1


@pytest.mark.parametrize("same", [True, False])
def test_a_graph_of_another_environment_is_compiled_again(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store = Config.load({"cache_dir": str(tmp_path)}, environ={}), MemoryStore()
    monkeypatch.setattr(stored, "active_config", lambda: config)
    monkeypatch.setattr(stored, "current", lambda _config: Job(0, 2, store, "token"))
    context = RUNTIME.context(config, "cpu", software_of("cpu"))
    group = context.terms(host_counts=host_counts()).group if same else "of another driver"
    rank = job_of(2)[0][0]
    ticket = rank.ticket(DIGEST, known={name: measured(name, 1.0) for name in ("library", "fast")})
    record = replace(rank.selection.record_of(ticket), environment=context.environment)
    context.store.put_record(record)
    decisions = ((group, f"mm/{DIGEST}", "fast", "library"),)
    graph = SimpleNamespace(
        device_types=["cpu"], device_idxs=[], inductor_plugin_decisions=decisions
    )
    served, *_ = untyped._looking_up(lambda: (graph, {}))()
    assert served is (graph if same else None)
    # What nobody of this job reads is not published either.
    assert [*store.values] == [f"{group}/{key}" for key in KEYS if same]
    for text in [*store.values.values()][:1]:
        assert load(text).rows.keys() == {"library", "fast"}


@pytest.mark.parametrize(
    ("recorded", "policy", "served"),
    [(True, "cached", True), (False, "cached", False), (False, "tune", True)],
)
def test_a_graph_that_rests_on_no_measurement_does_not_speak_for_a_rank_that_only_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, *, recorded: bool, served: bool
) -> None:
    config = Config.load({"cache_dir": str(tmp_path), "policy": policy}, environ={})
    memory = MemoryStore()
    monkeypatch.setattr(stored, "active_config", lambda: config)
    monkeypatch.setattr(stored, "current", lambda _config: Job(0, 2, memory, "token"))
    context = RUNTIME.context(config, "cpu", software_of("cpu"))
    group = context.terms(host_counts=host_counts()).group
    if recorded:
        rank = job_of(2)[0][0]
        known = {name: measured(name, 1.0) for name in ("library", "fast")}
        record = rank.selection.record_of(rank.ticket(DIGEST, known=known))
        context.store.put_record(replace(record, environment=context.environment))
    decisions = ((group, f"mm/{DIGEST}", "fast", "library"),)
    graph = SimpleNamespace(
        device_types=["cpu"], device_idxs=[], inductor_plugin_decisions=decisions
    )
    graph_or_none, *_ = untyped._looking_up(lambda: (graph, {}))()
    assert (graph_or_none is graph) is served
    assert bool(memory.values) is served


def test_a_graph_carries_what_was_decided_for_its_problems_alone() -> None:
    """What the graph as a whole has given up was chosen, too: another rank's graph need not give it up."""
    rank = job_of(2)[0][0]
    verdicts = {
        "given up": Verdict("library", "library", "the graph is slower", given_up="fast"),
        "undecided": None,
        "without any": Verdict(None, None, "nothing could be measured"),
        "alone": Verdict("fast", None, "it is"),
    }
    tickets: list[Any] = []
    for name, verdict in verdicts.items():
        ticket = rank.ticket(name)
        ticket.verdict = verdict
        tickets.append(("group", ticket))
    stored.forget_decisions()
    stored.add_decisions(tickets)
    carried = stored.carry_decisions(SimpleNamespace())
    assert [(each.winner, each.library) for each in carried] == [
        ("fast", "library"),
        ("fast", None),
    ]
