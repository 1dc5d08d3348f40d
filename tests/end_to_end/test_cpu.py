"""The whole path on a CPU: torch.compile, selection, workers, decision, record."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from inductor_plugin.cache import open_store
from inductor_plugin.cache.quarantine import MISHAPS
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh, records

__all__ = ["fresh"]  # the fixture
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


def test_only_unseen_candidates_are_measured(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "AGAIN_S", 3600.0)  # what other work has disturbed is not due yet
    a, b = torch.randn(40, 40), torch.randn(40, 40)
    compiled_once = compiled(torch.mm, cache_dir)
    with offered("slow"):
        compiled_once(a, b)
    torch._dynamo.reset()
    spent = Spent()
    with offered("slow", "good"):
        compiled(torch.mm, cache_dir)(a, b)
    # The new one, and the library kernel beside it in the same clock state; not the one that was far behind.
    assert spent.stats.benchmarked == 2
    (record,) = records(cache_dir)
    assert [row["status"] for row in record["candidates"].values()] == ["ok"] * 3


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
