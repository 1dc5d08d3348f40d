"""When a graph is compared, what that is expected to take, and when a later compile is to do it."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import Decision, Store, open_store
from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED, HeldProblems, held
from inductor_plugin.config import Config
from inductor_plugin.inductor.allowance import START_S, Cost, account_of
from inductor_plugin.inductor.graph import unstored
from inductor_plugin.inductor.graph.due import DroppedGraph, Due
from inductor_plugin.inductor.graph.record import CUT, FAILED, record_of, row
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.inductor.guard import schedule
from inductor_plugin.inductor.guard.comparison import MOST_RUNS
from inductor_plugin.inductor.guard.schedule import MOST_RUN_S
from inductor_plugin.inductor.guard.verification import VerifiedGraph
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.decision import Verdict

ENVIRONMENT, DIGEST = "e" * 64, "d" * 64
ACCOUNT = account_of(ENVIRONMENT)
CHOSEN = {"a": "rival"}
TO_COMPARE = DroppedGraph(is_for_comparison=True, is_paid=True)
AUTO = Config.load({"verify_graph": "auto", "verify_graph_share": 0.5}, environ={})


def tickets(**verdicts: Verdict | None) -> Any:
    return tuple(
        SimpleNamespace(
            digest=digest,
            verdict=verdict,
            measured={},
            task=None,
            offers=(),
            selection=SimpleNamespace(policy="tune"),
        )
        for digest, verdict in verdicts.items()
    )


@pytest.fixture(name="trial")
def a_trial(tmp_path: Path) -> Trial:
    store = open_store(tmp_path / "cache")
    contexts: Any = {
        "cpu": SimpleNamespace(device="cpu"),
        "cuda:0": SimpleNamespace(device="cuda:0"),
    }
    chosen = tickets(a=Verdict("rival", "library", "faster", 1.5))
    return Trial(DIGEST, store=store, environment=ENVIRONMENT, tickets=chosen, contexts=contexts)


def keep(
    store: Store | None,
    *,
    disturbed: bool = False,
    cut: bool = False,
    failures: int = 0,
    turns: int = 5,
) -> None:
    """Write the record of a graph that was compared with its choices."""
    provenance = {
        CHOICES: CHOSEN,
        **({CUT: True} if cut else {}),
        **({FAILED: failures} if failures else {}),
    }
    rows = [
        row(TUNED, (1.0,) * turns, provenance, disturbed=disturbed),
        row(LIBRARY, (2.0,) * turns, {}, disturbed=disturbed),
    ]
    decision = Decision(TUNED, LIBRARY, "it is faster", 1.02, 2.0, time.time(), len(rows))
    assert store is not None
    store.put_record(record_of((ENVIRONMENT, DIGEST), {"nodes": 3}, rows, decision))


def test_choices_are_winners_that_are_no_library_kernels() -> None:
    verdicts = {
        "a": Verdict("rival", "library", ""),
        "b": Verdict("library", "library", "", given_up="another"),
        "c": Verdict("library", "library", ""),
        "d": Verdict(None, None, ""),
        "e": None,
        "f": Verdict("alone", None, ""),
    }
    trial = Trial(DIGEST, tickets=tickets(**verdicts))
    assert schedule.choices_of(trial) == {"a": "rival", "b": "another", "f": "alone"}


def test_a_graph_is_compared_until_a_firm_record_is_about_its_choices(trial: Trial) -> None:
    assert schedule.is_due(trial, AUTO)
    assert not schedule.is_due(trial, replace(AUTO, policy="cached"))
    assert not schedule.is_due(replace(trial, tickets=()), AUTO)
    keep(trial.store)
    assert not schedule.is_due(trial, AUTO)
    others = tickets(a=Verdict("another rival", "library", ""))
    assert schedule.is_due(replace(trial, tickets=others), AUTO)
    keep(trial.store, cut=True)
    assert schedule.is_due(trial, AUTO)
    keep(trial.store, failures=1)
    assert schedule.is_due(trial, AUTO)


@pytest.mark.parametrize(
    ("disturbed", "failures", "again_s", "choice", "waits"),
    [
        (True, 0, 1e6, "rival", True),
        (True, 0, -1.0, "rival", False),
        (True, 0, 1e6, "another rival", False),
        (False, 0, 1e6, "rival", False),
        (False, 1, 1e6, "rival", True),
        (False, 1, 1e6, "another rival", False),
    ],
)
def test_a_disturbed_or_failed_comparison_of_the_same_choices_is_not_repeated_at_once(
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    again_s: float,
    choice: str,
    *,
    disturbed: bool,
    waits: bool,
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", again_s)
    assert not schedule.is_waiting(trial)
    keep(trial.store, disturbed=disturbed, failures=failures)
    chosen = tickets(a=Verdict(choice, "library", ""))
    assert schedule.is_waiting(replace(trial, tickets=chosen)) is waits


def test_a_comparison_takes_a_compile_a_start_and_a_search(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[str] = []
    monkeypatch.setattr(schedule, "is_ready", lambda device: device in ready)
    cost = schedule.cost_of(trial, 2.0, 100.0)
    assert (cost.compile_s, cost.start_s, cost.run_s, cost.runs) == (2.0, START_S, 5.0, 0)
    assert schedule.cost_of(trial, 2.0, 1.0).run_s == 0.5  # at least
    ready.append("cpu")
    assert schedule.cost_of(trial, 2.0, 100.0).start_s == START_S
    ready.append("cuda:0")  # the device of the graph
    assert schedule.cost_of(trial, 2.0, 100.0).start_s == 0.0
    trial._known = held(["a" * 12])
    assert schedule.cost_of(trial, 2.0, 100.0).runs == 1
    keep(trial.store, cut=True)
    assert schedule.cost_of(trial, 2.0, 100.0).runs == MOST_RUNS + 1


def test_a_later_compile_needs_half_as_much_again(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "is_ready", lambda _: True)
    cost = schedule.cost_of(trial, 2.0, 20.0)
    assert schedule.due_once_saved(trial, 3.0, cost) == Due(
        need_s=1.5 * (3.0 + 3.0), account=ACCOUNT
    )


@pytest.mark.parametrize(
    ("options", "dropped", "left_s", "compare_s"),
    [
        ({}, DroppedGraph(), 5.0, 0.0),
        ({}, TO_COMPARE, -10.0, 10.0),  # the compile is a part of the comparison
        ({}, DroppedGraph(is_paid=True), -10.0, 0.0),  # to measure once more
        ({"verify_graph": "on"}, DroppedGraph(), 5.0, 0.0),
        ({"verify_graph": "on"}, DroppedGraph(is_paid=True), -10.0, 0.0),
        ({"policy": "cached"}, DroppedGraph(), None, 0.0),
    ],
)
def test_a_compile_earns_its_share_or_is_paid(
    trial: Trial,
    options: dict[str, Any],
    dropped: DroppedGraph,
    left_s: float | None,
    compare_s: float,
) -> None:
    config, before = replace(AUTO, **options), COUNTERS.snapshot()
    allowance = schedule.allowance_of(trial, config, 10.0, dropped)
    assert (None if allowance is None else allowance.left_s) == left_s
    assert COUNTERS.snapshot().since(before).compare_s == pytest.approx(compare_s)
    without = replace(trial, store=None)
    assert schedule.allowance_of(without, AUTO, 10.0, DroppedGraph()) is None


@pytest.mark.parametrize(
    ("asked", "run_s", "left_s", "turns_s", "most_s"),
    [
        ("on", 0.5, -3.0, 5.0, 600.0),  # whatever the allowance has
        ("on", 700.0, 0.0, 700.0, 700.0),
        ("auto", 0.5, 40.0, 0.5, 40.0),
        ("auto", 0.5, -3.0, 0.5, 0.5),
        ("auto", 0.5, 1e6, 0.5, 600.0),  # every wait has a limit
    ],
)
def test_the_fewest_calls_may_take_what_is_left_though_no_turn_begins_so_late(
    asked: Any, run_s: float, left_s: float, turns_s: float, most_s: float
) -> None:
    cost, config = Cost(2.0, 0.0, run_s), replace(AUTO, verify_graph=asked)
    assert schedule.turns_s(cost, config) == turns_s
    assert schedule.most_s(cost, config, left_s) == most_s


@pytest.mark.parametrize(
    ("graph_is", "asked", "need_s"),
    [
        ({}, "auto", None),
        ({"is_cut": True}, "auto", 1.5 * (3.0 + 2.5 + MOST_RUNS * 2.5)),
        ({"is_cut": True, "is_settled": False}, "auto", None),  # its record says when
        ({"need_s": 60.0}, "auto", 1.5 * (3.0 + 62.0)),
        ({"need_s": 0.2}, "auto", 1.5 * (3.0 + 2.5)),
        ({"need_s": 60.0}, "on", None),
        ({"need_s": MOST_RUN_S + 1.0}, "auto", None),  # there never is so much
    ],
)
def test_a_graph_is_due_once_the_allowance_has_what_it_lacked(
    trial: Trial, graph_is: dict[str, Any], asked: Any, need_s: float | None
) -> None:
    graph, config = (
        VerifiedGraph("code", HeldProblems(), **graph_is),
        replace(AUTO, verify_graph=asked),
    )
    due = schedule.due_of_graph(trial, 3.0, Cost(2.0, 0.0, 0.5), graph, config)
    assert due == (None if need_s is None else Due(need_s=need_s, account=ACCOUNT))


def marked(
    trial: Trial,
    due: Due | None = None,
    *,
    at_once: bool = False,
    failures: int = 0,
    **graph_is: bool,
) -> Any:
    """Return what makes a graph due."""
    graph = VerifiedGraph("code", HeldProblems(), **graph_is)
    schedule.mark(trial, graph, due, at_once=at_once, failures=failures)
    marks: Any = unstored
    result = marks._GRAPH.due
    unstored.mark_due(None)
    return result


def test_a_graph_is_due_for_whatever_comes_first(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", 100.0)
    later = Due(need_s=6.0, account=ACCOUNT)
    assert marked(trial) is None
    assert marked(trial, later) == later
    assert marked(trial, later, at_once=True) == Due(0.0, 6.0, ACCOUNT)
    keep(trial.store, disturbed=True)
    assert marked(trial) is None
    again = marked(trial, later, is_settled=False)
    assert (again.need_s, again.account) == (6.0, ACCOUNT)
    assert 0.0 < again.at - time.time() <= 100.0


@pytest.mark.parametrize(
    ("failures", "days"), [(0, 1), (1, 7), (2, 49), (3, 343), (4, 343), (99, 343)]
)
def test_what_always_fails_is_compared_as_good_as_never(
    trial: Trial, failures: int, days: int
) -> None:
    due = marked(trial, is_failed=True, failures=failures)
    assert due.failures == failures + 1
    assert (due.at - time.time()) / 86400.0 == pytest.approx(days, abs=0.01)
    later = Due(need_s=6.0, account=ACCOUNT)
    assert marked(trial, later, failures=3).failures == 3  # it was not compared
    assert marked(trial, later, is_compared=True, failures=3).failures == 0


@pytest.mark.parametrize(
    "known",
    [None, {}, {"cut": True}, {"disturbed": True}],
    ids=["none", "firm", "cut", "provisional"],
)
def test_a_disturbed_comparison_that_changes_no_record_is_repeated_later_and_later(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any] | None
) -> None:
    """The record is of other choices, or says what the graph gives up: it does not say when this comparison was."""
    monkeypatch.setattr(validity, "AGAIN_S", 10.0)
    if known is not None:
        keep(trial.store, **known)
    now = time.time() + 1000.0
    monkeypatch.setattr(schedule, "time", SimpleNamespace(time=lambda: now))
    dues = [marked(trial, is_settled=False, failures=failures) for failures in range(3)]
    assert [due.at - now for due in dues] == pytest.approx([10.0, 60.0, 360.0])
    assert [due.failures for due in dues] == [1, 2, 3]
    assert [due.is_free for due in dues] == [True, False, False]


def test_a_search_with_a_failure_is_repeated_when_its_record_says(trial: Trial) -> None:
    keep(trial.store, failures=2)
    due = marked(trial, is_compared=True, is_settled=False, failures=3)
    assert due.at - time.time() == pytest.approx(7 * 86400.0, abs=60.0)
    assert (due.failures, due.tries) == (0, 2)
