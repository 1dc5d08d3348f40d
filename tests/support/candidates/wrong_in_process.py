"""Operators that are correct in workers, and wrong or slow in this process on command.

A worker imports this module because an `OpKernel` names it; it never gets the command. ``TRAITOR_REPEATS`` in the environment
is how often each product is computed.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from inductor_plugin.worker.jobs import BenchCandidate

_AT: list[tuple[int, int]] = []
_REPEATS = int(os.environ.get("TRAITOR_REPEATS", "1"))

_library = torch.library.Library("traitor", "FRAGMENT")


def _define(name: str, operands: str, compute: Callable[..., torch.Tensor]) -> None:
    def run(*args: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for _ in range(_REPEATS):
            out.copy_(compute(*args))
        for row, column in _AT:
            out[..., row, column] = torch.nan
        return out

    _library.define(f"{name}({operands}, *, Tensor(x!) out) -> Tensor(x!)")
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)


_define("mm", "Tensor a, Tensor b", torch.mm)
_define("bmm", "Tensor a, Tensor b", torch.bmm)
_define("addmm", "Tensor bias, Tensor a, Tensor b", torch.addmm)
_define("baddbmm", "Tensor bias, Tensor a, Tensor b", torch.baddbmm)


def first(candidate: BenchCandidate) -> float:
    """Return milliseconds by which these operators are the fastest."""
    kernel = candidate.kernel
    return 1.0 if isinstance(kernel, OpKernel) and kernel.op.startswith("traitor::") else 10.0


class TraitorTemplate:
    """Offers one operator for each product."""

    name = "traitor"
    ops = ("mm", "bmm", "addmm", "baddbmm")

    def reject(self, problem: Problem) -> str | None:
        scalars = dict(problem.arguments)
        if {scalars.get("alpha", "1"), scalars.get("beta", "1")} != {"1"}:
            return f"it scales neither the product nor the bias, this asks for {scalars}"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        kernel = OpKernel(
            f"traitor::{problem.op}", (), ("tests.support.candidates.wrong_in_process",)
        )
        return [Candidate(self.name, problem.op, {}, kernel)]


@contextmanager
def offered() -> Generator[None]:
    """Register the template for the block."""
    template: Any = TraitorTemplate()
    default_registry().register(template)
    try:
        yield
    finally:
        default_registry().unregister(template.name)


@contextmanager
def betraying(row: int, column: int) -> Generator[None]:
    """Make every operator write NaN into one element of each matrix in this process."""
    _AT.append((row, column))
    try:
        yield
    finally:
        _AT.pop()
