"""Inductor's IR nodes as a `Problem`."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from inductor_plugin.errors import TargetError
from inductor_plugin.inductor.facts import compat
from inductor_plugin.problem import Operand, Problem, SizeClass, dtype_name
from inductor_plugin.problem.definition import size_class
from inductor_plugin.problem.target import Target, from_properties, target
from inductor_plugin.tuning.environment import float32_precision
from inductor_plugin.worker.devices import lookup

logger = logging.getLogger(__name__)

UNKNOWN_GPU = "library kernels and Triton templates are measured for it; there are no CUTLASS kernels and no packs"
"""How calls on a GPU without a target are tuned."""


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
        tf32=float32_precision(layout.device.type) != "highest",
    )


def target_of(device: torch.device) -> Target | None:
    """Return the target of a device; None for a CPU, and, with one warning, for an unknown GPU.

    Raises:
        DeviceError: The description of a device that a package brings is wrong.
    """
    if lookup.name_of(device.type) != "cuda":
        return lookup.target_of(device_text(device))
    try:
        return known_target(device)
    except TargetError as error:
        _warn_of_unknown(str(error))
        return None


def known_target(device: torch.device) -> Target:
    """Return the target of a CUDA device.

    Raises:
        TargetError: The GPU's properties are not known, or it is not an NVIDIA GPU.
    """
    cuda: Any = torch.cuda
    properties = cuda.get_device_properties(device)
    names = target("H100").properties()
    return from_properties({n: getattr(properties, n) for n in names if hasattr(properties, n)})


def constant(node: Any) -> torch.Tensor | None:
    """Return the frozen value of a node, viewed as the node is; None if it is known only at run time."""
    name = node.get_name()
    value: torch.Tensor | None = V.graph.constants.get(name)
    if value is None or not is_view(node):
        return value
    offset = int(value.storage_offset()) + compat.hints([node.get_layout().offset])[0]
    size, stride = compat.hints(node.get_size()), compat.hints(node.get_stride())
    return torch.as_strided(value, size, stride, offset)


def is_view(node: Any) -> bool:
    """Return True if a node is a view of another node's memory."""
    inner = node.data if isinstance(node, ir.TensorBox) else node
    return isinstance(inner, ir.BaseView)


def device_text(device: torch.device | None) -> str:
    """Return ``cpu`` or ``cuda:0`` ..."""
    if device is None or device.type == "cpu":
        return "cpu"
    return f"{device.type}:{device.index or 0}"


@functools.cache
def _warn_of_unknown(reason: str) -> None:
    """Log what is not available on an unknown GPU: once per process and reason."""
    logger.warning("inductor-plugin: %s; %s", reason, UNKNOWN_GPU)


def _operand(node: Any) -> Operand:
    value = constant(node)
    opaque = value is not None and value.layout is not torch.strided
    size = compat.hints(node.get_size())
    return Operand(
        # Inductor's size of an opaque packed weight is its number of bytes, which depends on the
        # packing's alignment; the extents are those of the dense weight passed along with it.
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
        symbolic=() if opaque else _symbolic(compat.strides(node)),
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
        symbolic=_symbolic(layout.stride),
    )


def _divisors(
    device: torch.device, stride: Sequence[Any], offset: Any, *, aligned: bool = True
) -> tuple[int, ...]:
    """Return `Operand.divisors`.

    Only GPU kernels need them. An operand that is not ``aligned`` may begin at any address: Inductor
    copies an input that was aligned at compile time and is not later, but not an input that was
    unaligned from the start.
    """
    steps = (*stride, offset)
    if device.type != "cuda" or (aligned and not any(map(_is_symbolic, steps))):
        return ()
    divisors = [_divisor(step) for step in steps]
    return (*divisors[:-1], divisors[-1] if aligned else 1)


def _divisor(expression: Any) -> int:
    if not _is_symbolic(expression):
        return math.gcd(int(expression), 16)
    proven = V.graph.sizevars.statically_known_multiple_of
    return next((number for number in (16, 8, 4, 2) if proven(expression, number)), 1)


def _symbolic(steps: Sequence[Any]) -> tuple[int, ...]:
    return tuple(dim for dim, step in enumerate(steps) if _is_symbolic(step))


def _is_symbolic(expression: Any) -> bool:
    return bool(getattr(expression, "free_symbols", None))


def _classes(nodes: Sequence[Any]) -> list[SizeClass]:
    classes: list[SizeClass] = []
    for index, node in enumerate(nodes):
        for dim, extent in enumerate(node.get_size()):
            if not _is_symbolic(extent):
                continue
            measured = compat.hints([extent])[0]
            low, high = size_class(measured)
            classes.append(SizeClass(index, dim, low, high, measured))
    return classes
