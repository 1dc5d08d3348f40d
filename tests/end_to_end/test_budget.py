"""A tuning budget on a CPU: what is compiled is measured, the heaviest problems first."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from inductor_plugin.inductor.graph import session
from inductor_plugin.tuning.budget import weight
from inductor_plugin.tuning.ticket import TuningTicket

COUNT = 10
"""Linears of different sizes: each is a problem with one C++ kernel."""


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    """Compile everything anew."""
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False, freezing=True):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def tuned(widths: Sequence[int], cache_dir: Path, **options: Any) -> list[TuningTicket]:
    """Compile linears of some widths in one graph, and return its problems."""
    layers = [torch.nn.Linear(width, width + 64).eval() for width in widths]
    operands = [torch.randn(48, width) for width in widths]
    tickets: list[TuningTicket] = []
    session.OBSERVERS.append(tickets.extend)
    try:
        with torch.no_grad():
            compiled = torch.compile(
                lambda *rows: [layer(x) for layer, x in zip(layers, rows, strict=True)],
                backend="inductor_plugin",
                options={"cache_dir": str(cache_dir), **options},
            )
            for out, layer, x in zip(compiled(*operands), layers, operands, strict=True):
                torch.testing.assert_close(out, layer(x), rtol=1e-4, atol=1e-4)
    finally:
        session.OBSERVERS.remove(tickets.extend)
    return tickets


def rival_measured(ticket: TuningTicket) -> bool:
    libraries = {offer.candidate_id for offer in ticket.offers if offer.library}
    return any(
        row.status == "ok" and name not in libraries for name, row in ticket.measured.items()
    )


@pytest.mark.slow
def test_a_budget_too_small_for_all_measures_the_heaviest_problems(cache_dir: Path) -> None:
    tuned([72], cache_dir)  # starts the workers, and shows how fast this machine compiles
    budget_s = 10.0 * inductor_plugin.stats().compile_s
    before = inductor_plugin.stats()
    widths = [96 + 32 * i for i in range(COUNT)]
    tickets = tuned(widths, cache_dir, tune_budget_s=budget_s)
    spent = inductor_plugin.stats().since(before)
    assert len(tickets) == COUNT
    ranked = sorted(tickets, key=lambda ticket: -weight(ticket.problem))
    measured = [rival_measured(ticket) for ticket in ranked]
    # Two quiet cores compile eight kernels or more in that time; a busy machine may do with two.
    assert sum(measured[:4]) >= 2
    assert spent.wall_s < budget_s + 10.0
    if sum(measured) < COUNT:
        reasons = {row.reason for t in tickets for row in t.measured.values() if row.reason}
        assert "the tuning budget ended" in reasons
