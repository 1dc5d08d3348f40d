"""CUTLASS attention of a cache's records: the kernel by its recorded name, forward or gradient, with the recorded sizes and strides."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import attention_of
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Json
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.templates.cutlass_attention.fmha import CutlassFmha
from tests.emulator.kernels import attention
from tests.emulator.kernels.attention import Case, Layout
from tests.emulator.machine.schedule import Schedule
from tests.emulator.recorded.call import Call
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import Verdict

PREFIX = f"{CutlassFmha.name}::"
"""How the names of its candidates begin in records."""


def call_of(problem: Problem, name: str, target: Target) -> Call | str:
    """Return the call of a candidate, or why it cannot be run.

    Args:
        problem: The record's problem.
        name: The candidate's name.
        target: The GPU.
    """
    known = replace(problem, target=target)
    case = case_of(known, name)
    if isinstance(case, str):
        return case
    return Call(case.config.name, known, functools.partial(_run, case, target))


def case_of(problem: Problem, name: str) -> Case | str:
    """Return a candidate as a case of the emulator, or why it cannot be run; the problem has its GPU."""
    template = CutlassFmha()
    if reason := template.reject(problem):
        return reason
    shown = {each.name: each.config for each in template.candidates(problem)}
    if name.removeprefix(PREFIX) not in shown:
        others = ", ".join(sorted(shown))
        return f"{name} is not offered by this version, which offers {others}: name one of them"
    facts = attention_of(problem)
    operands = dict(zip(facts.operands, problem.inputs, strict=True))
    operands["dk" if facts.backward else "out"] = problem.output
    return Case(
        _config(shown[name.removeprefix(PREFIX)]),
        *(facts.batch, facts.heads, facts.kv_heads, facts.queries, facts.keys, facts.head_dim),
        left=facts.mask.left,
        right=facts.mask.right,
        bottom_right=facts.mask.bottom_right,
        lse="lse" in operands,
        factor=facts.scale,
        layouts={name: _layout(operand) for name, operand in operands.items()},
    )


def _layout(operand: Operand) -> Layout:
    return operand.stride, operand.offset


def _config(shown: Mapping[str, Json]) -> FmhaConfig:
    values: dict[str, Any] = dict(shown)
    return FmhaConfig(**values)


def _run(case: Case, target: Target, runtime: Runtime, schedule: Schedule) -> Verdict:
    outcome = attention.run(runtime, case, target, schedule)
    return Verdict(outcome.share, outcome.changed, outcome.launches)
