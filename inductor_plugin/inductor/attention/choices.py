"""A library attention kernel as a choice of Inductor, and its adaptation to the traced call."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir, select_algorithm
from torch._inductor.virtualized import V

from inductor_plugin.attention import library
from inductor_plugin.attention.gates import PACKAGES, DispatchContext
from inductor_plugin.attention.kernel_calls import KernelArguments
from inductor_plugin.attention.library import LibraryKernel
from inductor_plugin.attention.tools import TorchTools
from inductor_plugin.inductor.attention.nodes import equal, example, same_order
from inductor_plugin.inductor.attention.operators import Traced
from inductor_plugin.inductor.facts import compat
from inductor_plugin.problem import Problem, dtype_name
from inductor_plugin.problem.definition import size_class

_UNTYPED: Any = select_algorithm
_Base: Any = select_algorithm.ExternKernelCaller
_HALF_ROW = 8


class AttentionChoice(_Base):
    """A kernel of the library; a worker calls it as a function of tensors.

    Attributes:
        stock: Whether it is the traced operator, which Inductor alone would call.
    """

    def __init__(
        self,
        function: str,
        nodes: Sequence[Any],
        layout: ir.Layout,
        keywords: dict[str, Any],
        emit: Callable[[], Any],
        *,
        stock: bool,
    ) -> None:
        """Offer a function of `inductor_plugin.attention.library.FUNCTIONS`; ``emit`` creates the nodes of its call."""
        base: Any = super()
        base.__init__(_kernel(function), list(nodes), layout, keywords, has_out_variant=False)
        self.stock = stock
        self._emit = emit

    def output_node(self) -> Any:
        """Return all results of the call, converted to those of the traced operator."""
        return self._emit()


@functools.cache
def _kernel(function: str) -> Any:
    """Return Inductor's record of a function; cached, because the names are global."""
    return _UNTYPED.ExternKernelChoice(
        library.FUNCTIONS[function], name=function, has_out_variant=False
    )


def prepare() -> None:
    """Register all functions with Inductor by their names."""
    for function in library.FUNCTIONS:
        _kernel(function)


def adapted(kernel: LibraryKernel, traced: Traced, results: Sequence[Any]) -> KernelArguments | str:
    """Return the arguments with which another kernel computes the traced call, or why it cannot.

    Args:
        kernel: The other kernel.
        traced: The call.
        results: The results of the traced operator, as fake tensors.
    """
    arguments = replace(traced.arguments, form=traced.form, order=())
    count = 3 if traced.gradient else 1

    def run(tensors: dict[str, Any], max_q: Any, max_k: Any) -> Any:
        # Without converting lse, which compares sizes and would add guards.
        sized = replace(arguments, max_q=max_q, max_k=max_k)
        return kernel.run(TorchTools(), tensors, sized, gradient=traced.gradient)[:count]

    key = kernel.name, traced.gradient, replace(arguments, max_q=0, max_k=0)
    tensors = dict(traced.tensors)
    try:
        theirs = example(key, run, tensors, arguments.max_q, arguments.max_k)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"it takes no such operands: {str(error).splitlines()[0][:120]}"
    expected = results[:count]
    pairs = list(zip(theirs, expected, strict=True))
    if any(len(a.size()) != len(b.size()) or a.dtype != b.dtype for a, b in pairs):
        return "its result is of another kind"
    if all(same_order(b.size(), a.stride(), b.stride()) for a, b in pairs):
        return arguments
    return replace(arguments, order=tuple(order_of(tensor) for tensor in expected))


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a fake tensor in their order in memory, outermost first."""
    strides = compat.hints([getattr(getattr(s, "node", None), "expr", s) for s in tensor.stride()])
    sizes = compat.hints([getattr(getattr(s, "node", None), "expr", s) for s in tensor.size()])
    dims = range(len(strides))
    return tuple(sorted(dims, key=lambda dim: (-strides[dim], sizes[dim] == 1, dim)))


def longest_measured(length: Any) -> int:
    """Return the longest sequence of a measured call; for a symbol, the end of its size class."""
    if not getattr(length, "free_symbols", None):
        return int(length)
    return size_class(compat.hints([length])[0])[1]


def dispatch_context(
    traced: Traced, problem: Problem, backends: tuple[str, ...]
) -> DispatchContext:
    """Return the facts besides the attention that decide which kernels can compute it."""
    bias, k = traced.tensors.get("bias"), traced.tensors["k"]
    return DispatchContext(
        capability=None if problem.target is None else problem.target.capability,
        square=traced.square,
        dynamic=bool(problem.dynamic),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        aligned_bias=bias is None or _is_aligned(bias),
        bias_dtype="" if bias is None else dtype_name(bias.get_dtype()),
        wide_bias=bias is None
        or equal(bias.get_size()[-1], k.get_size()[0 if traced.varlen else 2]),
        cudnn=torch.backends.cudnn.version() or 0,
        packages=frozenset(filter(_is_installed, PACKAGES.values())),
        backends=backends,
    )


def _is_aligned(bias: Any) -> bool:
    proven = V.graph.sizevars.statically_known_multiple_of
    *rows, last = bias.get_stride()
    return all(proven(stride, _HALF_ROW) for stride in rows) and bool(last == 1)


def _is_installed(package: str) -> bool:
    parent = package.partition(".")[0]
    if importlib.util.find_spec(parent) is None:
        return False
    return parent == package or importlib.util.find_spec(package) is not None
