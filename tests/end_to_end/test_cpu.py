"""The whole path on a CPU: torch.compile, selection, workers, decision, record."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor import select_algorithm

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.cache.quarantine import MISHAPS
from inductor_plugin.inductor import jinja, vector
from inductor_plugin.tuning.counters import Stats
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.candidates import faults
from tests.support.candidates.providers import offered

pytestmark = pytest.mark.compat

ALL_FAULTS = ("raises", "segfaults", "hangs", "no_memory", "sticky", "wrong", "overruns")
STATUS = {
    "raises": "raised",
    "segfaults": "crashed",
    "hangs": "hung",
    "no_memory": "out_of_memory",
    "sticky": "sticky_error",
    "wrong": "wrong",
    "overruns": "red_zone",
}


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    """Compile everything anew, and end the workers that share nothing with the next test."""
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


class Spent:
    """What the plugin did since it was made."""

    def __init__(self) -> None:
        self._before = inductor_plugin.stats()

    @property
    def stats(self) -> Stats:
        return inductor_plugin.stats().since(self._before)


def compiled(function: Callable[..., Any], cache_dir: Path, **options: Any) -> Callable[..., Any]:
    options.setdefault("worker_memory_bytes", faults.MEMORY_BYTES)
    return torch.compile(
        function, backend="inductor_plugin", options={"cache_dir": str(cache_dir), **options}
    )


def records(cache_dir: Path) -> list[dict[str, Any]]:
    paths = sorted(cache_dir.glob("records/*/*/*.json"))
    return [json.loads(path.read_text()) for path in paths]


def test_a_matrix_product_is_measured_once_and_remembered(cache_dir: Path) -> None:
    a, b = torch.randn(65, 33), torch.randn(33, 47)
    with offered("good"):
        first = Spent()
        assert torch.allclose(compiled(torch.mm, cache_dir)(a, b), a @ b, atol=1e-4)
        assert first.stats.problems == first.stats.record_misses == 1
        assert first.stats.benchmarked == 2
        RUNTIME.forget()
        torch._dynamo.reset()
        second = Spent()
        compiled(torch.mm, cache_dir)(a, b)
    assert second.stats.record_hits == second.stats.problems == 1
    assert second.stats.benchmarked == second.stats.compiled == second.stats.record_misses == 0


def test_the_record_holds_samples_spread_and_provenance(cache_dir: Path) -> None:
    with offered("good"):
        compiled(torch.mm, cache_dir)(torch.randn(32, 32), torch.randn(32, 32))
    (record,) = records(cache_dir)
    assert record["op"] == "mm"
    assert len(record["candidates"]) == 2
    for candidate in record["candidates"].values():
        assert candidate["samples_ms"]  # how many depends on how busy the machine is
        assert (
            min(candidate["samples_ms"]) <= candidate["median_ms"] <= max(candidate["samples_ms"])
        )
        assert candidate["spread_ms"] >= 0
        assert candidate["provenance"]["host"]
    assert record["decision"]["winner"] in record["candidates"]
    assert record["decision"]["reason"]


def test_only_unseen_candidates_are_measured(cache_dir: Path) -> None:
    a, b = torch.randn(40, 40), torch.randn(40, 40)
    compiled_once = compiled(torch.mm, cache_dir)
    with offered("good"):
        compiled_once(a, b)
    torch._dynamo.reset()
    spent = Spent()
    with offered("good", "good_too"):
        compiled(torch.mm, cache_dir)(a, b)
    # The new one, and the library kernel beside it in the same clock state.
    assert spent.stats.benchmarked == 2
    assert len(records(cache_dir)[0]["candidates"]) == 3


@pytest.mark.slow
def test_seven_faults_cost_seven_candidates_and_only_mishaps_are_tried_again(
    cache_dir: Path,
) -> None:
    a, b = torch.randn(48, 40), torch.randn(40, 56)
    with offered(*ALL_FAULTS, "good"):
        first = Spent()
        answer = compiled(torch.mm, cache_dir, bench_timeout_s=3)(a, b)
        assert torch.allclose(answer, a @ b, atol=1e-4)
        assert first.stats.failed == first.stats.quarantined == len(ALL_FAULTS)
        RUNTIME.forget()
        torch._dynamo.reset()
        second = Spent()
        compiled(torch.mm, cache_dir, bench_timeout_s=3)(a, b)
        # The library kernel, and those that may have been the machine's fault.
        assert second.stats.benchmarked == 1 + len(set(STATUS.values()) & MISHAPS)
        RUNTIME.forget()
        torch._dynamo.reset()
        third = Spent()
        compiled(torch.mm, cache_dir, bench_timeout_s=3)(a, b)
    assert third.stats.benchmarked == 0
    assert third.stats.record_hits == 1
    (record,) = records(cache_dir)
    seen = {c["name"].partition("::")[2]: c for c in record["candidates"].values()}
    assert {name: seen[name]["status"] for name in ALL_FAULTS} == STATUS
    assert all(seen[name]["reason"] for name in ALL_FAULTS)
    assert seen["good"]["status"] == "ok"
    store = open_store(cache_dir)
    assert {q.status for q in store.iter_quarantine()} == set(STATUS.values())


def test_a_quarantined_candidate_stays_out_even_without_its_record(cache_dir: Path) -> None:
    a, b = torch.randn(24, 24), torch.randn(24, 24)
    with offered("wrong", "good"):
        compiled(torch.mm, cache_dir)(a, b)
        for path in cache_dir.glob("records/*/*/*.json"):
            path.unlink()
        RUNTIME.forget()
        torch._dynamo.reset()
        spent = Spent()
        compiled(torch.mm, cache_dir)(a, b)
    assert spent.stats.benchmarked == 2
    assert spent.stats.quarantined == 1


def test_forward_and_backward_are_tuned(cache_dir: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 12, requires_grad=True)
    w = torch.randn(12, 16, requires_grad=True)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, w).sin().square().sum()

    expected = torch.autograd.grad(loss(x, w), (x, w))
    spent = Spent()
    with offered("good"):
        got = torch.autograd.grad(compiled(loss, cache_dir)(x, w), (x, w))
    for value, other in zip(got, expected, strict=True):
        assert torch.allclose(value, other, atol=1e-3)
    assert spent.stats.problems == 3  # one product forward, two backward


def test_all_problems_of_a_graph_are_enqueued_before_the_first_is_waited_for(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inductor_plugin.tuning.pipeline import Pipeline

    order: list[str] = []
    submit, wait = Pipeline.submit, Pipeline.wait
    monkeypatch.setattr(Pipeline, "submit", lambda s, t: (order.append("submit"), submit(s, t))[1])
    monkeypatch.setattr(Pipeline, "wait", lambda s, t, n: (order.append("wait"), wait(s, t, n))[1])

    def chain(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(torch.mm(x, y).relu(), z).sin(), y.t())

    with offered("good"):
        args = torch.randn(8, 24), torch.randn(24, 40), torch.randn(40, 40)
        assert torch.allclose(compiled(chain, cache_dir)(*args), chain(*args), atol=1e-3)
    assert order == ["submit", "submit", "submit", "wait", "wait", "wait"]


def test_the_winner_runs_in_generated_code(cache_dir: Path) -> None:
    from torch._inductor.utils import run_and_get_code

    a, b = torch.randn(16, 16), torch.randn(16, 16)
    with offered("good"):
        compiled(torch.mm, cache_dir)(a, b)
        (record,) = records(cache_dir)
        winner = next(n for n, c in record["candidates"].items() if c["kind"] == "template")
        pins = cache_dir.parent / "pins.json"
        pin = {"environment": record["environment"], "op": "mm", "digest": record["digest"]}
        pins.write_text(json.dumps({"pins": [{**pin, "winner": winner}]}))
        torch._dynamo.reset()

        def pinned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b).relu()

        function = compiled(pinned, cache_dir, policy="pinned", pin_file=str(pins))
        answer, code = run_and_get_code(function, a, b)
    assert torch.allclose(answer, (a @ b).relu(), atol=1e-4)
    assert "torch.ops.faults.good" in code[0]


def test_policy_cached_measures_nothing(cache_dir: Path) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    spent = Spent()
    with offered("good"):
        answer = compiled(torch.mm, cache_dir, policy="cached")(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-5)
    assert spent.stats.problems == spent.stats.record_misses == 1
    assert spent.stats.benchmarked == 0


def test_stock_backend_takes_the_plugins_options(cache_dir: Path) -> None:
    a, b = torch.randn(12, 12), torch.randn(12, 12)
    spent = Spent()
    with offered("good"):
        options = inductor_plugin.options(cache_dir=str(cache_dir), max_autotune=True)
        assert torch.allclose(torch.compile(torch.mm, options=options)(a, b), a @ b, atol=1e-5)
    assert spent.stats.problems == 1


def test_enable_covers_every_compile_and_disable_leaves_torch_as_it_was(cache_dir: Path) -> None:
    from torch._inductor import compile_fx

    original = compile_fx.compile_fx
    a, b = torch.randn(9, 9), torch.randn(9, 9)
    with offered("good"):
        inductor_plugin.enable(cache_dir=str(cache_dir))
        spent = Spent()
        torch.compile(torch.mm)(a, b)
        assert spent.stats.problems == 1
        inductor_plugin.disable()
        assert compile_fx.compile_fx is original
        selector = select_algorithm.get_algorithm_selector_cache()
        assert type(selector) is select_algorithm.AlgorithmSelectorCache
        assert not vector.installed()
        assert not jinja.installed()
        torch._dynamo.reset()
        spent = Spent()
        torch.compile(torch.mm, options={"max_autotune": True})(a, b)
        assert spent.stats.problems == 0


def test_two_models_with_different_options_do_not_see_each_other(
    cache_dir: Path, tmp_path: Path
) -> None:
    a, b = torch.randn(10, 10), torch.randn(10, 10)
    other = tmp_path / "other-cache"
    with offered("good"):
        compiled(lambda x, y: torch.mm(x, y) + 1, cache_dir)(a, b)
        spent = Spent()
        compiled(lambda x, y: torch.mm(x, y) + 2, other, policy="cached")(a, b)
        assert spent.stats.benchmarked == 0
        spent = Spent()
        torch.compile(lambda x, y: torch.mm(x, y) + 3, options={"max_autotune": True})(a, b)
        assert spent.stats.problems == 0
    assert len(records(cache_dir)) == 1
    assert not records(other)


def test_a_compile_in_another_thread_is_in_scope(cache_dir: Path) -> None:
    a, b = torch.randn(11, 11), torch.randn(11, 11)
    answers: list[torch.Tensor] = []
    spent = Spent()
    with offered("good"):
        function = compiled(torch.mm, cache_dir)
        thread = threading.Thread(target=lambda: answers.append(function(a, b)))
        thread.start()
        thread.join(120)
    assert torch.allclose(answers[0], a @ b, atol=1e-5)
    assert spent.stats.problems == 1


def test_options_enter_the_fx_graph_cache_key(cache_dir: Path) -> None:
    a, b = torch.randn(13, 13), torch.randn(13, 13)

    def misses(**options: Any) -> int:
        torch._dynamo.reset()
        before = counters["inductor"]["fxgraph_cache_miss"]
        compiled(torch.mm, cache_dir, **options)(a, b)
        return counters["inductor"]["fxgraph_cache_miss"] - before

    with (
        inductor_config.patch(fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        assert misses() == 1
        assert misses() == 0
        assert misses(never_slower_margin=1.5) == 1
        assert misses(never_slower_margin=1.5, progress="off") == 0


def test_a_dynamic_size_shares_the_record_of_its_class(cache_dir: Path) -> None:
    b = torch.randn(24, 24)
    with offered("good"):
        function = torch.compile(
            torch.mm,
            backend="inductor_plugin",
            options={"cache_dir": str(cache_dir)},
        )
        for rows in (40, 50):
            torch._dynamo.reset()
            a = torch.randn(rows, 24)
            torch._dynamo.mark_dynamic(a, 0)
            spent = Spent()
            assert torch.allclose(function(a, b), a @ b, atol=1e-4)
    assert spent.stats.record_hits == 1
    (record,) = records(cache_dir)
    (size,) = record["problem"]["dynamic"]
    assert (size["low"], size["high"]) == (33, 64)


def test_batched_products_and_baddbmm_are_tuned(cache_dir: Path) -> None:
    a, b, c = torch.randn(3, 10, 12), torch.randn(3, 12, 14), torch.randn(3, 10, 14)
    spent = Spent()
    with offered("good", serves=("bmm",)):
        answer = compiled(lambda a, b, c: torch.bmm(a, b) + c, cache_dir)(a, b, c)
    assert torch.allclose(answer, torch.baddbmm(c, a, b), atol=1e-4)
    assert spent.stats.problems >= 1


def test_an_unknown_option_is_named_at_the_first_compile(cache_dir: Path) -> None:
    function = compiled(torch.mm, cache_dir, tune_bugdet_s=3)
    with pytest.raises(Exception, match="tune_budget_s"):
        function(torch.randn(4, 4), torch.randn(4, 4))
    with pytest.raises(ValueError, match="tune_budget_s"):
        inductor_plugin.options(tune_bugdet_s=3)


def test_a_lost_pool_falls_back_to_the_library_kernel_with_one_warning(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from inductor_plugin.errors import WorkerError
    from inductor_plugin.worker.bench_worker import BenchWorker

    def lost(self: BenchWorker, job: Any) -> Any:
        raise WorkerError("no worker could be started")

    monkeypatch.setattr(BenchWorker, "screen", lost)
    a, b = torch.randn(14, 14), torch.randn(14, 14)
    with offered("good"):
        answer = compiled(lambda a, b: torch.mm(a, b) @ b, cache_dir)(a, b)
    assert torch.allclose(answer, a @ b @ b, atol=1e-3)
    gone = [r for r in caplog.records if "is gone" in r.getMessage()]
    assert len(gone) == 1
    assert not records(cache_dir)


def test_the_tuning_budget_leaves_the_rest_unmeasured(cache_dir: Path) -> None:
    a, b = torch.randn(15, 15), torch.randn(15, 15)
    spent = Spent()
    with offered("good"):
        answer = compiled(torch.mm, cache_dir, tune_budget_s=1e-9)(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert spent.stats.benchmarked == 0
    assert spent.stats.record_misses == 1


def test_where_it_steps_aside_stock_inductor_decides(cache_dir: Path) -> None:
    a, b = torch.randn(17, 17), torch.randn(17, 17)
    spent = Spent()
    with offered("good"):
        answer = compiled(torch.mm, cache_dir, max_autotune=False)(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert spent.stats.problems == 0


def test_a_library_kernel_that_cannot_travel_to_a_worker_is_measured_here_and_wins(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inductor_plugin.inductor.candidates import offers

    monkeypatch.setattr(offers, "_extern_input", lambda choice, index, call: None)
    a, b = torch.randn(18, 18), torch.randn(18, 18)
    with offered("good"):
        answer = compiled(torch.mm, cache_dir)(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    (record,) = records(cache_dir)
    outcomes = {c["kind"]: (c["status"], c["reason"]) for c in record["candidates"].values()}
    unknown = "there is no library kernel to compare its numbers with"
    assert outcomes == {"extern": ("ok", ""), "template": ("skipped", unknown)}
    assert record["decision"]["winner"] == record["decision"]["library"]


def test_a_torch_without_the_hooks_is_left_to_stock_inductor_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from inductor_plugin import activation
    from inductor_plugin.inductor.facts import compat

    activation._step_aside.cache_clear()
    monkeypatch.setattr(compat, "unsupported", lambda: "torch 9.9 lacks everything")
    a, b = torch.randn(19, 19), torch.randn(19, 19)
    spent = Spent()
    with offered("good"):
        with pytest.warns(RuntimeWarning, match="torch 9.9 lacks everything"):
            options = inductor_plugin.options(max_autotune=True)
        # Warned once: a second warning would be an error here.
        answer = torch.compile(torch.mm, backend="inductor_plugin")(a, b)
    assert options == {"max_autotune": True}
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert spent.stats.problems == 0


def test_a_refused_cache_costs_the_memory_not_the_compile(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache_dir.mkdir()
    cache_dir.chmod(0o777)
    a, b = torch.randn(21, 21), torch.randn(21, 21)
    spent = Spent()
    with offered("good"):
        answer = compiled(torch.mm, cache_dir)(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert spent.stats.benchmarked == 2
    assert not list(cache_dir.iterdir())
    assert any("nothing is remembered" in record.getMessage() for record in caplog.records)
