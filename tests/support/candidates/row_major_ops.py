"""Operators for tests that accept only aligned row-major operands without expansion, and raise otherwise.

A worker imports this module because an `OpKernel` names it.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import Contract
from inductor_plugin.problem.layout import judge_problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from inductor_plugin.worker.jobs import BenchCandidate

CONTRACT: Mapping[str, Contract] = {
    "a": Contract("A", ("row",), 16, extent="free", shared_batch=False, exact=True),
    "b": Contract("B", ("row",), 16, extent="free", shared_batch=False, exact=True),
    "c": Contract("the bias", ("row",), broadcast=True),
    "d": Contract("the output", ("row",), copies=False),
}

CALLS: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
"""Operators that were called in this process, with the strides of their operands."""

_library = torch.library.Library("picky", "FRAGMENT")


def _define(name: str, operands: str, compute: Callable[..., torch.Tensor]) -> None:
    def run(*args: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        CALLS.append((name, tuple(argument.stride() for argument in args)))
        for operand in args[-2:]:
            assert operand.stride(-1) == 1, f"a row has gaps: {operand.stride()}"
            assert operand.stride(-2) % 4 == 0, f"rows are not aligned: {operand.stride()}"
            assert operand.stride(-2) >= operand.size(-1), f"rows overlap: {operand.stride()}"
            assert operand.data_ptr() % 16 == 0, "the base is not aligned"
            assert 0 not in operand.stride(), f"it is expanded: {operand.stride()}"
        return out.copy_(compute(*args))

    _library.define(f"{name}({operands}, *, Tensor(x!) out) -> Tensor(x!)")
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)


_define("mm", "Tensor a, Tensor b", torch.mm)
_define("bmm", "Tensor a, Tensor b", torch.bmm)
_define("addmm", "Tensor bias, Tensor a, Tensor b", torch.addmm)


def first(candidate: BenchCandidate) -> float:
    """Return milliseconds by which these operators are the fastest; copies cost nothing."""
    kernel = candidate.kernel
    ours = isinstance(kernel, OpKernel) and "picky::" in repr(kernel)
    return 1.0 if ours else 10.0


class PickyTemplate:
    """Offers one operator for each product."""

    name = "picky"
    ops = ("mm", "bmm", "addmm")

    def contract(self, op: str) -> Mapping[str, Contract]:
        return CONTRACT if op in self.ops else {}

    def reject(self, problem: Problem) -> str | None:
        return judge_problem(CONTRACT, problem).refusal

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        kernel = OpKernel(f"picky::{problem.op}", (), ("tests.support.candidates.row_major_ops",))
        return [Candidate(self.name, problem.op, {}, kernel)]


@contextmanager
def picky_offered() -> Generator[None]:
    """Register the template for the block, and forget what was called before."""
    template: Any = PickyTemplate()
    default_registry().register(template)
    CALLS.clear()
    try:
        yield
    finally:
        default_registry().unregister(template.name)
