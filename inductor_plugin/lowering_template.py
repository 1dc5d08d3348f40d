"""A template's candidate as an Inductor choice: a torch operator with ``out=``, or a Triton text."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.jobs import OpKernel
from inductor_plugin.lowering_cuda import build_of
from inductor_plugin.lowering_triton import triton_choice
from inductor_plugin.problem import Problem
from inductor_plugin.registry import Registry
from inductor_plugin.task import CppBuild
from inductor_plugin.template import Candidate, CudaSource, Failed, Template, TritonSource


class TemplateChoice(ir.ChoiceCaller):
    """One candidate of a registered template.

    Emitted as `ir.ExternKernelOut` with an operator overload: the wrapper calls
    ``torch.ops.ns.name.out(a, b, ..., out=buf)``, and the output's memory is planned by Inductor.
    """

    def __init__(
        self,
        candidate: Candidate,
        nodes: Sequence[Any],
        layout: ir.Layout,
        build: CppBuild | None = None,
    ) -> None:
        """Offer ``candidate`` for a call; ``build`` says how its library is made, if it has one."""
        super().__init__(
            f"{candidate.template}::{candidate.name}", list(nodes), layout, candidate.description
        )
        assert isinstance(candidate.kernel, OpKernel)
        self.candidate = candidate
        self.build = build
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
            _OperatorCall(
                self.kernel.imports,
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


class _OperatorCall(ir.ExternKernelOut):
    """A call whose generated code imports what defines the operator.

    A compiled graph out of Inductor's cache is run by a process that has lowered nothing.
    """

    def __init__(self, imports: Sequence[str], **node: Any) -> None:
        made: Any = super()
        made.__init__(**node)
        self._imports = tuple(imports)

    def codegen(self, wrapper: Any) -> None:
        """Write the call."""
        if not V.graph.cpp_wrapper:
            for name in self._imports:
                wrapper.add_import_once(f"import {name}")
        written: Any = super()
        written.codegen(wrapper)


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
    registry: Registry, problem: Problem, nodes: Sequence[Any], layout: ir.Layout, config: Config
) -> tuple[list[Any], dict[str, str]]:
    """Return the choices of all registered templates for a call, and who refused it and why."""
    choices: list[Any] = []
    rejected: dict[str, str] = {}
    for template in registry.for_op(problem.op):
        reason = _unwanted(template, config) or template.reject(problem)
        if reason is not None:
            rejected[template.name] = reason
            continue
        made = [_choice(one, nodes, layout, config.nvcc) for one in template.candidates(problem)]
        fit = [one for one in made if not isinstance(one, Failed)]
        choices += fit
        if made and not fit:
            rejected[template.name] = next(one.reason for one in made if isinstance(one, Failed))
    return choices, rejected


def _unwanted(template: Template, config: Config) -> str | None:
    """Return why the user does not want a template, None where nothing is said."""
    backend = getattr(template, "backend", None)
    wanted = config.gemm_backends.split(",")
    if backend is None or not config.gemm_backends or backend in wanted:
        return None
    return f"gemm_backends is {config.gemm_backends}, without {backend}"


def _choice(
    candidate: Candidate, nodes: Sequence[Any], layout: ir.Layout, nvcc: str
) -> Any | Failed:
    if isinstance(candidate.kernel, TritonSource):
        return triton_choice(candidate.kernel, nodes, layout)
    if not isinstance(candidate.kernel, CudaSource):
        return TemplateChoice(candidate, nodes, layout)
    built = build_of(candidate.kernel, candidate.template, nvcc)
    if isinstance(built, Failed):
        return built
    build, kernel = built
    return TemplateChoice(replace(candidate, kernel=kernel), nodes, layout, build)
