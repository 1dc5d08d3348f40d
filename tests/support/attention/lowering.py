"""Generates Inductor's code for candidates of an attention template, without a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _triton

from inductor_plugin.inductor.candidates import triton
from inductor_plugin.inductor.candidates.triton import triton_choice
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.template import Candidate, Failed, TritonSource
from tests.support import gpu
from tests.support.attention.forward_cases import (
    Trial,
    candidate_of,
    error_of,
    expected_of,
    operands_of,
    problem_of,
)
from tests.support.triton import interpreter


@contextmanager
def graph() -> Generator[None, None, None]:
    """Set an empty graph as the one that is lowered."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    empty = torch.fx.Graph()
    empty.output(())
    module = torch.fx.GraphModule(torch.nn.Module(), empty)
    with (
        V.set_graph_handler(GraphLowering(module, shape_env=mode.shape_env)),
        V.set_fake_mode(mode),
        inductor_config.patch({"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}),
    ):
        yield


def source_of(problem: Problem, candidate: Candidate) -> str:
    """Return the module Inductor generates for a candidate; call it within `graph`."""
    kernel = candidate.kernel
    assert isinstance(kernel, TritonSource)
    nodes = [_node(f"arg{i}_1", operand) for i, operand in enumerate(problem.inputs)]
    choice = triton_choice(kernel, nodes, _layout(problem.output))
    assert not isinstance(choice, Failed), choice.reason
    return Path(choice.bmreq.module_path).read_text(encoding="utf-8")


def module_of(problem: Problem, candidate: Candidate) -> str:
    """Return a module whose ``call`` takes the operands and returns the output, and what it wrote.

    It looks as Inductor's wrapper does to `tests.support.triton.interpreter`.
    """
    kernel = candidate.kernel
    assert isinstance(kernel, TritonSource)
    names = [f"arg{i}_1" for i in range(len(problem.inputs))]
    scratch = ["ws"] if kernel.scratch_bytes else []
    written = ["out", *(names[i] for i in kernel.mutated)]
    lines = [
        "import torch",
        "from torch._inductor.async_compile import AsyncCompile",
        "async_compile = AsyncCompile()",
        f"kernel = async_compile.triton('kernel', {source_of(problem, candidate)!r})",
        "async_compile.wait(globals())",
        "empty_strided_cuda = None",
        "def call(args):",
        f"    {', '.join(names)} = args",
        f"    out = empty_strided_cuda({problem.output.size}, {problem.output.stride},"
        f" torch.{problem.output.dtype})",
        f"    ws = torch.zeros({kernel.scratch_bytes}, dtype=torch.uint8)" if scratch else "",
        f"    kernel.run({', '.join([*names, 'out', *scratch])}, {grid_of(problem, candidate)}, 1, 1,"
        " stream=0)",
        f"    return ({', '.join(written)},)",
    ]
    return "\n".join(lines)


def grid_of(problem: Problem, candidate: Candidate) -> int:
    """Return how many programs a candidate starts."""
    kernel = candidate.kernel
    assert isinstance(kernel, TritonSource)
    sizes = [problem.inputs[operand].size[dim] for operand, dim in kernel.extents]
    return triton._GRIDS[kernel.grid](*sizes, dict(kernel.constants))[0]


def _node(name: str, operand: Operand) -> Any:
    node: Any = ir.TensorBox.create(ir.InputBuffer(name=name, layout=_layout(operand)))
    V.graph.graph_inputs[name] = node
    return node


def _layout(operand: Operand) -> Any:
    untyped: Any = ir.FixedLayout
    return untyped(
        torch.device("cuda", 0),
        getattr(torch, operand.dtype),
        list(operand.size),
        list(operand.stride),
        operand.offset,
    )


def computed(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    """Run the kernels of trials in the interpreter, and return the errors of out and of lse."""
    by_trial = [operands_of(trial) for trial in trials]
    has_tma = mock.patch.object(_triton, "has_triton_tma_device", return_value=True)
    with gpu.installed(), has_tma, graph():
        pairs = zip(trials, by_trial, strict=True)
        modules = [_module_of_trial(trial, operands) for trial, operands in pairs]
    tensors = [list(operands.values()) for operands in by_trial]
    outputs = interpreter.outputs(list(zip(modules, tensors, strict=True)))
    return [
        _errors(trial, operands, results)
        for trial, operands, results in zip(trials, by_trial, outputs, strict=True)
    ]


def _module_of_trial(trial: Trial, operands: dict[str, torch.Tensor]) -> str:
    problem = problem_of(trial.case, operands)
    return module_of(problem, candidate_of(trial, problem))


def _errors(
    trial: Trial, operands: dict[str, torch.Tensor], results: Sequence[torch.Tensor]
) -> tuple[float, float]:
    """Return the errors of rows that belong to a sequence; others are not written."""
    out, lse = expected_of(trial, operands)
    count = sum(trial.case.queries) if isinstance(trial.case.queries, tuple) else None
    rows = slice(count) if trial.case.varlen else slice(None)
    wrong = error_of(results[0][rows], out[rows])
    if not trial.lse:
        return wrong, 0.0
    return wrong, error_of(results[1][..., rows], lse[..., rows])
