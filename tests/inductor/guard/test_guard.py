"""A tuned graph gives up the choices that make it slower than with library kernels, and remembers it."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingParameterType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.compiler._cache import CacheArtifactManager

import inductor_plugin
from inductor_plugin import cli
from inductor_plugin.cache import Record, document, open_store
from inductor_plugin.cache.record import GRAPH, to_fields
from inductor_plugin.inductor.graph.graph_record import LIBRARY, TUNED
from inductor_plugin.inductor.guard import guard
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.tuning import selection
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.runtime import RUNTIME
from tests.end_to_end.test_cpu import fresh
from tests.support.candidates.fast_templates import CALLS, rivals_offered

__all__ = ["fresh"]  # the fixture

pytestmark = pytest.mark.compat

A, B, C = torch.randn(17, 33), torch.randn(33, 29), torch.randn(29, 41)


def two_products(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.relu(a @ b) @ c


@pytest.fixture(autouse=True)
def rivals_win(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every problem chooses the rival of its library kernel, the first with a smaller gain."""

    def decide(times: Mapping[str, float], libraries: Collection[str], *_: Any) -> Verdict:
        (library,), (rival,) = libraries, [name for name in times if name not in libraries]
        return Verdict(rival, library, "faster", 1.5)

    monkeypatch.setattr(selection, "decide", decide)
    with rivals_offered():
        yield


class Referee:
    """Calls a graph slower that has more rivals than it may have."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.compared: list[int] = []

    def __call__(
        self,
        tuned: Callable[[list[Any]], Any],
        library: Callable[[list[Any]], Any],
        inputs: Sequence[Any],
        limit_s: float,
    ) -> Comparison:
        assert limit_s >= 0.5
        assert rivals_in(lambda: library([*inputs])) == 0
        self.compared.append(rivals_in(lambda: tuned([*inputs])))
        slower = self.compared[-1] > self.allowed
        return Comparison(((2.0 if slower else 0.5),) * 5, (1.0,) * 5)


def rivals_in(call: Callable[[], object]) -> int:
    """Return how many rivals a call runs."""
    before = CALLS.total()
    call()
    return CALLS.total() - before


def run(cache_dir: Path, **options: Any) -> int:
    """Compile and run the graph in what is a new process to the plugin; return how many rivals it runs."""
    RUNTIME.forget()
    torch._dynamo.reset()
    options = {"cache_dir": str(cache_dir), "verify_graph": "auto", **options}
    function = torch.compile(two_products, backend="inductor_plugin", options=options)
    torch.testing.assert_close(function(A, B, C), two_products(A, B, C), atol=1e-3, rtol=1e-3)
    return rivals_in(lambda: function(A, B, C))


def graph_record(cache_dir: Path) -> Record:
    (record,) = [each for each in open_store(cache_dir).iter_records() if each.op == GRAPH]
    return record


@pytest.mark.parametrize(
    ("allowed", "rivals", "winner", "compared"),
    [(2, 2, TUNED, [2]), (1, 1, "tuned, less ", [2, 1]), (0, 0, LIBRARY, [2, 1, 1])],
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
    referee = Referee(allowed)
    monkeypatch.setattr(guard, "compare", referee)
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
    referee = Referee(allowed=1)
    monkeypatch.setattr(guard, "compare", referee)
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
    referee = Referee(allowed=0)
    monkeypatch.setattr(guard, "compare", referee)
    assert run(cache_dir) == 0
    store, record = open_store(cache_dir), graph_record(cache_dir)
    tuned = record.candidates[TUNED]
    before = replace(tuned, provenance={**tuned.provenance, "choices": {"a problem": "a rival"}})
    candidates = {**record.candidates, TUNED: before}
    path = store.layout.record(record.environment, record.op, record.digest)
    path.write_bytes(document.dump(to_fields(replace(record, candidates=candidates))))
    referee.compared.clear()
    assert run(cache_dir) == 0
    assert referee.compared[0] == 2
    decision = graph_record(cache_dir).decision
    assert decision is not None
    assert decision.winner == LIBRARY


def test_what_was_known_before_is_compared_where_asked(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = Referee(allowed=0)
    monkeypatch.setattr(guard, "compare", referee)
    assert run(cache_dir, verify_graph="off") == 2
    assert run(cache_dir) == 2
    assert referee.compared == []
    assert run(cache_dir, verify_graph="on") == 0


def test_a_comparison_beside_other_work_is_made_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def disturbed(*_: Any) -> Comparison:
        compared.append(1)
        return Comparison((2.0,) * 5, (1.0,) * 5, disturbed=True)

    monkeypatch.setattr(guard, "compare", disturbed)
    assert [run(cache_dir), run(cache_dir)] == [2, 2]
    assert len(compared) == 2


def test_a_graph_that_cannot_be_compared_runs_as_it_was_tuned(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Comparison:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(guard, "compare", fails)
    assert run(cache_dir) == 2
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert (
        "a tuned graph was not compared with library kernels: RuntimeError" in warning.getMessage()
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, i: (a @ b)[i],
        lambda a, b, i: (a @ b) // i[0],
        lambda a, b, i: (a.add_(1) @ b, i),
        lambda a, b, i: (a @ b)[(b[0, :9] * 0).long()],
    ],
    ids=["an index", "a divisor", "an input that is changed", "an index that is computed"],
)
def test_a_graph_is_not_run_where_made_up_values_may_do_harm(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    """Compiled code aborts the process for an index that is out of bounds, or a division by zero."""

    def never(*_: Any) -> Comparison:
        raise AssertionError

    monkeypatch.setattr(guard, "compare", never)
    options: Any = {"cache_dir": str(cache_dir), "verify_graph": "on"}
    compiled = torch.compile(function, backend="inductor_plugin", options=options)
    compiled(A.clone(), B, torch.arange(1, 9))
    assert [record.op for record in open_store(cache_dir).iter_records()] == ["mm"]


def test_a_graph_whose_turns_take_too_long_is_not_compared(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_LEAST_S", 0.0)
    monkeypatch.setattr(guard, "_SHARE", 0.0)
    assert run(cache_dir) == 2
    assert GRAPH not in [record.op for record in open_store(cache_dir).iter_records()]


def test_the_table_says_how_fast_the_tuned_graph_is(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "compare", Referee(allowed=2))
    run(cache_dir, table="on")
    said = capfd.readouterr().err
    assert "the tuned graph is 2.000x faster than with library kernels" in said
    run(cache_dir, table="on")
    assert "the tuned graph" not in capfd.readouterr().err  # nothing was compared


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare graphs however long their calls take: the machine may be busy."""
    monkeypatch.setattr(guard, "_LEAST_S", 60.0)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
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


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_random_numbers_stay_as_they_were(cache_dir: Path) -> None:
    torch.manual_seed(3)
    run(cache_dir)
    after = torch.randn(3)
    torch.manual_seed(3)
    assert torch.equal(after, torch.randn(3))
    record = graph_record(cache_dir)
    assert record.candidates[TUNED].samples_ms
