"""Triton attention of a cache's records: forward, decoding and gradients, with the recorded sizes and strides."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_plugin.attention.check.reference import Reference
from inductor_plugin.cache import Measured
from inductor_plugin.inductor.candidates import offers
from inductor_plugin.inductor.candidates.triton import triton_choice
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Attention, attention_of
from inductor_plugin.problem.target import Target
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate, Failed, TritonSource
from tests.emulator.kernels import triton
from tests.emulator.kernels.attention import share_of_facts
from tests.emulator.kernels.operand import device_tensor
from tests.emulator.machine.schedule import Schedule
from tests.emulator.recorded.call import Call
from tests.emulator.recorded.lowering import OTHER_SOURCE, like, lowering, missing
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import Verdict
from tests.support.attention.lowering import _layout, _node, graph, module_of

_WRITTEN = ("lse", "dq", "dv")
"""Operands that are written, besides the output; the lse of a gradient is read."""


@dataclass(frozen=True)
class _Entry:
    """A candidate of today, as records have it."""

    candidate_id: str
    name: str
    description: str
    candidate: Candidate


def call_of(problem: Problem, row: Measured, target: Target) -> Call | str:
    """Return the call of a candidate, or why it cannot be run.

    Args:
        problem: The record's problem.
        row: The candidate.
        target: The GPU.
    """
    known = replace(problem, target=target)
    facts = attention_of(known)
    if facts.varlen:
        return "its sequences have lengths of their own, packed, and a record does not keep them; run one of a single length"
    with lowering(target), graph():
        entry = like(_entries(known), row)
        if entry is None:
            return missing(row, target, _refused(known, row))
        code = module_of(known, entry.candidate)
    note = "" if entry.candidate_id == row.candidate else OTHER_SOURCE
    run = functools.partial(_run, known, facts, code)
    return Call(f"{row.name} {row.description}", known, run, note)


def _entries(problem: Problem) -> Iterator[_Entry]:
    """Yield the Triton candidates of all templates; call it within `graph`."""
    for template in default_registry().for_op(problem.op):
        reason = template.reject(problem)
        for candidate in () if reason else template.candidates(problem):
            if not isinstance(candidate.kernel, TritonSource):
                continue
            nodes = [_node(f"arg{i}_1", operand) for i, operand in enumerate(problem.inputs)]
            choice: Any = triton_choice(candidate.kernel, nodes, _layout(problem.output))
            if not isinstance(choice, Failed):
                name = choice.name.rsplit("_", 1)[0]
                identity = offers.candidate_id(name, offers._triton_key(choice))
                yield _Entry(identity, name, str(choice.description), candidate)


def _refused(problem: Problem, row: Measured) -> str:
    """Return why a template offers nothing."""
    templates = default_registry().for_op(problem.op)
    reasons = (each.reject(problem) for each in templates if each.name == row.name)
    return next(filter(None, reasons), "its configuration is none of today's")


def _run(
    problem: Problem, facts: Attention, code: str, _runtime: Runtime, schedule: Schedule
) -> Verdict:
    assert problem.target is not None
    operands = _operands(problem, facts)
    computed = triton.outputs([(code, list(operands.values()))], problem.target, schedule)
    (results,) = computed.results
    # As `module_of` returns them: the output, and what else is written, by operand.
    names = [name for name in operands if name in (_WRITTEN[1:] if facts.backward else _WRITTEN)]
    outputs = dict(zip(("dk" if facts.backward else "out", *names), results, strict=True))
    return Verdict(share_of_facts(facts, operands, outputs), computed.changed, computed.launches)


def _operands(problem: Problem, facts: Attention) -> dict[str, torch.Tensor]:
    """Return random operands by name; what a forward pass has stored is exact, outputs are no numbers."""
    operands: dict[str, torch.Tensor] = {}
    for seed, (name, operand) in enumerate(zip(facts.operands, problem.inputs, strict=True)):
        generator = torch.Generator().manual_seed(seed)
        is_read = name in ("do", "q", "k", "v", "bias")
        values = torch.randn(operand.size, generator=generator) if is_read else None
        dtype: torch.dtype = getattr(torch, operand.dtype)
        device = device_tensor(operand.size, dtype, operand.stride, values, operand.offset)
        operands[name] = device.tensor
    if facts.backward:
        for name, value in Reference(facts, operands).prepared.items():
            operands[name].copy_(value)
    return operands
