"""CUTLASS products of a cache's records: the kernel by its recorded name, and a call with the recorded sizes and strides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch

from inductor_plugin.ops.gemm_call import CALLS
from inductor_plugin.problem import Problem
from inductor_plugin.problem.definition import Operand
from inductor_plugin.problem.product import ROLES
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate, CudaSource, Json
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from tests.emulator.kernels import gemm
from tests.emulator.kernels.operand import DeviceTensor, device_tensor
from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.runtime import Runtime

PREFIX = f"{CutlassGemm.name}::"
"""How the names of its candidates begin in records."""


@dataclass(frozen=True)
class Recorded:
    """A recorded candidate.

    Attributes:
        problem: Its problem.
        candidate: The candidate, as its template offers it.
        config: Its kernel.
    """

    problem: Problem
    candidate: Candidate
    config: GemmConfig

    @property
    def target(self) -> Target:
        """The GPU."""
        assert self.problem.target is not None
        return self.problem.target

    @property
    def source(self) -> CudaSource:
        """The kernel, and the operator that calls it."""
        kernel = self.candidate.kernel
        assert isinstance(kernel, CudaSource)
        return kernel


def recorded(problem: Problem | None, name: str, target: Target) -> Recorded | str:
    """Return a candidate by its name in a record, or why it cannot be run.

    Args:
        problem: The record's problem; None if its sizes are not known.
        name: The candidate's name.
        target: The GPU it was recorded on.
    """
    if problem is None:
        return "the record is of sizes that vary, or of another version"
    if problem.epilogue:
        return "the kernel has an epilogue, whose visitors are not in the record; tests/emulator/suite/cases/trees.py runs such kernels"
    if not name.startswith(PREFIX):
        return f"{name} is no CUTLASS product"
    known = replace(problem, target=target, tf32=True)  # else it would not have been offered
    for candidate in CutlassGemm().candidates(known):
        if candidate.name == name.removeprefix(PREFIX):
            return Recorded(known, candidate, _config(candidate.config))
    reason = CutlassGemm().reject(known)
    return reason or f"{name} is not offered any more: the record is of another version"


def _config(shown: Mapping[str, Json]) -> GemmConfig:
    """Return the kernel that a candidate's configuration describes."""
    values: dict[str, Any] = {field.name: shown.get(field.name) for field in fields(GemmConfig)}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(cast("list[int]", value))
    return GemmConfig(**values)


def run(runtime: Runtime, call: Recorded, schedule: Schedule) -> gemm.Outcome:
    """Call a recorded kernel on random operands, and compare with float64; errors as `gemm.run`."""
    problem, source = call.problem, call.source
    inputs = dict(zip(ROLES[problem.op], problem.inputs, strict=False))
    groups = inputs["b"].size[0] if call.config.grouped else 0
    ends = tuple(inputs["a"].size[0] * (group + 1) // groups for group in range(groups))
    operands = {role: _tensor(role, operand, ends) for role, operand in inputs.items()}
    out = _tensor("", problem.output, ())
    scales = (operands["scale_a"], operands["scale_b"]) if "scale_a" in operands else None
    tensors = gemm.Operands(
        operands["a"], operands["b"], out, operands.get("c"), scales, operands.get("offsets")
    )
    arguments = source.arguments
    factors = arguments[-2:] if "addmm" in source.op and scales is None else (1.0, 1.0)
    case = gemm.Case(
        call.config,
        *(problem.output.size[-2], problem.output.size[-1], inputs["a"].size[-1]),
        alpha=float(factors[0]),
        beta=float(factors[1]),
        split=int(arguments[3]),
        ends=ends,
    )
    planned = CALLS[source.op.partition("::")[2].partition(".")[0]]
    views = [each.view for each in operands.values()]
    start = planned(*views, *arguments, out=out.view, sm_count=call.target.multiprocessors)
    return gemm.compared(runtime, case, tensors, start, call.target, schedule)


def _tensor(role: str, operand: Operand, ends: tuple[int, ...]) -> DeviceTensor:
    """Return an operand with random numbers; without a role it is the output."""
    dtype: torch.dtype = getattr(torch, operand.dtype)
    values = None
    if role == "offsets":
        values = torch.tensor(ends)
    elif role.startswith("scale"):
        generator = torch.Generator().manual_seed(len(role) + ord(role[-1]))
        values = 0.5 + 1.5 * torch.rand(operand.size, generator=generator)
    elif role:
        values = gemm.random(operand.size, dtype, ord(role))
    return device_tensor(operand.size, dtype, operand.stride, values, operand.offset)
