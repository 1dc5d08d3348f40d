"""What becomes of a graph whose comparison fails or is refused, and of a rank that cannot compile what its job has decided."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from torch._guards import TracingContext, tracing
from torch._inductor import metrics

from inductor_plugin.cache import open_store
from inductor_plugin.cache.graph import LIBRARY, HeldProblems, held, held_by
from inductor_plugin.config import Config
from inductor_plugin.inductor.allowance import Allowance, Cost, account_of
from inductor_plugin.inductor.graph.trial import Trial, current
from inductor_plugin.inductor.guard import guard
from inductor_plugin.inductor.guard.bench import CallsTooLongError, NotComparedError
from inductor_plugin.inductor.guard.description import CannotDescribeError
from inductor_plugin.inductor.guard.verification import GuardedGraph, VerifiedGraph
from tests.support.warned import forget, warnings_in

AUTO = Config.load({"verify_graph": "auto", "verify_graph_share": 0.5}, environ={})
ASKED = replace(AUTO, verify_graph="on")
TUNED_GRAPH = VerifiedGraph("code", HeldProblems())


@pytest.fixture(autouse=True)
def afresh() -> None:
    forget()


def guarded(error: Exception, config: Config = AUTO) -> VerifiedGraph:
    """Return a graph whose comparison raises an error."""

    def make() -> GuardedGraph:
        raise error

    return guard._guarded(make, TUNED_GRAPH, {"nodes": 3}, config, lambda _spent_s: None)


def test_what_was_asked_for_is_compared_whatever_it_takes(tmp_path: Path) -> None:
    allowance = Allowance(open_store(tmp_path), account_of("e" * 64))
    cost = Cost(2.0, 0.0, 0.5)
    assert "it would take about 2.5 s" in guard._too_dear(cost, AUTO, allowance)
    assert guard._too_dear(cost, ASKED, allowance) == ""
    guard._spending(ASKED, allowance)(1.0)
    assert allowance.left_s == 0.0
    guard._spending(AUTO, allowance)(1.0)
    assert allowance.left_s == -1.0
    allowance.earn(3.5)
    assert guard._too_dear(cost, AUTO, allowance) == ""


@pytest.mark.parametrize(
    ("error", "graph_is"),
    [
        (NotComparedError("crashed: the worker was killed"), {"is_failed": True}),
        (RuntimeError("Inductor could not compile it without autotuning"), {"is_failed": True}),
        (CannotDescribeError("an input is a list"), {}),
        (CallsTooLongError("16 calls of 2 s take longer than 5 s", 32.0), {"need_s": 32.0}),
    ],
)
def test_a_graph_that_is_not_compared_runs_as_it_was_tuned_and_says_what_it_lacked(
    error: Exception, graph_is: dict[str, Any]
) -> None:
    assert guarded(error) == replace(TUNED_GRAPH, **graph_is)


def test_a_comparison_that_was_asked_for_and_not_made_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "inductor_plugin")
    guarded(NotComparedError("crashed"))
    assert warnings_in(caplog) == []
    for reason in ("calls take too long", "an index is out of bounds"):
        guarded(NotComparedError(reason), ASKED)
    (warning,) = warnings_in(caplog)
    assert warning.startswith(
        "inductor-plugin: graph of 3 nodes was not compared with library kernels: calls take too long"
    )
    assert "an index is out of bounds" in caplog.text


JOB: Any = SimpleNamespace(rank=1, decide=lambda *_: SimpleNamespace(winner=LIBRARY))
"""A rank's part in a job that has decided for library kernels."""


def as_agreed(trial: Trial, source: Any, graph: VerifiedGraph) -> VerifiedGraph:
    tuned: Any = SimpleNamespace(
        trial=trial, source=source, compiled=SimpleNamespace(code=TUNED_GRAPH.code)
    )
    return guard._as_agreed(tuned, graph)


def uncompiled(compiles: Callable[[Any], Any], *, is_copied: bool = True) -> Any:
    gm: Any = SimpleNamespace(parameters=list, buffers=list)
    return guard._UncompiledGraph(gm if is_copied else None, (), compiles)


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_rank_that_cannot_compile_what_its_job_has_decided_runs_what_it_has(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_copied: bool
) -> None:
    source = uncompiled(Mock(side_effect=RuntimeError("out of memory")), is_copied=is_copied)
    graph = replace(TUNED_GRAPH, code="of a comparison", given_up=held(["a"]))
    assert as_agreed(Trial("d" * 64, share=JOB), source, graph) == TUNED_GRAPH
    (warning,) = warnings_in(caplog)
    why = "RuntimeError: out of memory" if is_copied else "there is no copy of it"
    assert f"cannot be compiled with those ({why})" in warning
    monkeypatch.setattr(guard, "show", Mock())
    assert as_agreed(Trial("d" * 64), source, graph) is graph  # without a job
    assert len(warnings_in(caplog)) == 1


def test_what_a_job_gives_up_is_compiled_in_sight_uncounted_and_makes_the_graph_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = Mock(side_effect=nullcontext)
    monkeypatch.setattr(guard, "hidden", hidden)
    waiting: Any = ("a fusion that the whole graph lacks",)

    def compiles(_: Any) -> str:
        trial = current()
        assert trial is not None
        trial.tickets = waiting
        metrics.generated_kernel_count += 1
        return "without our choices"

    counted = metrics.generated_kernel_count
    trial, source = Trial("d" * 64, share=JOB), uncompiled(compiles)
    graph = as_agreed(trial, source, TUNED_GRAPH)
    assert (graph.code, graph.given_up) == ("without our choices", held_by(LIBRARY))
    assert trial.tickets == waiting
    hidden.assert_not_called()
    source.again(Trial("d" * 64, is_extra=True))
    hidden.assert_called_once()
    assert metrics.generated_kernel_count == counted


@pytest.mark.parametrize(
    ("keywords", "known", "donated"),
    [
        ({"is_backward": True}, [2, 5], (2, 5)),
        ({"is_backward": False}, [2, 5], ()),  # of the backward graph that follows
        ({}, [2, 5], ()),
        ({"is_backward": True}, None, ()),
    ],
)
def test_a_backward_graph_may_write_into_what_only_it_reads(
    keywords: dict[str, bool], known: list[int] | None, donated: tuple[int, ...]
) -> None:
    context: Any = TracingContext(None)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=known)
    with tracing(context):
        assert guard._donated(keywords) == donated
    assert guard._donated(keywords) == ()
