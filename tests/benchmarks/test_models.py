"""The figures of the benchmark of whole networks, and its networks."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmarks.harness import arms
from benchmarks.harness.resume import Budget
from benchmarks.models.__main__ import interval, ratios, summary
from benchmarks.models.networks import NETWORKS


def report(*samples_ms: float) -> dict[str, object]:
    return {"samples_ms": list(samples_ms)}


def test_ratios_are_those_of_each_round() -> None:
    """The machine was slower in the second round, for all alike."""
    row = ratios({"plain": report(2, 20, 2), "stock": report(1, 10, 1), "ours": report(1, 10, 1)})
    assert row["to_plain"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert row["to_stock"]["median"] == 1.0
    assert row["stock_to_plain"]["median"] == 0.5


def test_an_arm_that_failed_has_no_ratio() -> None:
    row = ratios(
        {"plain": report(2.0), "stock": {"failed": "it ended with 1"}, "ours": report(1.0)}
    )
    assert list(row) == ["to_plain"]


def test_an_interval_holds_the_median_and_grows_with_the_spread() -> None:
    calm, wild = interval([1.0, 1.01, 0.99] * 5), interval([1.0, 1.5, 0.5] * 5)
    for each in (calm, wild):
        assert each["low"] <= each["median"] <= each["high"]
    assert wild["high"] - wild["low"] > calm["high"] - calm["low"]


def test_a_summary_has_geometric_means_and_the_worst() -> None:
    rows = [{"to_plain": {"median": 0.5}}, {"to_plain": {"median": 2.0}}]
    assert summary(rows) == {"to_plain": 1.0, "largest_to_plain": 2.0}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_finite_and_the_same_every_time(name: str) -> None:
    results: list[torch.Tensor] = []
    for _ in range(2):
        torch.manual_seed(0)
        model, inputs = NETWORKS[name]()
        with torch.no_grad():
            results.append(model.eval()(*inputs))
    assert bool(results[0].isfinite().all())
    assert torch.equal(results[0], results[1])


def test_other_processes_compute_while_a_network_is_tuned_and_not_while_it_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    @contextmanager
    def load(name: str) -> Generator[None]:
        events.append(f"{name} begins")
        yield
        events.append(f"{name} ends")

    class Arm:
        name = "ours"

        def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
            del limit_s
            events.append(request["do"])
            return {"ms": 1.0}

    monkeypatch.setattr(arms, "load", load)
    processes: Any = [Arm()]
    row, _ = arms.raced({"do": "prepare"}, processes, Budget(60), 10, 2, other_work="2 busy")
    assert events == ["2 busy begins", "prepare", "2 busy ends", "sample", "sample"]
    assert row["arms"]["ours"]["median_ms"] == 1.0
