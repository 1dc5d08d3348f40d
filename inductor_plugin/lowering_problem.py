"""Inductor's IR nodes as a `Problem` and as operands for the benchmark worker."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from inductor_plugin import compat
from inductor_plugin.environment import float32_precision
from inductor_plugin.errors import TargetError
from inductor_plugin.jobs import Tensor
from inductor_plugin.problem import Operand, Problem, SizeClass, size_class
from inductor_plugin.target import Target, from_properties, target

logger = logging.getLogger(__name__)

UNKNOWN_GPU = "library kernels and Triton templates are measured for it; there are no CUTLASS kernels and no packs"
"""What becomes of calls on a GPU that has no target."""


def problem_of(
    op: str, nodes: Sequence[Any], layout: ir.Layout, arguments: tuple[tuple[str, str], ...]
) -> Problem:
    """Return the facts of one call.

    Args:
        op: Inductor's name of the operator.
        nodes: Its inputs, in Inductor's order.
        layout: What it writes.
        arguments: Scalar arguments that change the computation.
    """
    return Problem(
        op=op,
        inputs=tuple(_operand(node) for node in nodes),
        output=layout_operand(layout),
        arguments=arguments,
        dynamic=tuple(_classes(nodes)),
        target=target_of(layout.device),
        tf32=float32_precision() != "highest",
    )


def target_of(device: torch.device) -> Target | None:
    """Return the GPU behind a device; None for a CPU, and, with one warning, for an unknown GPU."""
    if device.type != "cuda":
        return None
    try:
        return known_target(device)
    except TargetError as error:
        _warn_of_unknown(str(error))
        return None


def known_target(device: torch.device) -> Target:
    """Return the GPU behind a CUDA device.

    Raises:
        TargetError: Its figures are not known, or it is no NVIDIA GPU.
    """
    cuda: Any = torch.cuda
    properties = cuda.get_device_properties(device)
    names = target("H100").properties()
    return from_properties({n: getattr(properties, n) for n in names if hasattr(properties, n)})


def base_operand(node: Any, seeds: dict[str, int]) -> Tensor:
    """Return the tensor a template kernel is given: the base of a view, as stock benchmarks it."""
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    layout = base.get_layout()
    return _tensor(base, compat.hints([layout.offset])[0], seeds)


def view_operand(node: Any, seeds: dict[str, int]) -> Tensor:
    """Return the tensor a library kernel is given: the view itself, on its base's storage."""
    return _tensor(node, compat.hints([node.get_layout().offset])[0], seeds)


def output_tensor(layout: ir.Layout) -> Tensor:
    """Return what a kernel writes."""
    return Tensor(
        size=compat.hints(layout.size),
        stride=compat.hints(layout.stride),
        dtype=dtype_name(layout.dtype),
        device=device_text(layout.device),
        offset=compat.hints([layout.offset])[0],
    )


def constant(node: Any) -> torch.Tensor | None:
    """Return the frozen value behind a node as the node sees it; None for what run time brings."""
    name = node.get_name()
    value: torch.Tensor | None = V.graph.constants.get(name)
    if value is None or not is_view(node):
        return value
    offset = int(value.storage_offset()) + compat.hints([node.get_layout().offset])[0]
    size, stride = compat.hints(node.get_size()), compat.hints(node.get_stride())
    return torch.as_strided(value, size, stride, offset)


def generated_value(node: Any, generate: Callable[[Any], Any]) -> torch.Tensor | None:
    """Return what Inductor generates for a node, in this process's memory; None if nothing.

    Args:
        node: The input; its device may be one that is not there.
        generate: Inductor's generator, which asks the node for size, type and device.
    """
    return generate(_OnHost(node))


def is_view(node: Any) -> bool:
    """Return True if a node sees another one's memory with sizes and strides of its own."""
    inner = node.data if isinstance(node, ir.TensorBox) else node
    return isinstance(inner, ir.BaseView)


def device_text(device: torch.device | None) -> str:
    """Return ``cpu`` or ``cuda:0`` ..."""
    if device is None or device.type == "cpu":
        return "cpu"
    return f"{device.type}:{device.index or 0}"


def reduction_length(problem: Problem) -> int:
    """Return the longest dot product of a call: the largest extent its operands share, or a bound.

    For a matrix product this is K; for a convolution the product of a filter's extents.
    """
    if problem.op == "convolution" and len(problem.inputs) > 1:
        length = 1
        for extent in problem.inputs[1].size[1:]:
            length *= extent
        return length
    return max((operand.size[-1] for operand in problem.inputs if operand.size), default=1)


