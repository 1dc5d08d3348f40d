"""A template's candidate as an Inductor choice: a torch operator with ``out=``, or a Triton text."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.config.backends import backends_of, why_not_listed
from inductor_plugin.inductor import packaged
from inductor_plugin.inductor.candidates.benchmark import measured_with_delta
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.candidates.cuda import build_of, warn_without_cutlass
from inductor_plugin.inductor.candidates.layouts import offered
from inductor_plugin.inductor.candidates.triton import triton_choice
from inductor_plugin.inductor.facts.problem import device_text, layout_operand
from inductor_plugin.inductor.native import declare_site, prepare
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import operators
from inductor_plugin.ops.sites import has_site
from inductor_plugin.problem.attention import BACKWARD, DIRECTIONS
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate, CudaSource, Failed, Template, TritonSource
from inductor_plugin.tuning.task import CppBuild
from inductor_plugin.worker.devices.lookup import is_nvidia, name_of, why_not_offered

OFFERED_BY = "offered_by"
"""Attribute of a choice: the template that offers it."""


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
        """Offer ``candidate`` for a call; ``build`` is the build of its library, if it has one."""
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
        """Return the identity of the candidate on disk."""
        return operator_key(self.candidate, self.kernel)

    def call_name(self) -> str:
        """Return the callee's name in generated code."""
        return f"torch.ops.{self.kernel.op.replace('::', '.')}"

    def to_callable(self) -> Any:
        """Return the operator."""
        return resolve(self.kernel)

    def output_node(self) -> ir.TensorBox:
        """Return the node that calls the operator."""
        box: Any = ir.TensorBox  # untyped
        return box.create(
            _TemplateOperator(
                self.kernel,
                layout=self.layout,
                inputs=self.input_nodes,
                constant_args=tuple(self.kernel.args),
                python_kernel_name=self.call_name(),
                op_overload=resolve(self.kernel),
            )
        )

    def benchmark(self, *args: torch.Tensor, out: torch.Tensor) -> float:
        """Measure in this process; stock Inductor calls it where the plugin steps aside."""
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


