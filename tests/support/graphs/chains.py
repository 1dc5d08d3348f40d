"""Epilogues as data: operations one after the other on a product of 2048 x 2048 numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inductor_plugin.problem.epilogue import Access, Epilogue, Pattern, Step

M = N = 2048


def access(pattern: Pattern = "full", dtype: str = "bfloat16", buffer: str = "") -> Access:
    elements = {"full": M * N, "row": N, "column": M, "scalar": 1, "other": M * N}[pattern]
    stride = {"full": (N, 1), "row": (0, 1), "column": (1, 0), "scalar": (0, 0), "other": ()}
    return Access(pattern, dtype, elements, stride[pattern], buffer=buffer)


def epilogue(
    *operations: str, reads: tuple[Access, ...] = (), out: str = "bfloat16", **facts: Any
) -> Epilogue:
    """Return a chain of operations on the product; each of the reads is added in the end."""
    steps = [Step("product")]
    for operation in operations:
        steps.append(Step(operation, (len(steps) - 1,)))
    for index in range(len(reads)):
        before = len(steps) - 1
        steps += [Step("load", (), index), Step("add", (before, before + 1))]
    steps.append(Step("store", (len(steps) - 1,), 0))
    chain = Epilogue((M, N), "bfloat16", tuple(steps), reads, (access(dtype=out),))
    return replace(chain, **facts)


def gelu(**facts: Any) -> Epilogue:
    """Return x * erf(x): x waits for the function."""
    steps = (
        Step("product"),
        Step("erf", (0,)),
        Step("mul", (0, 1)),
        Step("store", (2,), 0),
    )
    return replace(Epilogue((M, N), "bfloat16", steps, (), (access(),)), **facts)
