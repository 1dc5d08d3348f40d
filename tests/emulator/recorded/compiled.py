"""Triton products of a cache's records: templates of the project and of Inductor, with the code Inductor generates around them.

The recorded call is lowered again for the GPU, which need not be there, and the recorded candidate wins. It is known by its identity, a digest
of its source; where the source is another one (another version of torch, another GPU), by its name and configuration.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional

from inductor_plugin.cache import Measured
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.product import ROLES, SUM_OF_PRODUCTS, reduction_length
from inductor_plugin.problem.target import Target
from inductor_plugin.problem.tolerance import product_tolerance
from inductor_plugin.repro.call import NotReproducible, code
from inductor_plugin.repro.call import call_of as text_of
from inductor_plugin.repro.operand import operands as operand_texts
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.worker.jobs import BenchCandidate
from tests.emulator.kernels import triton
from tests.emulator.kernels.accuracy import share
from tests.emulator.machine.schedule import Schedule
from tests.emulator.recorded.call import Call, on
from tests.emulator.recorded.lowering import OTHER_SOURCE, like, lowering, missing
from tests.emulator.recorded.operand import elements, ends_of, tensor
from tests.emulator.recorded.reference import exact
from tests.emulator.suite.row import Verdict
from tests.support.lowering import Arg, Lab

_MORE = {
    "grouped_mm": "torch._grouped_mm(a, b, offs=offsets, out_dtype={out_dtype})",
    "weight_int4pack_mm": "torch.ops.aten._weight_int4pack_mm(a, b, {group}, scales)",
}
"""Calls of operators that scripts of `repro` do not have."""


@dataclass(frozen=True)
class Product:
    """A recorded candidate.

    Attributes:
        problem: Its problem, with the GPU.
        code: The module that Inductor generates with it.
        alike: Whether its source is the recorded one; else its configuration is.
    """

    problem: Problem
    code: str
    alike: bool


def call_of(problem: Problem, row: Measured, target: Target, precision: str = "") -> Call | str:
    """Return the call of a candidate, or why it cannot be run.

    Args:
        problem: The record's problem, without an epilogue.
        row: The candidate.
        target: The GPU.
        precision: Torch's precision of products of float32 as it was recorded; empty for torch's own.
    """
    product = lowered(on(problem, target), row, precision)
    if isinstance(product, str):
        return product
    note = "" if product.alike else OTHER_SOURCE
    name = f"{row.name} {row.description}"
    return Call(name, product.problem, lambda _, schedule: run(product, schedule), note)


def lowered(problem: Problem, row: Measured, precision: str = "") -> Product | str:
    """Lower the call of a problem so that a recorded candidate wins, or return why that is not possible."""
    function = _function(problem)
    if isinstance(function, str):
        return function
    assert problem.target is not None

    def recorded() -> TaskCandidate | None:
        return like((entry for task in lab.products for entry in task.entries), row)

    def milliseconds(candidate: BenchCandidate) -> float:
        wanted = recorded()
        return 0.1 if wanted is not None and wanted.candidate_id == candidate.candidate_id else 1.0

    with lowering(problem.target, precision), tempfile.TemporaryDirectory() as folder:
        lab = Lab(milliseconds, Path(folder))
        with lab.open():
            try:
                module = lab.lower(function, *map(_argument, problem.inputs))
            except (
                RuntimeError,
                TypeError,
            ) as error:  # of operands, or a type that the GPU has not
                said = str(error).strip().splitlines() or [type(error).__name__]
                return f"torch or Triton refuses the call on {problem.target.name}: {said[-1]}"
        winner = recorded()
        refused = "" if winner is not None else _refused(row, lab)
    if winner is None:
        return missing(row, problem.target, refused)
    calls = module.split("async_compile.wait", 1)[-1]
    if ".run(" not in calls or "extern_kernels." in calls:
        return f"Inductor generates other code than {row.name} alone for the call: {row.candidate} is not in it"
    return Product(problem, module, winner.candidate_id == row.candidate)


def _refused(row: Measured, lab: Lab) -> str:
    """Return why a candidate is not offered: as its template says, or what is offered."""
    if not lab.products:
        return "Inductor offers no kernels for the call"
    rejected: dict[str, str] = lab.record()["rejected"]
    entries = [entry for task in lab.products for entry in task.entries]
    offered = sorted({entry.name for entry in entries if entry.kind == "triton"})
    return rejected.get(row.name, f"of Triton's kernels it offers {', '.join(offered) or 'none'}")


def _names(problem: Problem) -> tuple[str, ...]:
    """Return what each operand is for."""
    roles = ("a", "b", "c", "d") if problem.op == SUM_OF_PRODUCTS else ROLES[problem.op]
    return roles[: len(problem.inputs)]


def _function(problem: Problem) -> Callable[..., Any] | str:
    """Return the call as a user writes it, over what `_argument` makes of the operands; or why it cannot be written."""
    if problem.op not in ROLES and problem.op != SUM_OF_PRODUCTS:
        return f"of operators besides products only attention runs, and this is {problem.op}"
    dims = [len(operand.size) for operand in problem.inputs]
    if problem.op == "grouped_mm" and dims != [2, 3, 1]:
        return f"of grouped products only those run whose groups divide the rows of A; the operands have {dims} dimensions"
    fields, names = problem.fields(), _names(problem)
    try:
        if problem.op in _MORE:
            words = {"out_dtype": f"torch.{problem.output.dtype}", **dict(problem.arguments)}
            body = _MORE[problem.op].format_map({name: code(word) for name, word in words.items()})
        else:
            text = text_of(fields, operand_texts(fields, problem.describe()))
            names, body = text.names, text.body
    except (NotReproducible, KeyError, ValueError, SyntaxError) as error:
        return f"its call cannot be written: {error}"
    scope = {"torch": torch, "F": torch.nn.functional}
    # Of what a record says, only sizes and numbers become code (`repro.call.code`).
    called = eval(f"lambda {', '.join(names)}: {body}", scope)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor]:
        pairs = zip(names, problem.inputs, values, strict=True)
        return (called(*(_inside(name, operand, value) for name, operand, value in pairs)),)

    return function


def _outside(operand: Operand) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes and strides of a graph's argument: a storage where there is an offset, and no dimension twice."""
    if operand.offset:
        return (elements(operand),), (1,)
    dims = [*zip(operand.size, operand.stride, strict=True)]
    while dims and dims[0][1] == 0 and dims[0][0] != 1:
        del dims[0]
    return tuple(1 if step == 0 else n for n, step in dims), tuple(step for _, step in dims)