class _TemplateOperator(ir.ExternKernelOut):
    """A call whose generated code imports the modules that define the operator, or calls its site (`ops.sites`).

    A compiled graph from Inductor's cache may run in a process that has not lowered anything.

    Operands that the operator's schema marks as mutated are mutated in the graph, too, so that later
    reads are ordered after the call. An unused output still needs memory, because the call writes it.

    If a module that defines the operator has a function ``workspace_needed(kernel, operands, output,
    device)``, which returns bytes, the generated code allocates them and passes them as
    ``workspace=``, so that Inductor plans them with all other memory.
    """

    def __init__(self, kernel: OpKernel, **node: Any) -> None:
        untyped: Any = super()
        untyped.__init__(**node)
        written = zip(self.op_overload._schema.arguments, self.inputs, strict=False)
        self.mutation_outputs = [
            ir.MutationOutput(ir.NoneLayout(device=self.get_device()), operand, self)
            for argument, operand in written
            if argument.is_write
        ]
        self._kernel = kernel
        self._workspace = ""

    def codegen(self, wrapper: Any) -> None:
        """Write the call."""
        # The scheduler does not allocate unused buffers, e.g. when only the gradients of q and v are used.
        unread = self.get_name() in V.graph.removed_buffers
        if unread:
            wrapper.writeline(wrapper.make_buffer_allocation(self))
        self._write(wrapper)
        if unread:
            wrapper.writeline(wrapper.make_buffer_free(self))

    def _write(self, wrapper: Any) -> None:
        if packaged.wanted():
            operands = [wrapper.val_to_arg_str(node) for node in self.inputs]
            packaged.write_call(wrapper, self.get_name(), self._kernel, operands, self)
            return
        if V.graph.cpp_wrapper:
            instead = functools.partial(self._write_cpp, wrapper)
            if has_site(self._kernel.op):
                operands = [wrapper.val_to_arg_str(node) for node in self.inputs]
                packaged.write_call_or(
                    wrapper, self.get_name(), self._kernel, operands, self, instead
                )
            else:
                instead()
            return
        if has_site(self._kernel.op):
            self.python_kernel_name = declare_site(wrapper, self.get_name(), self._kernel)
        else:
            for name in self._kernel.imports:
                wrapper.add_import_once(f"import {name}")
        written: Any = super()
        self._workspace = ""
        needed = self._workspace_bytes()
        if not needed:
            written.codegen(wrapper)
            return
        memory = WorkspaceArg(
            count=needed,  # pyright: ignore[reportArgumentType] - torch 2.11 takes no expression
            zero_mode=WorkspaceZeroMode.UNINITIALIZED,
            device=self.get_device(),  # pyright: ignore[reportArgumentType] - it has one
            outer_name=WorkspaceArg.unique_name(),
        )
        self._workspace = memory.get_name()
        wrapper.generate_workspace_allocation(memory)
        written.codegen(wrapper)
        wrapper.generate_workspace_deallocation(memory)

    def codegen_args(self) -> list[str]:
        """Return the positional arguments of the call as they are written: a site knows those that never change."""
        written: Any = super()
        arguments: list[str] = written.codegen_args()
        if V.graph.cpp_wrapper or not has_site(self._kernel.op):
            return arguments
        return [*arguments[: len(self.inputs)], self._workspace or "None"]

    def codegen_kwargs(self, skip_out: bool = False) -> list[str]:  # noqa: FBT001, FBT002 - Inductor's
        """Return the keyword arguments of the call as they are written."""
        written: Any = super()
        takes_name = self._workspace and not has_site(self._kernel.op)
        named = [f"workspace={self._workspace}"] if takes_name else []
        return [*written.codegen_kwargs(skip_out), *named]

    def _workspace_bytes(self) -> int:
        """Return the bytes of scratch memory the call needs, 0 if known only at run time."""
        modules = [importlib.import_module(name) for name in self._kernel.imports]
        functions = (getattr(module, "workspace_needed", None) for module in modules)
        workspace_needed = next(filter(None, functions), None)
        nodes: list[Any] = [*self.inputs]
        if workspace_needed is None or not all(_is_static(node) for node in (*nodes, self)):
            return 0
        output = layout_operand(self.get_layout())
        return workspace_needed(
            self._kernel,
            [layout_operand(node.get_layout()) for node in nodes],
            output,
            self.get_device(),
        )

    def _write_cpp(self, wrapper: Any) -> None:
        """Write the call into a C++ wrapper, which has no C function for the operator and calls Python.

        Inductor does this for operators written in Python, but not for their ``out=`` variants. The
        handle of what some of them return would keep the output's memory alive until the graph ends.
        """
        name, returns = self.get_name(), bool(self.op_overload._schema.returns)
        returned = f"{name}_returned"
        arguments: list[Any] = [*self.inputs, *self.constant_args]
        remaining = self.op_overload._schema.arguments[len(arguments) :]
        arguments += [self if arg.name == "out" else arg.default_value for arg in remaining]
        wrapper.load_custom_op_wrapper()
        imports = "".join(
            _import_in_cpp(index, module) for index, module in enumerate(self._kernel.imports)
        )
        wrapper.writelines(wrapper.generate_scoped_gil_acquire([], imports))
        wrapper.generate_fallback_kernel_with_runtime_lookup_python(
            name,
            f"torch.ops.{self.op_overload}",
            self.op_overload,
            arguments,
            [returned] if returns else [],
            [],
        )
        if returns:
            wrapper.writeline(f"{returned}.reset();")


def _is_static(node: Any) -> bool:
    """Return whether all of a node's extents and strides are numbers."""
    layout = node.get_layout()
    return all(
        isinstance(extent, int) or getattr(extent, "is_number", False)
        for extent in (*layout.size, *layout.stride)
    )


