"""One call of Inductor's selection: the facts that all of its candidates share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import ir

from inductor_plugin.inductor.facts.operands import Operands
from inductor_plugin.inductor.facts.problem import problem_of
from inductor_plugin.inductor.facts.toolchain import CppToolchain
from inductor_plugin.problem import Problem
from inductor_plugin.problem.number_check import bias_of
from inductor_plugin.tuning.operand_files import OperandFiles


@dataclass(frozen=True, eq=False)
class AutotuneCall:
    """One call of Inductor's selection.

    Attributes:
        op: Inductor's name of the operator.
        nodes: Inputs of the call.
        layout: Layout of the output.
        input_gen_fns: Inductor's generators of inputs whose values matter.
        arguments: Scalar arguments that change the computation.
        timeout_s: Seconds one candidate may be measured.
        compile_timeout_s: Seconds one candidate may be compiled.
        files: Where operands with values are written.
        toolchain: How C++ is compiled here; the same for all calls of a graph.
    """

    op: str
    nodes: Sequence[Any]
    layout: ir.Layout
    input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]]
    arguments: tuple[tuple[str, str], ...]
    timeout_s: float
    compile_timeout_s: float
    files: OperandFiles
    toolchain: Callable[[], CppToolchain]

    @functools.cached_property
    def problem(self) -> Problem:
        """The facts of the call."""
        return problem_of(self.op, self.nodes, self.layout, self.arguments)

    @functools.cached_property
    def operands(self) -> Operands:
        """The inputs and the output as operands for the benchmark worker."""
        bias = bias_of(self.problem)
        return Operands(self.nodes, self.layout, self.input_gen_fns, self.files, bias)

    @property
    def names(self) -> list[str]:
        """Names of the inputs; one that is given twice is there twice."""
        return [node.get_name() for node in self.nodes]

    @property
    def seeds(self) -> dict[str, int]:
        """Seed of each input by name."""
        return self.operands.seeds

    def at_other_sizes(self) -> AutotuneCall:
        """Return the call as it is inside `compat.at_sizes`, with the same seeds of operands."""
        call = replace(self)
        call.operands.seeds = self.seeds
        return call

    def read_again(self) -> AutotuneCall:
        """Return the call with its inputs' current layouts; no input is generated."""
        return replace(self, input_gen_fns={})
