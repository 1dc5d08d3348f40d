"""What happens to candidates is counted, drawn and logged in one place."""

from __future__ import annotations

import logging

import pytest

from inductor_plugin.tuning.builds.item import BuildItem
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.journal import Journal
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.worker.jobs import Compiled, Outcome
from tests.support.fakes.tasks import cpp_build, entry, problem, task


def test_a_count_is_for_the_problem_and_for_the_process() -> None:
    counters = Counters()
    journal = Journal(counters, SpanTrace())
    first, second = task([]), task([])
    journal.count(first, compiled=1, compile_s=0.5)
    journal.count(second, compiled=2)
    assert counters.snapshot().compiled == 3
    assert (first.spent.snapshot().compiled, second.spent.snapshot().compiled) == (1, 2)
    assert first.spent.snapshot().compile_s == 0.5


def test_what_is_measured_is_logged_with_its_problem_before_it_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    trace = SpanTrace("trace.json")
    journal = Journal(Counters(), trace)
    with journal.measuring(task([]), "cpu", ["a"], "screen"):
        assert caplog.messages == ["measuring a for mm(64x32, 32x48) (screen)"]
    with journal.measuring(task([]), "cpu", ["a", "b"], "final"):
        assert caplog.messages[1:] == ["measuring a, b for mm(64x32, 32x48) (final)"]
    first, second = trace._events  # pyright: ignore[reportPrivateUsage]
    assert (first["name"], second["name"]) == ("a", "final of 2")
    assert second["args"]["candidates"] == ["a", "b"]
    assert second["args"]["problem"] == "mm(64x32, 32x48)"


def test_what_fails_is_logged_with_its_problem_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    journal, pending = Journal(Counters(), SpanTrace()), task([])
    journal.measured(pending, "a", Outcome("a-1", "ok", elapsed_s=0.5))
    journal.measured(pending, "b", Outcome("b-1", "wrong", "error 2", elapsed_s=0.5, check_s=0.25))
    assert caplog.messages == ["b for mm(64x32, 32x48): wrong: error 2"]
    assert pending.spent.snapshot().benchmarked == 2
    assert pending.spent.snapshot().benchmark_s == 1.0
    assert pending.spent.snapshot().check_s == 0.25


def test_what_was_not_compared_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gap = "not compared at size 1 instead of 300: the library kernel raised RuntimeError: no"
    Journal(Counters(), SpanTrace()).measured(task([]), "a", Outcome("a-1", "ok", gap))
    assert caplog.messages == [f"a for mm(64x32, 32x48): ok: {gap}"]


def test_a_compile_names_its_problems_and_counts_for_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trace = SpanTrace("trace.json")
    journal = Journal(Counters(), trace)
    tasks = [task([]), task([])]
    tasks[1].problem = problem(rows=512)
    items = [BuildItem(t, entry("k", build=cpp_build("k")), lambda: None) for t in tasks]
    journal.compiling(items)
    assert caplog.messages == ["compiling k for mm(64x32, 32x48), k for mm(512x32, 32x48)"]
    results = [Compiled("x", "ok", elapsed_s=1.0), Compiled("y", "hung", elapsed_s=3.0)]
    assert journal.compiled(items, results) == 4.0
    assert [t.spent.snapshot().compile_s for t in tasks] == [2.0, 2.0]
    (event,) = trace._events  # pyright: ignore[reportPrivateUsage]
    assert event["args"] == {
        "problem": "mm(64x32, 32x48); mm(512x32, 32x48)",
        "status": ["ok", "hung"],
    }
