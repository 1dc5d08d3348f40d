"""Kernels that Inductor would write for some scheduler nodes, as jobs: source, arguments, operands.

Inductor generates a module to benchmark a fusion (`Scheduler.generate_kernel_code_from_nodes`), but
not which of its arguments is which buffer. That is noted while the module is written, so that a
product, what stands behind it and both in one kernel are measured on the same tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.common import SizeArg, WorkspaceArg
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.virtualized import V

from inductor_plugin.cache import KernelKey
from inductor_plugin.inductor.facts import compat, toolchain
from inductor_plugin.inductor.facts.operands import base_operand
from inductor_plugin.inductor.facts.problem import device_text, dtype_name
from inductor_plugin.inductor.fusion.epilogue import base_of, epilogue_of_bodies
from inductor_plugin.kernels.call import ModuleKernel, TensorSpec, Zeros
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.worker.jobs import TritonCompileJob

KERNEL = "triton_"
"""What Inductor calls the kernel of such a module."""

_SETTINGS: Any = inductor_config  # untyped
_DEVICE_INDEX = re.compile(r"(DeviceProperties\(type='\w+', )index=\d+, ")


@dataclass(frozen=True)
class Generated:
    """A kernel that Inductor wrote.

    Attributes:
        source: Its module.
        arguments: A buffer by its name, a number, or scratch memory; in the kernel's order.
    """

    source: str
    arguments: tuple[str | int | Zeros, ...]

    @property
    def digest(self) -> str:
        """What tells this kernel from others: its text, but for the index of the device."""
        return hashlib.sha256(_DEVICE_INDEX.sub(r"\1", self.source).encode()).hexdigest()

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers it takes."""
        return tuple(one for one in self.arguments if isinstance(one, str))


def generated(scheduler: Any, nodes: Sequence[Any]) -> Generated:
    """Return the kernel that Inductor would write for some nodes.

    Args:
        scheduler: Inductor's scheduler.
        nodes: In the order they run. The choice of a template among them is set.

    Raises:
        Exception: Inductor cannot write one (`CantSplit` among others).
    """
    # In place, the kernel would take one pointer for two buffers.
    with _noted() as arguments, _SETTINGS.patch(inplace_buffers=False):
        source = scheduler.generate_kernel_code_from_nodes(nodes, benchmark_kernel=True)
    return Generated(source, tuple(arguments))


@contextlib.contextmanager
def _noted() -> Generator[list[str | int | Zeros], None, None]:
    """Note the arguments of the kernel whose benchmark is written meanwhile."""
    found: list[str | int | Zeros] = []
    kind: Any = TritonKernel
    original = kind.codegen_kernel_benchmark

    def noting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        _, call_args, signature, _ = kernel.args.python_argdefs()
        found[:] = [_argument(*one) for one in zip(call_args, signature, strict=True)]
        found.extend(int(one) for one in kernel.kernel_benchmark_extra_args())
        return original(kernel, *args, **kwargs)

    kind.codegen_kernel_benchmark = noting
    try:
        yield found
    finally:
        kind.codegen_kernel_benchmark = original


def _argument(name: Any, told: Any) -> str | int | Zeros:
    if isinstance(told, WorkspaceArg):
        return Zeros(compat.hints([told.count])[0], dtype_name(told.dtype))
    if isinstance(told, SizeArg):
        return 0 if "seed_offset" in told.name else compat.hints([told.expr])[0]
    return str(name)


def operand_of(name: str, seeds: dict[str, int]) -> TensorSpec:
    """Return the tensor behind the name of a buffer, as a generated kernel takes it."""
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
    """Return the buffer or input of a name."""
    graph: Any = V.graph
    found = graph.try_get_buffer(name)
    return found if found is not None else graph.graph_inputs[name]


def module_kernel(made: Generated, device: torch.device) -> ModuleKernel:
    """Return how a worker calls a kernel."""
    return ModuleKernel(made.source, toolchain.triton_variables(device))


def compile_job(
    made: Generated, device: torch.device, template: str, timeout_s: float
) -> TritonCompileJob:
    """Return how a kernel is compiled, and the key under which the cache keeps it."""
    target = toolchain.triton_target(device)
    return TritonCompileJob(
        key=made.digest,
        kernel_name=KERNEL,
        source=made.source,
        environment=toolchain.triton_variables(device),
        timeout_s=timeout_s,
        target=target,
        kernel=KernelKey(
            template=template,
            source=made.digest,
            config=KERNEL,
            target=f"{target.backend}:{target.arch}",
            toolchain=toolchain.triton_toolchain(target),
            flags="",
        ),
    )


def epilogue_of(scheduler: Any, product: Any, first: Any, behind: Sequence[Any]) -> Epilogue:
    """Return all that would stand behind a product, what is fused with it already included.

    Args:
        scheduler: Inductor's scheduler.
        product: The product's buffer.
        first: The product's node, or that with what is fused behind it already.
        behind: The nodes that are added, in the order they run.
    """
    nodes = [*(one for one in first.get_nodes() if not one.is_template()), *behind]
    group = {one.get_name() for one in (*first.get_nodes(), *nodes)}
    return epilogue_of_bodies(
        base_of(product),
        [one._body for one in nodes],
        lambda name: _read_outside(scheduler, name, group) > 0,
        readers=_read_outside(scheduler, product.get_name(), group),
        mutates=any(one.has_aliasing_or_mutation() for one in nodes),
    )


def prologue_of(scheduler: Any, read: set[str], first: Any, second: Any) -> Epilogue:
    """Return what would stand before a product.

    Args:
        scheduler: Inductor's scheduler.
        read: Names of what the product reads.
        first: The node before it.
        second: The product's node.
    """
    nodes = first.get_nodes()
    group = {one.get_name() for one in (*nodes, *second.get_nodes())}
    written = [buffer.get_name() for one in nodes for buffer in one.get_outputs()]
    operand = next(name for name in reversed(written) if name in read)
    return epilogue_of_bodies(
        base_of(node_of(operand)),
        [one._body for one in nodes],
        lambda name: name == operand or _read_outside(scheduler, name, group) > 0,
        readers=_read_outside(scheduler, operand, group),
        prologue=True,
        mutates=any(one.has_aliasing_or_mutation() for one in nodes),
    )


def _read_outside(scheduler: Any, name: str, group: set[str]) -> int:
    """Return how many nodes outside a group read a buffer; the graph's output is one."""
    users = scheduler.name_to_buf[name].users
    return sum(not ({part.get_name() for part in _parts(user.node)} & group) for user in users)


def _parts(node: Any) -> Sequence[Any]:
    return node.get_nodes() if hasattr(node, "get_nodes") else [node]
