"""Graphs whose problems were not measured are not stored in Inductor's cache: a later compile measures them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._dynamo.utils import counters

import inductor_plugin
from inductor_plugin.inductor.graph import unstored
from inductor_plugin.inductor.graph.due import Due
from inductor_plugin.kernels.call import ExternKernel
from tests.support.candidates import wrong_in_process
from tests.support.lowering import Lab

pytestmark = pytest.mark.compat


@pytest.fixture
def lab(cache_dir: Path, inductor_cache: Path) -> Iterator[Lab]:
    with (
        inductor_config.patch(fx_graph_cache=True),
        wrong_in_process.offered(),
        Lab(wrong_in_process.first, cache_dir).open() as opened,
    ):
        yield opened
    inductor_plugin.disable()
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], lab: Lab, **options: Any) -> list[str | None]:
    """Compile a function of three matrices as a new process would, and return the winners decided."""
    torch._dynamo.reset()
    counters.clear()
    winners: list[str | None] = []

    def take(tickets: Sequence[Any]) -> None:
        winners.extend(t.verdict and t.verdict.winner for t in tickets)

    settings: Any = {"cache_dir": str(lab.cache_dir), **options}
    a, b, c = (torch.ones(24, 24) for _ in range(3))
    with inductor_plugin.observe(take):
        torch.compile(function, backend="inductor_plugin", options=settings)(a, b, c)
    return winners


def hits() -> int:
    return counters["inductor"]["fxgraph_cache_hit"]


def product(a: Tensor, b: Tensor, _c: Tensor) -> Tensor:
    return torch.mm(a, b)


def test_what_the_budget_left_out_is_measured_by_a_later_compile(lab: Lab) -> None:
    compiled(product, lab, tune_budget_s=1e-9)
    assert not lab.screens
    compiled(product, lab, tune_budget_s=1e-9)
    assert hits() == 0


def test_what_was_not_known_is_decided_once_it_is(lab: Lab) -> None:
    (library,) = compiled(product, lab, policy="cached")
    (winner,) = compiled(product, lab)
    assert compiled(product, lab, policy="cached") == [winner] != [library]
    assert compiled(product, lab, policy="cached") == []
    assert hits() == 1


@pytest.mark.parametrize("status", ["wrong", "crashed", "compile_failed"])
def test_a_candidate_that_has_failed_is_decided(lab: Lab, status: str) -> None:
    lab.status = lambda each: "ok" if isinstance(each.kernel, ExternKernel) else status
    assert compiled(product, lab)
    assert compiled(product, lab) == []
    assert hits() == 1


def test_a_graph_is_due_by_any_of_its_branches() -> None:
    marks: Any = unstored
    unstored.mark_due(None)
    for due in (None, Due(at=5.0), None, Due(at=7.0)):  # each has a session of its own
        unstored.add_due(due)
    assert marks._GRAPH.due == Due(at=5.0)
    unstored.mark_due(None)