def _import_in_cpp(index: int, module: str) -> str:
    return (
        f'RAIIPyObject imported_{index}(PyImport_ImportModule("{module}"));\n'
        f'if (!imported_{index}) {{\n    throw std::runtime_error("cannot import {module}");\n}}\n'
    )


def resolve(kernel: OpKernel) -> Any:
    """Return the operator overload of a kernel.

    Raises:
        AttributeError: None of the imported modules defines it.
    """
    return operators.resolve(kernel.op, kernel.imports)


def operator_key(candidate: Candidate, kernel: OpKernel) -> str:
    """Return the identity of a candidate that is an operator, on disk."""
    config = json.dumps(dict(candidate.config), sort_keys=True)
    version = f"-{candidate.version}" if candidate.version else ""
    return f"{candidate.template}-{candidate.name}-{kernel.op}-{kernel.args!r}-{config}{version}"


def template_choices(
    call: AutotuneCall, registry: Registry, config: Config
) -> tuple[list[Any], dict[str, str]]:
    """Return the choices of all registered templates for a call, and the reasons of those that refused it."""
    choices: list[Any] = []
    rejected: dict[str, str] = {}
    problem = call.problem
    for template in registry.for_op(problem.op):
        reason = why_not_wanted(template, problem.op, config) or why_not_offered(
            problem, template.name
        )
        if reason:
            rejected[template.name] = reason
            continue
        candidates, refused = offered(template, problem)
        rejected |= refused
        results = [_choice(candidate, call, config) for candidate in candidates]
        fit = [result for result in results if not isinstance(result, Failed)]
        failed = [result for result in results if isinstance(result, Failed)]
        if problem.op == BACKWARD:
            fit = [measured_with_delta(choice, call) for choice in fit]
        for choice in fit:
            setattr(choice, OFFERED_BY, template.name)
        choices += fit
        if not failed:
            continue
        rejected[template.name] = failed[0].reason
        if fit:
            count = f"{len(failed)} of its {len(results)} kernels are left out"
            rejected[template.name] = f"{count}: {failed[0].reason}"
        if getattr(template, "backend", None) == "CUTLASS":
            warn_without_cutlass(config, some=bool(fit))
    return choices, rejected


def why_not_wanted(template: Template, op: str, config: Config) -> str | None:
    """Return the option that excludes a template, None if there is none."""
    backend: str | None = getattr(template, "backend", None)
    if backend is None:
        return None
    option = "attention_backends" if op in DIRECTIONS else "gemm_backends"
    return why_not_listed(option, backends_of(getattr(config, option)), backend)


def _choice(candidate: Candidate, call: AutotuneCall, config: Config) -> Any | Failed:
    if isinstance(candidate.kernel, TritonSource):
        return triton_choice(candidate.kernel, call.nodes, call.layout)
    if V.graph.aot_mode and (why := packaged.why_not_callable(candidate.kernel.op)):
        return Failed(why)
    if not isinstance(candidate.kernel, CudaSource):
        return TemplateChoice(candidate, call.nodes, call.layout)
    return _cuda_choice(candidate, candidate.kernel, call, config)


def _cuda_choice(
    candidate: Candidate, source: CudaSource, call: AutotuneCall, config: Config
) -> Any | Failed:
    if not source.deterministic and torch.are_deterministic_algorithms_enabled():
        return Failed("it adds up in no fixed order, and torch.use_deterministic_algorithms is on")
    device = device_text(call.layout.device)
    if not is_nvidia(device):
        return Failed(f"nvcc compiles it, which is not for {name_of(device)}")
    result = build_of(source, candidate.template, config)
    if isinstance(result, Failed):
        return result
    build, kernel = result
    prepare(config)
    return TemplateChoice(replace(candidate, kernel=kernel), call.nodes, call.layout, build)
