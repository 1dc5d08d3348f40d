"""Deferred decisions: all problems of a graph are enqueued before the first is waited for.

On a GPU Inductor itself defers the decision to its scheduler (`ir.MultiTemplateBuffer`). On a CPU it
decides while lowering, call by call (``select_algorithm.py``: "support multi-template on CPU C++
backend" is a TODO in 2.11-2.15). Here the same buffer serves as a placeholder, which is replaced by
the winner's node when the whole graph is lowered, before the scheduler sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import ExternKernelCaller
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from inductor_plugin.inductor.candidates.call import AutotuneCall

DEFERRABLE = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "int_mm",
        "scaled_mm",
        "mm_plus_mm",
        "convolution",
        "packed_linear",
        "linear_unary",
        "linear_binary",
    }
)
"""Calls whose lowering only returns the chosen node (others inspect it)."""


@dataclass
class Deferred:
    """A decision that is still open.

    Attributes:
        buffer: The placeholder.
        storage: The box through which the rest of the graph refers to the buffer.
        current_node: The FX node that was lowered, for stack traces.
        winner: Returns the choice, waiting for it if necessary.
        operands: The boxes of its operands, and the names of the buffers that were in them when the call was lowered.
        library: A library kernel among the choices, None if there is none.
    """

    buffer: ir.MultiTemplateBuffer
    storage: ir.StorageBox
    current_node: Any
    winner: Callable[[], ir.ChoiceCaller]
    operands: tuple[tuple[ir.StorageBox, str], ...]
    library: ir.ChoiceCaller | None


def stand_in(
    call: AutotuneCall,
    choices: list[Any],
    timings: Callable[..., dict[Any, float]],
    winner: Callable[[], ir.ChoiceCaller],
) -> tuple[ir.TensorBox, Deferred]:
    """Return a node whose kernel is decided later, and the open decision."""
    buffer = ir.MultiTemplateBuffer(call.layout, list(call.nodes), timings, choices, OrderedSet())
    box: Any = ir.TensorBox.create(buffer)
    storage = box.data
    assert isinstance(storage, ir.StorageBox)
    nodes = [*call.nodes, *(node for choice in choices for node in choice.input_nodes)]
    library = next((choice for choice in choices if isinstance(choice, ExternKernelCaller)), None)
    return box, Deferred(buffer, storage, V.graph.current_node, winner, _named(nodes), library)


def settle(graph: GraphLowering, deferred: Deferred) -> None:
    """Replace the placeholder buffer by the winner's node.

    The node is created after the whole graph was lowered. An operation in place that Inductor lowers as one out of place
    (``lowering.mutate_to``: "just swing the data pointer") has put other buffers into boxes meanwhile: operands are those of the
    call, and what such an operation has made of the result stays. A C++ template reads the boxes of its operands once more, when
    its code is generated; there the library kernel computes the call.
    """
    choice, moved = deferred.winner(), _moved(graph, deferred.operands)
    if moved and deferred.library is not None and not isinstance(choice, ExternKernelCaller):
        choice = deferred.library
    operations, buffers = len(graph.operations), len(graph.buffers)
    with (
        V.set_current_node(deferred.current_node),
        ir.IRNode.current_origins(deferred.buffer.origins),
        _as_called(moved),
    ):
        output = choice.output_node()
    node = ir.InputsKernel.unwrap_storage_for_input(output)
    assert isinstance(node, ir.OperationBuffer), f"{choice.name} gave a {type(node).__name__}"
    _move(graph.operations, operations, deferred.buffer, node)
    _move(graph.buffers, buffers, deferred.buffer, node)
    _rename(graph, deferred.buffer, node)
    node.layout = deferred.buffer.layout if _may_take_layout(node) else node.layout
    if deferred.storage.data is deferred.buffer:
        deferred.storage.data = node
    graph.graph_outputs = [_replaced(out, deferred.buffer, node) for out in graph.graph_outputs]


def _named(nodes: Iterable[Any]) -> tuple[tuple[ir.StorageBox, str], ...]:
    """Return the innermost boxes of nodes, and the names of the buffers in them."""
    boxes: dict[int, ir.StorageBox] = {}
    for node in nodes:
        inner = node
        while isinstance(inner, ir.TensorBox | ir.StorageBox | ir.BaseView):
            if isinstance(inner, ir.StorageBox):
                boxes[id(inner)] = inner
            inner = inner.data
    buffers = [(box, box.data) for box in boxes.values()]
    return tuple(
        (box, buffer.get_name()) for box, buffer in buffers if isinstance(buffer, ir.Buffer)
    )


def _moved(
    graph: GraphLowering, operands: Iterable[tuple[ir.StorageBox, str]]
) -> list[tuple[ir.StorageBox, Any]]:
    """Return the boxes with another buffer than when the call was lowered, and the buffer of that time."""
    now = graph.name_to_buffer
    return [(box, now[name]) for box, name in operands if name in now and now[name] is not box.data]


@contextmanager
def _as_called(moved: Iterable[tuple[ir.StorageBox, Any]]) -> Generator[None]:
    """Put the buffers of a call into the boxes of its operands; those that are in them now are put back after it."""
    later = [(box, box.data) for box, _ in moved]
    for box, buffer in moved:
        box.data = buffer
    try:
        yield
    finally:
        for box, data in later:
            box.data = data


def _move(entries: list[Any], since: int, old: Any, new: Any) -> None:
    """Replace ``old`` by ``new``, preceded by the helper buffers registered with it."""
    added = entries[since:]
    del entries[since:]
    index = next(i for i, entry in enumerate(entries) if entry is old)
    entries[index : index + 1] = [*(entry for entry in added if entry is not new), new]


def _rename(graph: GraphLowering, old: Any, new: Any) -> None:
    """Give ``new`` the names of ``old``, which the rest of the graph refers to."""
    del graph.name_to_buffer[new.get_name()]
    del graph.name_to_op[new.get_operation_name()]
    new.name, new.operation_name = old.get_name(), old.get_operation_name()
    graph.name_to_buffer[new.name] = new
    graph.name_to_op[new.operation_name] = new


def _may_take_layout(node: Any) -> bool:
    """Return True if the layout the graph has fixed in the meantime may replace the node's layout."""
    return isinstance(node.layout, (ir.FlexibleLayout, ir.FixedLayout))


def _replaced(out: Any, old: Any, new: Any) -> Any:
    if out is old:
        return new
    if isinstance(out, ir.StorageBox) and out.data is old:
        out.data = new
    return out
