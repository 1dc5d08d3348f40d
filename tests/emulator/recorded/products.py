"""CUTLASS products of a cache's records: the kernel by its recorded name, and a call with the recorded sizes and strides."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from inductor_plugin.ops.gemm_call import CALLS
from inductor_plugin.problem import Problem
from inductor_plugin.problem.layout import judge_problem, laid
from inductor_plugin.problem.product import ROLES
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate, CudaSource, Json
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from tests.emulator.kernels import gemm
from tests.emulator.machine.schedule import Schedule
from tests.emulator.recorded.call import Call, on
from tests.emulator.recorded.operand import ends_of, tensor
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import Verdict

PREFIX = f"{CutlassGemm.name}::"
"""How the names of its candidates begin in records."""


@dataclass(frozen=True)
class Product:
    """A recorded candidate.

    Attributes:
        problem: Its problem; where it copies operands, with the copies in their place.
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


def recorded(problem: Problem, name: str, target: Target) -> Product | str:
    """Return a candidate by its name in a record, or why it cannot be run.

    Args:
        problem: The record's problem, without an epilogue.
        name: The candidate's name.
        target: The GPU.
    """
    known = on(problem, target)
    for offered, candidate, read in _offered(known):
        if offered == name.removeprefix(PREFIX):
            return Product(read, candidate, _config(candidate.config))
    reason = CutlassGemm().reject(known)
    return reason or (
        f"{name} is not offered on {target.name} by this version: name another candidate, or the GPU of the record"
    )


def _offered(problem: Problem) -> Iterator[tuple[str, Candidate, Problem]]:
    """Yield all candidates with their names in records, and the problem as their kernels see it, after copies."""
    template = CutlassGemm()
    for candidate in template.candidates(problem):
        yield candidate.name, candidate, problem
    verdict = judge_problem(template.contract(problem.op), problem, preferred=True)
    if verdict.kind == "copy":
        copied = laid(problem, verdict)
        suffix = "_".join(map(str, verdict.copies))  # as `inductor.candidates.layouts` names them
        for candidate in template.candidates(copied):
            yield f"{candidate.name}_copied_{suffix}", candidate, copied


def _config(shown: Mapping[str, Json]) -> GemmConfig:
    """Return the kernel that a candidate's configuration describes."""
    values: dict[str, Any] = {field.name: shown.get(field.name) for field in fields(GemmConfig)}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(cast("list[int]", value))
    return GemmConfig(**values)


def call_of(problem: Problem, name: str, target: Target) -> Call | str:
    """Return the call of a candidate, or why it cannot be run; as `recorded`."""
    product = recorded(problem, name, target)
    if isinstance(product, str):
        return product
    copies = "" if product.problem.inputs == problem.inputs else "operands are copied before"
    return Call(product.config.name, product.problem, functools.partial(_verdict, product), copies)


def _verdict(product: Product, runtime: Runtime, schedule: Schedule) -> Verdict:
    outcome = run(runtime, product, schedule)
    return Verdict(outcome.share, outcome.changed, outcome.launches)


def run(runtime: Runtime, product: Product, schedule: Schedule) -> gemm.Outcome:
    """Call a recorded kernel on random operands, and compare with float64; errors as `gemm.run`."""
    problem, source = product.problem, product.source
    inputs = dict(zip(ROLES[problem.op], problem.inputs, strict=False))
    groups = inputs["b"].size[0] if product.config.grouped else 0
    ends = ends_of(inputs["a"].size[0], groups)
    operands = {role: tensor(role, operand, ends) for role, operand in inputs.items()}
    out = tensor("", problem.output)
    scales = (operands["scale_a"], operands["scale_b"]) if "scale_a" in operands else None
    tensors = gemm.Operands(
        operands["a"], operands["b"], out, operands.get("c"), scales, operands.get("offsets")
    )
    arguments = source.arguments
    factors = arguments[-2:] if "addmm" in source.op and scales is None else (1.0, 1.0)
    case = gemm.Case(
        product.config,
        *(problem.output.size[-2], problem.output.size[-1], inputs["a"].size[-1]),
        alpha=float(factors[0]),
        beta=float(factors[1]),
        split=int(arguments[3]),
        ends=ends,
    )
    planned = CALLS[source.op.partition("::")[2].partition(".")[0]]
    views = [each.view for each in operands.values()]
    start = planned(*views, *arguments, out=out.view, sm_count=product.target.multiprocessors)
    return gemm.compared(runtime, case, tensors, start, product.target, schedule)
