"""A tuned graph gives up the choices that make it slower than with library kernels, and remembers it."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingParameterType=false

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch.compiler._cache import CacheArtifactManager

import inductor_plugin
from inductor_plugin import cli
from inductor_plugin.cache import open_store
from inductor_plugin.cache.graph import LIBRARY, TUNED
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.inductor.graph.record import PLAIN
from inductor_plugin.inductor.guard.bench import GraphBench
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.compile import fresh
from tests.support.fakes.referee import (
    ALWAYS,
    A,
    B,
    C,
    Referee,
    choose_otherwise,
    graph_record,
    judge,
    rivals_win,
    run,
)

__all__ = ["fresh", "rivals_win"]  # the fixtures
pytestmark = pytest.mark.compat


@torch.library.custom_op("guard_test::shouted", mutates_args=())
def shouted(x: Tensor) -> Tensor:
    """Return a copy; the plugin cannot know that it does nothing else."""
    return x.clone()


@shouted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("allowed", "rivals", "winner", "compared"),
    [(2, 2, TUNED, [2]), (1, 1, "tuned, less ", [2, 1, 1]), (0, 0, LIBRARY, [2, 1, 1])],
)
def test_it_gives_up_what_makes_it_slower(
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
    rivals: int,
    winner: str,
    compared: list[int],
) -> None:
    referee = Referee(monkeypatch, allowed)
    before = inductor_plugin.stats()
    counters.clear()
    assert run(cache_dir) == rivals
    assert referee.compared == compared
    spent = inductor_plugin.stats().since(before)
    assert (spent.problems, spent.record_misses, spent.record_hits) == (2, 2, 0)
    assert (spent.graphs_compared, spent.graphs_reduced) == (1, int(winner != TUNED))
    assert spent.compare_s > 0
    assert counters["inductor"]["select_algorithm_autotune"] == 2
    record = graph_record(cache_dir)
    assert record.decision is not None
    assert record.decision.winner.startswith(winner)
    assert {TUNED, LIBRARY} <= record.candidates.keys()
    pins = tmp_path / "pins.json"
    assert cli.main(["pin", str(pins), "--cache-dir", str(cache_dir)]) == 0
    pinned = {"policy": "pinned", "pin_file": str(pins)}
    for options in ({}, {"policy": "cached"}, {"verify_graph": "on"}, pinned):
        assert run(cache_dir, **options) == rivals
    assert run(tmp_path / "another", **pinned) == rivals
    assert referee.compared == compared  # the record says it
    problems = [each for each in open_store(cache_dir).iter_records() if each.op != GRAPH]
    assert all(each.decision and "rivals" in each.decision.winner for each in problems)


def test_another_process_follows_a_record_that_came_with_torchs_artifacts(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = Referee(monkeypatch, allowed=1)
    with CacheArtifactManager.with_fresh_cache():
        assert run(cache_dir) == 1
        cold = torch.compiler.save_cache_artifacts()
    with CacheArtifactManager.with_fresh_cache():
        assert run(cache_dir) == 1
        warm = torch.compiler.save_cache_artifacts()
    compared = len(referee.compared)
    for name, saved in (("from cold", cold), ("from warm", warm)):
        assert saved is not None
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / name))
        torch.compiler.load_cache_artifacts(saved[0])
        assert graph_record(tmp_path / name) == graph_record(cache_dir)
        assert run(tmp_path / name) == 1
    assert len(referee.compared) == compared


def test_a_graph_whose_choices_have_changed_is_compared_with_all_of_them(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record says that library kernels run, as which it is compiled: those are not compared with themselves."""
    referee = Referee(monkeypatch, allowed=0)
    assert run(cache_dir) == 0
    choose_otherwise(cache_dir)
    referee.compared.clear()
    assert run(cache_dir) == 0
    assert referee.compared[0] == 2
    decision = graph_record(cache_dir).decision
    assert decision is not None
    assert decision.winner == LIBRARY


