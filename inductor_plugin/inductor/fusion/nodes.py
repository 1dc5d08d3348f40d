"""Kernels that Inductor would generate for scheduler nodes, as jobs: source, arguments, operands.

Inductor generates a module to benchmark a fusion (`Scheduler.generate_kernel_code_from_nodes`), but
does not return which of its arguments is which buffer. `kernel_arguments` records it meanwhile,
so that a product, its epilogue and both in one kernel are measured on the same tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from inductor_plugin.inductor.facts import toolchain
from inductor_plugin.inductor.facts.operands import base_operand
from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.inductor.fusion import kernel_arguments
from inductor_plugin.inductor.fusion.epilogue import base_of, epilogue_of_bodies
from inductor_plugin.kernels.call import ModuleKernel, TensorSpec, Zeros
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.worker.jobs import TritonCompileJob

KERNEL = "triton_"
"""Inductor's name of the kernel in such a module."""

_SETTINGS: Any = inductor_config  # untyped


@dataclass(frozen=True)
class Generated:
    """A kernel that Inductor generated.

    Attributes:
        source: Its module.
        arguments: Names of buffers, numbers and scratch memory, in the kernel's order.
    """

    source: str
    arguments: tuple[str | int | Zeros, ...]

    @property
    def digest(self) -> str:
        """Hash of the source without the index of the device."""
        return hashlib.sha256(self.identity.encode()).hexdigest()

    @property
    def identity(self) -> str:
        """The source without the index of the device."""
        return toolchain.without_device_index(self.source)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers among its arguments."""
        return tuple(argument for argument in self.arguments if isinstance(argument, str))


def generated(scheduler: Any, nodes: Sequence[Any]) -> Generated:
    """Return the kernel that Inductor would generate for some nodes.

    Args:
        scheduler: Inductor's scheduler.
        nodes: Nodes in the order they run. The choice of a template among them is set.

    Raises:
        Exception: Inductor cannot generate a kernel (`CantSplit` among others).
    """
    # An inplace buffer would be one pointer for two buffers.
    with kernel_arguments.recorded() as arguments, _SETTINGS.patch(inplace_buffers=False):
        source = scheduler.generate_kernel_code_from_nodes(nodes, benchmark_kernel=True)
    return Generated(source, tuple(arguments))


def operand_of(name: str, seeds: dict[str, int]) -> TensorSpec:
    """Return the tensor of a buffer, as a generated kernel takes it."""
    value: torch.Tensor | None = V.graph.constants.get(name)
    if value is None:
        return base_operand(node_of(name), seeds)
    return TensorSpec(
        size=tuple(value.size()),
        stride=tuple(value.stride()),
        dtype=dtype_name(value.dtype),
        device=device_text(value.device),
        seed=seeds.setdefault(name, len(seeds) + 1),
    )


def node_of(name: str) -> Any:
    """Return the buffer or graph input with a name."""
    graph: Any = V.graph
    buffer = graph.try_get_buffer(name)
    return buffer if buffer is not None else graph.graph_inputs[name]


def module_kernel(kernel: Generated, device: torch.device) -> ModuleKernel:
    """Return the kernel as a worker calls it."""
    return ModuleKernel(kernel.source, toolchain.triton_variables(device))


def compile_job(
    kernel: Generated, device: torch.device, template: str, timeout_s: float
) -> TritonCompileJob:
    """Return the compile job of a kernel, with its key in the cache."""
    target = toolchain.triton_target(device)
    return TritonCompileJob(
        key=kernel.digest,
        kernel_name=KERNEL,
        source=kernel.source,
        environment=toolchain.triton_variables(device),
        timeout_s=timeout_s,
        target=target,
        kernel=toolchain.triton_kernel_key(template, kernel.identity, KERNEL, target),
    )


def epilogue_of(scheduler: Any, product: Any, first: Any, added: Sequence[Any]) -> Epilogue:
    """Return the whole epilogue that a product would have, including nodes that are fused already.

    Args:
        scheduler: Inductor's scheduler.
        product: The product's buffer.
        first: The product's node, or the fused node that contains it.
        added: The nodes that are added, in the order they run.
    """
    nodes = [*(node for node in first.get_nodes() if not node.is_template()), *added]
    group = {node.get_name() for node in (*first.get_nodes(), *nodes)}
    return epilogue_of_bodies(
        base_of(product),
        [node._body for node in nodes],
        lambda name: _read_outside(scheduler, name, group) > 0,
        readers=_read_outside(scheduler, product.get_name(), group),
        mutates=any(node.has_aliasing_or_mutation() for node in nodes),
    )


def prologue_of(scheduler: Any, read: set[str], first: Any, second: Any) -> Epilogue:
    """Return the prologue that a product would have.

    Args:
        scheduler: Inductor's scheduler.
        read: Names of the buffers that the product reads.
        first: The node before it.
        second: The product's node.
    """
    nodes = first.get_nodes()
    group = {node.get_name() for node in (*nodes, *second.get_nodes())}
    written = [buffer.get_name() for node in nodes for buffer in node.get_outputs()]
    operand = next(name for name in reversed(written) if name in read)
    return epilogue_of_bodies(
        base_of(node_of(operand)),
        [node._body for node in nodes],
        lambda name: name == operand or _read_outside(scheduler, name, group) > 0,
        readers=_read_outside(scheduler, operand, group),
        prologue=True,
        mutates=any(node.has_aliasing_or_mutation() for node in nodes),
    )


def _read_outside(scheduler: Any, name: str, group: set[str]) -> int:
    """Return how many nodes outside a group read a buffer; the graph's output counts as a node."""
    users = scheduler.name_to_buf[name].users
    return sum(not ({part.get_name() for part in _parts(user.node)} & group) for user in users)


def _parts(node: Any) -> Sequence[Any]:
    return node.get_nodes() if hasattr(node, "get_nodes") else [node]
