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
from inductor_plugin.inductor.allowance import START_S, Allowance, account_of
from inductor_plugin.inductor.graph import unstored
from inductor_plugin.inductor.graph.due import Due
from inductor_plugin.inductor.graph.record import CUT, record_of, row
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.inductor.guard import guard
from inductor_plugin.inductor.guard.bench import NotComparedError
from inductor_plugin.inductor.guard.comparison import MOST_RUNS
from inductor_plugin.inductor.guard.description import CannotDescribeError
from inductor_plugin.inductor.guard.verification import GuardedGraph, VerifiedGraph
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.decision import Verdict

ENVIRONMENT, DIGEST = "e" * 64, "d" * 64
ACCOUNT = account_of(ENVIRONMENT)
CHOSEN = {"a": "rival"}
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
    store: Store | None, *, disturbed: bool = False, cut: bool = False, turns: int = 5
) -> None:
    """Write the record of a graph that was compared with its choices."""
    provenance = {CHOICES: CHOSEN, **({CUT: True} if cut else {})}
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
    assert guard._choices(trial) == {"a": "rival", "b": "another", "f": "alone"}


def test_a_graph_is_compared_until_a_firm_record_is_about_its_choices(trial: Trial) -> None:
    assert guard._is_due(trial, AUTO)
    assert not guard._is_due(trial, replace(AUTO, policy="cached"))
    assert not guard._is_due(replace(trial, tickets=()), AUTO)
    keep(trial.store)
    assert not guard._is_due(trial, AUTO)
    others = tickets(a=Verdict("another rival", "library", ""))
    assert guard._is_due(replace(trial, tickets=others), AUTO)
    keep(trial.store, cut=True)
    assert guard._is_due(trial, AUTO)


@pytest.mark.parametrize(
    ("disturbed", "again_s", "choice", "waits"),
    [
        (True, 1e6, "rival", True),
        (True, -1.0, "rival", False),
        (True, 1e6, "another rival", False),
        (False, 1e6, "rival", False),
    ],
)
def test_a_disturbed_comparison_of_the_same_choices_is_not_repeated_at_once(
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    again_s: float,
    choice: str,
    *,
    disturbed: bool,
    waits: bool,
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", again_s)
    assert not guard._is_waiting(trial)
    keep(trial.store, disturbed=disturbed)
    chosen = tickets(a=Verdict(choice, "library", ""))
    assert guard._is_waiting(replace(trial, tickets=chosen)) is waits


def test_a_comparison_takes_a_compile_a_start_and_a_search(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[str] = []
    monkeypatch.setattr(guard, "is_ready", lambda device: device in ready)
    cost = guard._cost(trial, 2.0, 100.0)
    assert (cost.compile_s, cost.start_s, cost.run_s, cost.runs) == (2.0, START_S, 5.0, 0)
    assert guard._cost(trial, 2.0, 1.0).run_s == 0.5  # at least
    ready.append("cpu")
    assert guard._cost(trial, 2.0, 100.0).start_s == START_S
    ready.append("cuda:0")  # the device of the graph
    assert guard._cost(trial, 2.0, 100.0).start_s == 0.0
    trial._known = held(["a" * 12])
    assert guard._cost(trial, 2.0, 100.0).runs == 1
    keep(trial.store, cut=True)
    assert guard._cost(trial, 2.0, 100.0).runs == MOST_RUNS + 1


def test_a_later_compile_needs_half_as_much_again(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "is_ready", lambda _: True)
    cost = guard._cost(trial, 2.0, 20.0)
    assert guard._due(trial, 3.0, cost) == Due(need_s=1.5 * (3.0 + 3.0), account=ACCOUNT)


def test_what_was_asked_for_is_compared_whatever_it_takes(trial: Trial) -> None:
    assert trial.store is not None
    allowance = Allowance(trial.store, ACCOUNT)
    cost = guard.Cost(2.0, 0.0, 0.5)
    assert "it would take about 2.5 s" in guard._too_dear(cost, AUTO, allowance)
    asked = replace(AUTO, verify_graph="on")
    assert guard._too_dear(cost, asked, allowance) == ""
    guard._spending(asked, allowance)(1.0)
    assert allowance.left_s == 0.0
    guard._spending(AUTO, allowance)(1.0)
    assert allowance.left_s == -1.0
    allowance.earn(3.5)
    assert guard._too_dear(cost, AUTO, allowance) == ""


@pytest.mark.parametrize(
    ("options", "is_again", "left_s"),
    [
        ({}, False, 5.0),
        ({}, True, -10.0),  # the compile is a part of the comparison
        ({"verify_graph": "on"}, False, 0.0),
        ({"verify_graph": "on"}, True, 0.0),
        ({"policy": "cached"}, False, None),
    ],
)
def test_a_compile_earns_its_share(
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    left_s: float | None,
    *,
    is_again: bool,
) -> None:
    monkeypatch.setattr(guard, "is_for_comparison", lambda: is_again)
    allowance = guard._allowance(trial, replace(AUTO, **options), 10.0)
    assert (None if allowance is None else allowance.left_s) == left_s
    assert guard._allowance(replace(trial, store=None), AUTO, 10.0) is None


def marked(trial: Trial, due: Due | None = None, *, at_once: bool = False, **graph_is: bool) -> Any:
    """Return what makes a graph due."""
    graph = VerifiedGraph("code", HeldProblems(), **graph_is)
    guard._mark(trial, graph, due, at_once=at_once)
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
    assert marked(trial, is_settled=False) == Due(at=0.0)  # nothing says when it was disturbed
    keep(trial.store, disturbed=True)
    assert marked(trial) is None
    again = marked(trial, later, is_settled=False)
    assert (again.need_s, again.account) == (6.0, ACCOUNT)
    assert 0.0 < again.at - time.time() <= 100.0


@pytest.mark.parametrize(
    ("error", "again_s"),
    [
        (NotComparedError("crashed: the worker was killed"), 86400.0),
        (RuntimeError("Inductor could not compile it without autotuning"), 86400.0),
        (CannotDescribeError("an input is a list"), None),
    ],
)
def test_a_graph_whose_comparison_fails_is_compared_a_day_later(
    trial: Trial, error: Exception, again_s: float | None
) -> None:
    def make() -> GuardedGraph:
        raise error

    compiled = VerifiedGraph("code", HeldProblems())
    graph = guard._guarded(make, compiled, {"nodes": 3}, lambda _spent_s: None)
    assert graph.code == "code"
    due = marked(trial, is_failed=graph.is_failed)
    assert (None if due is None else round(due.at - time.time(), -1)) == again_s
