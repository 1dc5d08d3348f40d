"""``check_outputs``: writes checks of each chosen kernel's outputs into the generated code.

Inductor's own ``nan_asserts`` checks the inputs and outputs of a whole graph, and the outputs of each
pointwise Triton kernel: it names no matrix product, does not check C++ or library calls, and does not
distinguish a NaN that a kernel produces from a NaN in its inputs. This check names the kernel, the
problem and its record, and does not blame a kernel whose inputs contain NaN or Inf. Where an epilogue
is fused, its output is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.graph.chosen import Chosen
from inductor_plugin.ops import output_check

_MODULE = output_check.__name__

NEEDS_PYTHON = (
    "option check_outputs writes Python into the generated code, and cpp_wrapper is on; switch one of "
    "them off"
)


class OutputGuard:
    """Writes the checks of one graph."""

    def __init__(self, graph: GraphLowering, mode: str) -> None:
        """Check the kernels of ``graph`` for what ``mode`` names.

        Raises:
            OptionError: The graph is compiled to C++ (``cpp_wrapper``).
        """
        if graph.cpp_wrapper:
            raise OptionError(NEEDS_PYTHON)
        self._mode = mode
        self._inputs: dict[str, str] = {}

    def before(self, scheduler: Any, nodes: Sequence[Any], chosen: Chosen) -> Callable[[], None]:
        """Write the check of a kernel's inputs, and return what writes that of its outputs."""
        wrapper: Any = V.graph.wrapper_code
        producer = _producer(nodes[0].node)
        finite = self._inputs.get(producer)
        if finite is None:
            finite = f"finite_{producer}"
            self._inputs[producer] = finite
            wrapper.add_import_once(f"import {_MODULE}")
            read = ", ".join(f"{name}={name}" for name in _read(scheduler, nodes))
            wrapper.writeline(f"{finite} = {_MODULE}.{output_check.finite.__name__}({read})")
        return lambda: self._after(scheduler, nodes, finite, chosen)

    def _after(self, scheduler: Any, nodes: Sequence[Any], finite: str, chosen: Chosen) -> None:
        names = [
            name
            for node in nodes
            for name in (
                _real(scheduler, out.get_name())
                for out in node.get_outputs()
                if len(nodes) == 1 or _read_outside(out, nodes)
            )
            if _is_tensor(name)
        ]
        if not names:
            return
        outputs = "".join(f"({name!r}, {name}), " for name in dict.fromkeys(names))
        wrapper: Any = V.graph.wrapper_code
        wrapper.writeline(
            f"{_MODULE}.{output_check.check.__name__}(({outputs}), {finite}, mode={self._mode!r}, "
            f"kernel={chosen.kernel!r}, problem={chosen.problem!r}, key={chosen.key!r})"
        )


def _producer(operation: Any) -> str:
    """Return the name of a node, or of the multi-output node whose result it is."""
    while isinstance(operation, ir.MultiOutput):
        source: Any = operation.inputs[0]
        operation = source
    return operation.get_name()


def _read(scheduler: Any, nodes: Sequence[Any]) -> list[str]:
    """Return the tensors that nodes, run as one kernel, read."""
    written = {out.get_name() for node in nodes for out in node.get_outputs()}
    read = {dep.name for node in nodes for dep in node.read_writes.reads} - written
    return sorted({real for name in read if _is_tensor(real := _real(scheduler, name))})


def _read_outside(buffer: Any, nodes: Sequence[Any]) -> bool:
    """Return whether a buffer of nodes that run as one kernel is written to memory: other nodes read it.

    torch 2.11 allocates memory for a buffer that is not written, too; its contents are undefined.
    """
    names = {node.get_name() for node in nodes}
    users = [
        user.node.get_nodes() if hasattr(user.node, "get_nodes") else [user.node]
        for user in buffer.users
    ]
    return any(user.get_name() not in names for group in users for user in group)


def _real(scheduler: Any, name: str) -> str:
    """Return the name that generated code uses for a buffer that has been mutated."""
    return scheduler.mutation_real_name.get(name, name)


def _is_tensor(name: str) -> bool:
    """Return whether generated code has a floating-point tensor of this name."""
    if name in V.graph.removed_buffers or name in V.graph.inplaced_to_remove:
        return False
    try:
        dtype: Any = V.graph.get_dtype(name)
    except (
        KeyError,
        AttributeError,
        NotImplementedError,
    ):  # not a tensor: a tuple, a token, a number
        return False
    return isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