def _inside(name: str, operand: Operand, value: torch.Tensor) -> torch.Tensor:
    """Return an operand from a graph's argument; a bias is broadcast by the call itself."""
    if operand.offset:
        return torch.as_strided(value, operand.size, operand.stride, operand.offset)
    is_bias = name in ("bias", "c")
    return value.expand(operand.size) if 0 in operand.stride and not is_bias else value


def _argument(operand: Operand) -> Arg:
    size, stride = _outside(operand)
    return Arg(size, getattr(torch, operand.dtype), stride)


def run(product: Product, schedule: Schedule) -> Verdict:
    """Call a recorded kernel on random operands, and compare with float64.

    Raises:
        FaultError: The kernel touched other memory than its operands, or worse.
    """
    problem = product.problem
    assert problem.target is not None
    inputs = dict(zip(_names(problem), problem.inputs, strict=True))
    groups = inputs["offsets"].size[0] if "offsets" in inputs else 0
    ends = ends_of(problem.inputs[0].size[0], groups)
    operands = {role: tensor(role, operand, ends).tensor for role, operand in inputs.items()}
    arguments = [_passed(inputs[role], operand) for role, operand in operands.items()]
    computed = triton.outputs([(product.code, arguments)], problem.target, schedule)
    ((output, *_),) = computed.results
    wanted = exact(problem, operands, ends)
    dtypes = problem.output.dtype, problem.inputs[0].dtype
    accepted = product_tolerance(*dtypes, reduction_length(problem.op, problem.inputs), tf32=True)
    return Verdict(share(output, wanted, accepted), computed.changed, computed.launches)


def _passed(operand: Operand, value: torch.Tensor) -> torch.Tensor:
    size, stride = _outside(operand)
    offset = value.storage_offset() - operand.offset
    return value.as_strided(size, stride, offset)
