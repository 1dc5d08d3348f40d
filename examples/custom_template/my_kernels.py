"""Products with a long sum and a small result: the sum is cut into parts that run in parallel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import inductor_plugin
from inductor_plugin.template import Candidate, OpKernel, Problem

PARTS = (4, 16)
SHORTEST_K, LARGEST_RESULT = 4096, 64 * 64


@torch.library.custom_op("my_kernels::split_mm", mutates_args=("out",))
def split_mm(a: torch.Tensor, b: torch.Tensor, parts: int, out: torch.Tensor) -> None:
    """Write a @ b to ``out``: K in equal parts, multiplied as one batch, then added."""
    left = a.unflatten(1, (parts, -1)).movedim(1, 0)
    right = b.unflatten(0, (parts, -1))
    torch.sum(torch.bmm(left, right), dim=0, out=out)


class SplitMM:
    name = "split_mm"
    ops = ("mm",)
    version = "1"

    def reject(self, problem: Problem) -> str | None:
        (m, k), (_, n) = (operand.size for operand in problem.inputs)
        if problem.dynamic:
            return "it divides K, so sizes have to be known"
        if k < SHORTEST_K:
            return f"K has to be at least {SHORTEST_K} to be worth cutting, it is {k}"
        if m * n > LARGEST_RESULT:
            return f"a result of {m}x{n} has enough to do in parallel"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        k = problem.inputs[0].size[1]
        return [
            Candidate(
                template=self.name,
                name=f"parts_{parts}",
                config={"parts": parts},
                kernel=OpKernel("my_kernels::split_mm", args=(parts,), imports=("my_kernels",)),
                description=f"K in {parts} parts",
            )
            for parts in PARTS
            if k % parts == 0
        ]


def register() -> None:
    inductor_plugin.register(SplitMM())
