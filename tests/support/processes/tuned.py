"""A model and its sets of inputs, and a process that compiles each set with a cache in which they were tuned.

    python -m tests.support.processes.tuned JSON

The argument has the options of a compile, and the calls: rows of the inputs, and whether sizes are unknown. Prints JSON: what the
plugin did in each call, forward and backward.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

import inductor_plugin
from tests.support.candidates.fast_templates import rivals_offered

ROWS = (40, 60, 100)
"""Rows of the sets: two of one size class, and one of another."""


class Projection(nn.Module):
    """A product, whose gradient is another one; a user's layer, since Dynamo does not compile a module of torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def inputs(rows: int) -> tuple[Tensor]:
    return (torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows)),)


def some_sets() -> tuple[nn.Module, list[tuple[Tensor]]]:
    torch.manual_seed(0)
    return Projection(), [inputs(rows) for rows in ROWS]


def trained(model: Any, x: Tensor, weight: nn.Parameter) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient."""
    out = model(x)
    (gradient,) = torch.autograd.grad(out.square().sum(), [weight])
    return out, gradient


def run(options: dict[str, Any], rows: int, *, dynamic: bool) -> dict[str, Any]:
    """Compile for one call; return the plugin's counters, and whether the results are right."""
    torch._dynamo.reset()
    model, (x,) = some_sets()[0], inputs(rows)
    weight, before = next(model.parameters()), inductor_plugin.stats()
    compiled = torch.compile(model, backend="inductor_plugin", options=options, dynamic=dynamic)
    ours, eager = trained(compiled, x, weight), trained(model, x, weight)
    spent = asdict(inductor_plugin.stats().since(before))
    right = all(torch.allclose(*pair, atol=1e-4) for pair in zip(ours, eager, strict=True))
    return {**spent, "right": right}


def main(arguments: Sequence[str]) -> None:
    order = json.loads(arguments[0])
    with rivals_offered():
        said = [run(order["options"], rows, dynamic=dynamic) for rows, dynamic in order["calls"]]
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