@functools.cache
def _warn_of_unknown(reason: str) -> None:
    """Say what an unknown GPU goes without: once a process for each kind."""
    logger.warning("%s; %s", reason, UNKNOWN_GPU)


def _tensor(node: Any, offset: int, seeds: dict[str, int]) -> Tensor:
    name = node.get_name()
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    return Tensor(
        size=compat.hints(node.get_size()),
        stride=compat.hints(compat.strides(node)),
        dtype=dtype_name(node.get_dtype()),
        device=device_text(node.get_device()),
        offset=offset,
        seed=seeds.setdefault(name, len(seeds) + 1),
        storage=_storage(base),
    )


def _storage(base: Any) -> int:
    size = compat.hints(base.get_size())
    stride = compat.hints(compat.strides(base))
    offset = compat.hints([base.get_layout().offset])[0]
    if 0 in size:
        return offset
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _operand(node: Any) -> Operand:
    value = constant(node)
    opaque = value is not None and value.layout is not torch.strided
    size = compat.hints(node.get_size())
    return Operand(
        # The size Inductor gives an opaque packed weight is the number of its bytes, which depends
        # on the packing's alignment: keep its rank, the dense weight beside it has the extents.
        size=() if opaque else size,
        stride=() if opaque else compat.hints(compat.strides(node)),
        dtype=dtype_name(node.get_dtype()),
        device=node.get_device().type,
        offset=compat.hints([node.get_layout().offset])[0],
        layout=str(value.layout).removeprefix("torch._")
        if value is not None and opaque
        else "strided",
        constant=value is not None,
        divisors=()
        if opaque
        else _divisors(
            node.get_device(),
            compat.strides(node),
            node.get_layout().offset,
            aligned=node.get_name() not in V.graph.unaligned_buffers,
        ),
    )


def layout_operand(layout: ir.Layout) -> Operand:
    """Return a layout as an operand, dynamic sizes by their hints."""
    return Operand(
        size=compat.hints(layout.size),
        stride=compat.hints(layout.stride),
        dtype=dtype_name(layout.dtype),
        device=layout.device.type,
        offset=compat.hints([layout.offset])[0],
        divisors=_divisors(layout.device, layout.stride, layout.offset),
    )


def _divisors(
    device: torch.device, stride: Sequence[Any], offset: Any, *, aligned: bool = True
) -> tuple[int, ...]:
    """Return `Operand.divisors`.

    Only GPU kernels ask for them. What is not ``aligned`` begins anywhere: Inductor copies an input
    that was aligned when it compiled and is not later, but takes one that never was as it comes.
    """
    steps = (*stride, offset)
    if device.type != "cuda" or (aligned and not any(map(_is_symbolic, steps))):
        return ()
    found = [_divisor(one) for one in steps]
    return (*found[:-1], found[-1] if aligned else 1)


def _divisor(expression: Any) -> int:
    if not _is_symbolic(expression):
        return math.gcd(int(expression), 16)
    proven = V.graph.sizevars.statically_known_multiple_of
    return next((number for number in (16, 8, 4, 2) if proven(expression, number)), 1)


def _is_symbolic(expression: Any) -> bool:
    return bool(getattr(expression, "free_symbols", None))


def _classes(nodes: Sequence[Any]) -> list[SizeClass]:
    found: list[SizeClass] = []
    for index, node in enumerate(nodes):
        for dim, extent in enumerate(node.get_size()):
            if not _is_symbolic(extent):
                continue
            measured = compat.hints([extent])[0]
            low, high = size_class(measured)
            found.append(SizeClass(index, dim, low, high, measured))
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


class _OnHost:
    """A node that says it is on the CPU."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def get_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def sizes_kept(nodes: Sequence[Any]) -> Generator[None]:
    """Undo what a choice's preprocessor does to the sizes of its operands.

    Inductor's for C++ batches writes numbers over symbols in the operand's layout
    (`normalize_shapes`, torch/_inductor/codegen/cpp_gemm_template.py), which no guard holds it to.
    """
    layouts: list[Any] = [one.get_layout() for one in nodes]
    kept = [
        (one, list(one.size), list(one.stride)) for one in layouts if isinstance(one, ir.Layout)
    ]
    try:
        yield
    finally:
        written: Any
        for written, size, stride in kept:
            written.size[:], written.stride[:] = size, stride
