"""A template's candidate as an Inductor choice, called as a torch operator with ``out=``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir

from inductor_plugin.jobs import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate


class TemplateChoice(ir.ChoiceCaller):
    """One candidate of a registered template.

    Emitted as `ir.ExternKernelOut` with an operator overload: the wrapper calls
    ``torch.ops.ns.name.out(a, b, ..., out=buf)``, and the output's memory is planned by Inductor.
    """

    def __init__(self, candidate: Candidate, nodes: Sequence[Any], layout: ir.Layout) -> None:
        """Offer ``candidate`` for a call."""
        super().__init__(
            f"{candidate.template}::{candidate.name}", list(nodes), layout, candidate.description
        )
        self.candidate = candidate
        self.kernel: OpKernel = candidate.kernel
        # Schedulers of torch 2.11-2.15 look for a benchmark request on every choice.
        self.bmreq = None

    def hash_key(self) -> str:
        """Return what identifies the candidate on disk."""
        config = json.dumps(dict(self.candidate.config), sort_keys=True)
        kernel = self.kernel
        return (
            f"{self.candidate.template}-{self.candidate.name}-{kernel.op}-{kernel.args!r}-{config}"
        )

    def call_name(self) -> str:
        """Return the callee's name in generated code."""
        return f"torch.ops.{self.kernel.op.replace('::', '.')}"

    def to_callable(self) -> Any:
        """Return the operator."""
        return resolve(self.kernel)

    def output_node(self) -> ir.TensorBox:
        """Return the node that calls it."""
        box: Any = ir.TensorBox  # untyped
        return box.create(
            ir.ExternKernelOut(
                layout=self.layout,
                inputs=self.input_nodes,
                constant_args=tuple(self.kernel.args),
                python_kernel_name=self.call_name(),
                op_overload=resolve(self.kernel),
            )
        )

    def benchmark(self, *args: torch.Tensor, out: torch.Tensor) -> float:
        """Measure in this process; stock Inductor asks for it where the plugin steps aside."""
        from torch._inductor.runtime.benchmarking import benchmarker  # noqa: PLC0415  2.11 path

        function = resolve(self.kernel)
        return benchmarker.benchmark(
            lambda: function(*args, *self.kernel.args, out=out), (), {}, device=out.device
        )

    def info_dict(self) -> dict[str, Any]:
        """Return what Inductor's own log shows."""
        return {"backend": self.candidate.template, **dict(self.candidate.config)}

    def autoheuristic_id(self) -> str:
        """Return the name AutoHeuristic learns under."""
        return self.name


def resolve(kernel: OpKernel) -> Any:
    """Return the operator overload of a kernel.

    Raises:
        AttributeError: No module that was imported defines it.
    """
    for name in kernel.imports:
        importlib.import_module(name)
    namespace, _, rest = kernel.op.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, overload or "default")


def template_choices(
    registry: Registry, problem: Problem, nodes: Sequence[Any], layout: ir.Layout
) -> tuple[list[TemplateChoice], dict[str, str]]:
    """Return the choices of all registered templates for a call, and who refused it and why."""
    choices: list[TemplateChoice] = []
    rejected: dict[str, str] = {}
    for template in registry.for_op(problem.op):
        reason = template.reject(problem)
        if reason is not None:
            rejected[template.name] = reason
            continue
        choices += [TemplateChoice(one, nodes, layout) for one in template.candidates(problem)]
    return choices, rejected
