"""A grouped product for the CUTLASS template: rows of A in groups, each with its own B.

D[begin:end, :] = A[begin:end, :] @ B[group]        begin, end = offsets[group - 1], offsets[group]
"""

from __future__ import annotations

import math
from dataclasses import replace

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.contract import MOST_BYTES, Contract
from inductor_plugin.problem.layout import judge_problem
from inductor_plugin.templates.cutlass.problem import CONTRACT, GemmFacts, facts_of, too_many

GROUPED_OPS = ("grouped_mm",)

GROUPED_CONTRACT = {**CONTRACT, "a": Contract("A", ("row",), preferred=MOST_BYTES)}
"""A group is a range of rows of A, so A must be row-major."""


def grouped_facts_of(problem: Problem) -> GemmFacts | str:
    """Return the facts of a grouped product, or why CUTLASS cannot run it on any device.

    ``m`` is the number of rows of all groups together, ``batch`` the number of groups.

    Args:
        problem: A[m, k], B[group, k, n] and the ends of the groups, int32 [group]: the form of
            ``torch._grouped_mm`` that a mixture of experts uses. Its other forms are refused.
    """
    if reason := _why_not(problem):
        return reason
    a, b = problem.inputs[:2]
    single = replace(b, size=b.size[1:], stride=b.stride[1:], divisors=b.divisors[1:])
    plain = replace(problem, op="mm", inputs=(a, single), dynamic=_without_groups(problem))
    # Grouped float32 is refused with its own reason; no option allows it.
    facts = facts_of(plain, allow_tf32=True)
    if isinstance(facts, str):
        return facts
    align_b = math.gcd(facts.align_b, b.stride_divisor(0)) if b.size[0] > 1 else facts.align_b
    return replace(facts, batch=b.size[0], align_b=align_b, grouped=True)


def _why_not(problem: Problem) -> str | None:
    if problem.op not in GROUPED_OPS:
        return f"it serves {', '.join(GROUPED_OPS)}, not {problem.op}"
    if len(problem.inputs) != 3:
        return (
            f"a grouped product has A, B and offsets, this one has {len(problem.inputs)} operands"
        )
    a, b, offsets = problem.inputs
    if (len(a.size), len(b.size)) != (2, 3):
        return f"groups must divide the rows of A alone, A is {a.shape} and B {b.shape}"
    if b.size[0] == 0:
        return "there are no groups"
    reason = too_many(b.size[0]) or _why_not_offsets(offsets, b.size[0])
    return reason or judge_problem(GROUPED_CONTRACT, problem).refusal


def _why_not_offsets(offsets: Operand, groups: int) -> str | None:
    if offsets.dtype != "int32" or offsets.size != (groups,):
        return f"offsets must be {groups} int32 numbers, they are {offsets.shape} {offsets.dtype}"
    return None


def _without_groups(problem: Problem) -> tuple[SizeClass, ...]:
    """Return the dynamic dimensions of A and of one group's B."""
    dynamic = [extent for extent in problem.dynamic if extent.operand == 0]
    dynamic += [
        replace(extent, dim=extent.dim - 1)
        for extent in problem.dynamic
        if extent.operand == 1 and extent.dim > 0
    ]
    return tuple(dynamic)
