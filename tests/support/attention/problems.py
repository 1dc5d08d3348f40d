"""Attentions as problems, for the tests of templates that run on Hopper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import BACKWARD, FORWARD, Attention, Mask, arguments
from inductor_plugin.problem.target import target

Sizes = tuple[int, ...]

PLAIN = Attention(
    backward=False,
    batch=2,
    heads=8,
    kv_heads=8,
    queries=256,
    keys=256,
    head_dim=64,
    value_dim=64,
    scale=0.125,
    mask=Mask(),
    softcap=0.0,
    operands=("q", "k", "v"),
    dtype="bfloat16",
)
"""An attention that every library kernel of Hopper can compute."""


def dense(size: Sizes, dtype: str) -> Operand:
    strides: list[int] = []
    step = 1
    for extent in reversed(size):
        strides.insert(0, step)
        step *= extent
    return Operand(size, tuple(strides), dtype, "cuda")


def attention(
    *,
    batch: int = 2,
    heads: int = 16,
    kv_heads: int = 0,
    queries: int = 2048,
    keys: int = 0,
    dim: int = 128,
    dtype: str = "bfloat16",
    mask: Mask | None = None,
    backward: bool = False,
    scale: float = 0.125,
    softcap: float = 0.0,
    lse: bool = True,
    gpu: str = "H100",
) -> Problem:
    """Return the problem of an attention on dense operands."""
    q = dense((batch, heads, queries, dim), dtype)
    k = dense((batch, kv_heads or heads, keys or queries, dim), dtype)
    rows = dense((batch, heads, queries), "float32")
    if backward:
        names = ("do", "q", "k", "v", "out", "lse", "delta", "dq", "dv")
        inputs = (q, q, k, k, q, rows, rows, q, k)
    else:
        names, inputs = ("q", "k", "v"), (q, k, k)
        if lse:
            names, inputs = (*names, "lse"), (*inputs, rows)
    keywords = arguments(scale=scale, mask=mask or Mask(), softcap=softcap, operands=names)
    return Problem(
        op=BACKWARD if backward else FORWARD,
        inputs=inputs,
        output=dense(q.size, "bfloat16") if dtype.startswith("float8") else k if backward else q,
        arguments=tuple((name, repr(value)) for name, value in keywords.items()),
        target=target(gpu),
    )


def changed(problem: Problem, name: str, **values: Any) -> Problem:
    """Return a problem with one operand changed; ``output`` names the result."""
    if name == "output":
        return replace(problem, output=replace(problem.output, **values))
    keywords = dict(problem.arguments)
    at = keywords["operands"].strip("'").split(",").index(name)
    inputs = list(problem.inputs)
    inputs[at] = replace(inputs[at], **values)
    return replace(problem, inputs=tuple(inputs))
