"""Inductor's nodes: calls of operators, memory, strides, and nodes as fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor_lowering
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from inductor_plugin.inductor.facts.attached import attached
from inductor_plugin.inductor.facts.compat import boxed

_UNTYPED: Any = inductor_lowering
_KERNEL: Any = ir.ExternKernel
_ATEN: Any = torch.ops.aten


def fallback(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the nodes of a call of an operator, as Inductor's fallback creates them."""
    return _UNTYPED.fallback_handler(op, add_to_fallback_set=False)(*args, **kwargs)


def empty(size: Sequence[Any], stride: Any, dtype: torch.dtype, device: Any) -> Any:
    """Return a node of uninitialized memory, which no kernel writes."""
    return lowered(_ATEN.empty_strided.default, list(size), stride, dtype=dtype, device=device)


def realized(x: Any) -> Any:
    """Return a node realized with fixed strides, as the operand of a library call."""
    node = _KERNEL.realize_input(x)
    untyped: Any = ir
    if untyped.is_storage_and_layout(node):
        untyped.as_storage_and_layout(node, freeze=True)
    return node


def example(key: Hashable, function: Callable[..., Any], *trees: Any) -> Any:
    """Return a function's results for fake tensors in place of nodes; sizes may be symbols.

    Args:
        key: Identifies the function and everything it depends on besides the trees: it is called once in
            a graph for a key and nodes of the same sizes, strides and types.
        function: The function.
        trees: Its arguments: nodes with strides, numbers, and lists and dicts of them.
    """
    untyped: Any = ir

    def fake(x: Any) -> Any:
        if isinstance(x, ir.IRNode):
            return untyped.ir_node_to_tensor(x)
        return symbol(x) if hasattr(x, "free_symbols") else x

    graph: Any = V.graph
    leaves, spec = pytree.tree_flatten(trees)  # pyright: ignore[reportUnknownMemberType]
    # 32 layers of one shape compute it once.
    examples: dict[Any, Any] = attached(graph, "examples", dict[Any, Any])
    call = key, spec, tuple(map(_described, leaves))
    if call not in examples:
        with graph.fake_mode:
            examples[call] = function(*pytree.tree_unflatten([fake(leaf) for leaf in leaves], spec))
    return examples[call]


def _described(x: Any) -> Hashable:
    """Return the properties of an argument that a fake call depends on."""
    if not isinstance(x, ir.IRNode):
        return type(x).__name__, x
    node: Any = x
    layout = node.get_layout()
    return tuple(layout.size), tuple(layout.stride), layout.dtype, layout.device


def symbol(expression: Any) -> Any:
    """Return an expression as an int or SymInt for fake tensors."""
    if getattr(expression, "is_number", False):
        return int(expression)
    graph: Any = V.graph
    return graph.sizevars.shape_env.create_symintnode(expression, hint=None)


def number(expression: Any) -> Any:
    """Return an Inductor expression, as an int if it is a number."""
    if isinstance(expression, torch.SymInt):
        expression = expression.node.expr
    return int(expression) if getattr(expression, "is_number", True) else expression


def extents(of: Sequence[Any]) -> list[Any]:
    """Return sizes or strides of a fake tensor as Inductor's expressions."""
    return [sympy.sympify(number(extent)) for extent in of]


def equal(left: Any, right: Any) -> bool:
    """Return whether two extents are known to be equal in every run of the graph."""
    return V.graph.sizevars.statically_known_equals(left, right)


def same_order(size: Sequence[Any], left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether strides agree in all dimensions larger than 1."""
    steps = zip(extents(size), extents(left), extents(right), strict=True)
    return all(equal(n, 1) or equal(a, b) for n, a, b in steps)


def four_dims(node: Any) -> Any:
    """Return a view with leading dimensions of 1 added, up to four."""
    for _ in range(4 - len(node.get_size())):
        node = lowered(_ATEN.unsqueeze.default, node, 0)
    return node


def lowered(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the nodes of Inductor's lowering of an operator."""
    return inductor_lowering.lowerings[op](
        *(boxed(arg) if isinstance(arg, ir.IRNode) else arg for arg in args), **kwargs
    )


class GraphSavepoint:
    """Buffers that are created for some candidates and dropped if another candidate wins.

    Inductor would not allocate buffers that are not read, but it has numbered them: without them a graph
    in which the traced operator wins is identical to Inductor's.
    """

    def __init__(self) -> None:
        """Record how many buffers and operations the graph has."""
        graph: Any = V.graph
        self._graph = graph
        self._buffers, self._operations = len(graph.buffers), len(graph.operations)

    def drop(self) -> None:
        """Remove buffers and operations that were added since."""
        graph = self._graph
        for buffer in graph.buffers[self._buffers :]:
            del graph.name_to_buffer[buffer.get_name()]
        for operation in graph.operations[self._operations :]:
            del graph.name_to_op[operation.get_operation_name()]
        del graph.buffers[self._buffers :], graph.operations[self._operations :]
