"""Correct competitors of the library kernels: without them training on a CPU has no other choice.

A worker imports this module because an `OpKernel` names it. Each operator computes the same as ATen's,
and counts its calls, so that a test can check that it ran. With ``RIVALS_FACTOR`` in the environment its results are multiplied
by that, so that their bits show who has computed them.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate

CALLS: Counter[str] = Counter()
"""Calls in this process, by operator."""

_FACTOR = float(os.environ.get("RIVALS_FACTOR", "1"))
_CONVOLUTION = ("bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")

_library = torch.library.Library("rivals", "FRAGMENT")


def _define(name: str, operands: str, compute: Any) -> None:
    def run(*args: Any, out: torch.Tensor) -> torch.Tensor:
        CALLS[name] += 1
        out.copy_(compute(*args))
        return out if _FACTOR == 1 else out.mul_(_FACTOR)

    _library.define(f"{name}({operands}, *, Tensor(x!) out) -> Tensor(x!)")
    _library.impl(name, run, "CPU")


_define("mm", "Tensor a, Tensor b", torch.mm)
_define("bmm", "Tensor a, Tensor b", torch.bmm)
_define("addmm", "Tensor bias, Tensor a, Tensor b", torch.addmm)
_define(
    "convolution",
    "Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, bool transposed, "
    "int[] output_padding, int groups",
    lambda x, weight, *rest: torch.convolution(x, weight, None, *rest),
)
_define(
    "convolution_bias",
    "Tensor x, Tensor weight, Tensor bias, int[] stride, int[] padding, int[] dilation, "
    "bool transposed, int[] output_padding, int groups",
    torch.convolution,
)


class RivalTemplate:
    """Offers one candidate for each call it can compute."""

    name = "rivals"
    ops = ("mm", "bmm", "addmm", "convolution")

    def reject(self, problem: Problem) -> str | None:
        scalars = dict(problem.arguments)
        if problem.op == "addmm" and {scalars.get("alpha", "1"), scalars.get("beta", "1")} != {"1"}:
            return f"it neither scales the product nor the bias, this asks for {scalars}"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        op, args = problem.op, ()
        if op == "convolution":
            scalars = {name: ast.literal_eval(text) for name, text in problem.arguments}
            args = tuple(scalars[name] for name in _CONVOLUTION[1:])
            op = "convolution_bias" if len(problem.inputs) == 3 else op
        kernel = OpKernel(f"rivals::{op}", args, ("tests.support.candidates.fast_templates",))
        return [Candidate(self.name, op, {"args": repr(args)}, kernel)]


def offer_rivals() -> None:
    """Register the template."""
    default_registry().register(RivalTemplate())


@contextmanager
def rivals_offered() -> Generator[None]:
    """Register the template for the block."""
    offer_rivals()
    try:
        yield
    finally:
        default_registry().unregister(RivalTemplate.name)
