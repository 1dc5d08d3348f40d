"""The operations of `inductor_plugin.attention.library` on Inductor's nodes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch._inductor import ir
from torch.utils._sympy.functions import FloorDiv

from inductor_plugin.attention.tools import overload
from inductor_plugin.errors import warn_once
from inductor_plugin.inductor.attention import blocks
from inductor_plugin.inductor.attention.nodes import empty, equal, fallback, lowered, number
from inductor_plugin.inductor.facts.compat import boxed

logger = logging.getLogger(__name__)

_ATEN: Any = torch.ops.aten
_KERNEL: Any = ir.ExternKernel


def called(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the nodes of a call of an operator: those of `blocks` where a program could not call it."""
    if blocks.replaces(op, args):
        return blocks.fmha(op, args, kwargs)
    if blocks.needs_python(op):
        warn_once(
            logger,
            "AOTInductor: fmha runs on a GPU by an operator in Python here; a process that loads the package needs "
            "`import inductor_plugin.attention.operator`, and a program without Python cannot run it",
        )
    return fallback(op, args, kwargs)


class NodeTools:
    """`inductor_plugin.attention.tools.Tools` on Inductor's nodes: fallback calls of operators, otherwise lowerings."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call an operator."""
        return called(overload(name), args, kwargs)

    def size(self, x: Any, dim: int) -> Any:
        """Return an extent."""
        return number(x.get_size()[dim])

    def transpose(self, x: Any, first: int, second: int) -> Any:
        """Exchange two dimensions."""
        order = list(range(len(x.get_size())))
        order[first], order[second] = second, first
        return lowered(_ATEN.permute.default, x, order)

    def expand(self, x: Any, size: Sequence[Any]) -> Any:
        """Repeat dimensions of 1."""
        if all(equal(a, b) for a, b in zip(x.get_size(), size, strict=True)):
            return x
        return lowered(_ATEN.expand.default, x, list(size))

    def unsqueeze(self, x: Any) -> Any:
        """Add a last dimension of 1."""
        return lowered(_ATEN.unsqueeze.default, x, -1)

    def squeeze(self, x: Any) -> Any:
        """Drop the last dimension of 1."""
        return lowered(_ATEN.squeeze.dim, x, -1)

    def padded(self, x: Any, multiple: int, value: float) -> Any:
        """Pad the last dimension to a multiple."""
        size = x.get_size()[-1]
        blocks: Any = FloorDiv(size + multiple - 1, multiple)
        missing = number(blocks * multiple - size)
        if equal(missing, 0):
            return x
        return lowered(_ATEN.constant_pad_nd.default, x, [0, missing], value)

    def head(self, x: Any, length: Any) -> Any:
        """Return the first ``length`` elements of the last dimension."""
        size = x.get_size()
        if equal(size[-1], length):
            return x
        return lowered(_ATEN.slice.Tensor, x, len(size) - 1, 0, length)

    def dense(self, x: Any, order: Sequence[int]) -> Any:
        """Return x dense with its dimensions in this order in memory."""
        size = x.get_size()
        strides: list[Any] = [sympy.Integer(1)] * len(size)
        for outer, inner in itertools.pairwise(reversed([*order])):
            strides[inner] = strides[outer] * size[outer]
        # Inductor's `require_stride_order` accepts gaps.
        return boxed(_KERNEL.require_exact_strides(boxed(x), strides))

    def empty(self, like: Any, size: Sequence[Any], dtype: torch.dtype) -> Any:
        """Return uninitialized memory on the device of a node."""
        if size:
            return empty(size, None, dtype, like.get_device())
        # Inductor would launch a kernel to fill a scalar.
        return lowered(_ATEN.squeeze.dim, empty((1,), None, dtype, like.get_device()), 0)