@pytest.mark.parametrize("options", [{"verify_graph": "on"}, {}])
def test_what_was_known_before_is_compared_where_there_is_time(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Other processes had no time for it, or did not compare: until now it was compared with ``on`` alone, that is never."""
    referee = Referee(monkeypatch, allowed=0)
    # Compiles that compare nothing save time up, too.
    assert run(cache_dir, verify_graph="off", verify_graph_share=0.0) == 2
    assert run(cache_dir, verify_graph_share=0.0) == 2
    assert referee.compared == []
    assert run(cache_dir, **options) == 0


def test_a_graph_that_cannot_be_compared_runs_as_it_was_tuned(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Comparison:
        raise RuntimeError("out of memory")

    judge(monkeypatch, fails)
    assert run(cache_dir) == 2
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert (
        "a tuned graph was not compared with library kernels: RuntimeError" in warning.getMessage()
    )


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a, b, i: (shouted(a) @ b, i), "may do more than compute"),
        (lambda a, b, i: (a @ b, i.add_(1)), ""),
        (lambda a, b, i: (a @ b)[i], ""),
    ],
    ids=["an operator of the user", "an input that is changed", "an index"],
)
def test_a_graph_is_not_run_where_it_may_do_more_than_compute(
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Any],
    why: str,
) -> None:
    caplog.set_level(logging.INFO, "inductor_plugin")
    Referee(monkeypatch, allowed=2)
    before = inductor_plugin.stats()
    options: Any = {"cache_dir": str(cache_dir), **ALWAYS}
    compiled = torch.compile(function, backend="inductor_plugin", options=options)
    compiled(A.clone(), B, torch.arange(1, 9))
    spent = inductor_plugin.stats().since(before)
    assert (spent.graphs_compared, spent.graphs_left_out) == ((0, 1) if why else (1, 0))
    assert not why or why in caplog.text


def test_a_graph_that_would_take_too_long_is_left_out_with_its_reason(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "inductor_plugin")
    referee = Referee(monkeypatch, allowed=0)
    before = inductor_plugin.stats()
    assert run(cache_dir, verify_graph_share=0.01) == 2
    assert referee.compared == []
    assert "are left of the 1% of compile time that option verify_graph_share allows" in caplog.text
    spent = inductor_plugin.stats().since(before)
    assert (spent.graphs_left_out, spent.graph_speedup) == (1, None)
    assert run(cache_dir / "asked", verify_graph="on", verify_graph_share=0.01) == 0


def test_where_it_is_asked_for_the_graph_without_autotuning_is_compared_too(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = Referee(monkeypatch, allowed=2)
    before = inductor_plugin.stats()
    assert run(cache_dir, verify_graph="on") == 2
    assert referee.plain == 1
    record = graph_record(cache_dir)
    assert record.candidates[PLAIN].median_ms == 1.5
    assert record.decision is not None
    assert "2.000x faster than with library kernels, 3.000x faster than without autotuning" in (
        record.decision.reason
    )
    assert inductor_plugin.stats().since(before).graph_speedup == 2.0
    assert cli.main(["explain", record.digest, "--cache-dir", str(cache_dir)]) == 0


def test_the_table_says_how_fast_the_tuned_graph_is(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Referee(monkeypatch, allowed=2)
    run(cache_dir, table="on")
    said = capfd.readouterr().err
    assert "the tuned graph is 2.000x faster than with library kernels" in said
    run(cache_dir, table="on")
    assert "the tuned graph" not in capfd.readouterr().err  # nothing was compared


def test_the_worker_compares_a_graph_that_reads_where_values_say(cache_dir: Path) -> None:
    """Of an embedding the indices are made up within its bounds."""

    def embedded(table: Tensor, words: Tensor, weight: Tensor) -> Tensor:
        return torch.relu(nn.functional.embedding(words, table) @ weight)

    before = inductor_plugin.stats()
    options: Any = {"cache_dir": str(cache_dir), **ALWAYS}
    compiled = torch.compile(embedded, backend="inductor_plugin", options=options)
    torch.manual_seed(3)
    compiled(torch.randn(3, 33), torch.randint(0, 3, (17,)), B)
    after = torch.randn(3)
    torch.manual_seed(3)
    _ = torch.randn(3, 33), torch.randint(0, 3, (17,))
    assert torch.equal(after, torch.randn(3))  # the user's random numbers stay
    spent = inductor_plugin.stats().since(before)
    assert (spent.graphs_compared, spent.graphs_left_out) == (1, 0)
    assert len(graph_record(cache_dir).candidates[TUNED].samples_ms) >= 5


def test_a_graph_that_fails_for_made_up_inputs_is_not_compared(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled code raises for an index out of bounds, or aborts if several threads run it."""

    def out_of_bounds(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
        return (a @ b)[where * 1000 - 1000 + torch.tensor([0])]

    caplog.set_level(logging.INFO, "inductor_plugin")
    before = inductor_plugin.stats()
    options: Any = {"cache_dir": str(cache_dir), **ALWAYS}
    compiled = torch.compile(out_of_bounds, backend="inductor_plugin", options=options)
    compiled(A, B, torch.ones(8, dtype=torch.int64))
    spent = inductor_plugin.stats().since(before)
    assert (spent.graphs_compared, spent.graphs_left_out) == (0, 1)
    assert "crashed" in caplog.text or "index out of bounds" in caplog.text


@pytest.mark.slow
def test_random_numbers_of_training_stay(cache_dir: Path) -> None:
    def step(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return nn.functional.dropout(x @ w, 0.5) @ v

    options: Any = {"cache_dir": str(cache_dir), "verify_graph": "on"}
    compiled = torch.compile(step, backend="inductor_plugin", options=options)
    operands = [each.clone().requires_grad_() for each in (A, B, C)]
    loss = compiled(*operands).sum()
    before = torch.get_rng_state()
    loss.backward()  # compiled here
    assert torch.equal(torch.get_rng_state(), before)
    assert GRAPH in [record.op for record in open_store(cache_dir).iter_records()]


def test_inputs_that_only_a_backward_graph_reads_are_among_those_it_may_change(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor writes results into saved tensors, and does not say that they are changed."""
    donated: list[int] = []

    def compare(bench: GraphBench, *_: Any) -> Comparison:
        donated.append(len(bench.donated))
        return Comparison((1.0,) * 5, (1.0,) * 5)

    judge(monkeypatch, compare)
    options: Any = {"cache_dir": str(cache_dir), **ALWAYS}
    step = torch.compile(
        lambda a, b, c: torch.relu(a @ b) @ c, backend="inductor_plugin", options=options
    )
    operands = [each.clone().requires_grad_() for each in (A, B, C)]
    step(*operands).sum().backward()
    forward, backward = donated
    assert forward == 0
    assert backward > 0


def test_a_compared_graph_whose_problem_an_error_left_undecided_is_decided_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of Inductor's cache it would run the library kernel for ever."""
    Referee(monkeypatch, allowed=2)
    decide = Selection.decide

    def broken(selection: Selection, ticket: TuningTicket) -> Verdict:
        if ticket.problem.output.size[-1] == C.shape[-1]:
            raise RuntimeError("an error of ours")
        return decide(selection, ticket)

    with inductor_config.patch(fx_graph_cache=True):
        with monkeypatch.context() as patched:
            patched.setattr(Selection, "decide", broken)
            assert run(cache_dir) == 1
        assert run(cache_dir) == 2
