"""`inductor_plugin.fmha` in a program of AOTInductor on a CPU: C++ that the program includes (`ops.package`).

The operator itself is written in Python, which such a program need not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V

from inductor_plugin.inductor import packaged
from inductor_plugin.inductor.attention.nodes import empty, example, extents, realized
from inductor_plugin.inductor.attention.operators import bound
from inductor_plugin.inductor.facts.compat import boxed

_OPERATOR = "inductor_plugin::fmha"
_TENSORS = ("q", "k", "v", "bias", "cu_seqlens_q", "cu_seqlens_k")
_LONGEST = ("max_seqlen_q", "max_seqlen_k")


def replaces(op: Any, args: Sequence[Any]) -> bool:
    """Return whether a call becomes C++ of the program."""
    return needs_python(op) and bool(args[0].get_device().type == "cpu")


def needs_python(op: Any) -> bool:
    """Return whether a program that has none is to call the operator."""
    return op._schema.name == _OPERATOR and packaged.wanted()


def fmha(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the nodes of out and lse, None if it is not asked for; the arguments are those of the operator."""
    values = bound(op, args, kwargs)
    tensors = {name: boxed(realized(values[name])) for name in _TENSORS if values[name] is not None}
    others = {name: value for name, value in values.items() if name not in _TENSORS}

    def faked(given: Mapping[str, Any], rest: Mapping[str, Any]) -> Any:
        return op(**{name: given.get(name) for name in _TENSORS}, **rest)

    out, lse = example((op, tuple(tensors)), faked, tensors, others)
    nodes = dict(tensors)
    if lse is not None:
        nodes["lse"] = empty(extents(lse.shape), None, lse.dtype, tensors["q"].get_device())
        nodes["lse"].realize()
    layout = ir.FixedLayout(out.device, out.dtype, extents(out.shape), extents(out.stride()))
    box: Any = ir.TensorBox  # untyped
    return box.create(_BlocksCaller(nodes, others, layout)), nodes.get("lse")


class _BlocksCaller(ir.ExternKernelOut):
    """One call of ``attention_blocks`` (`ops/package/attention_blocks.h`), which writes its lse, too."""

    def __init__(
        self, nodes: Mapping[str, Any], others: Mapping[str, Any], layout: ir.Layout
    ) -> None:
        untyped: Any = super()
        untyped.__init__(layout=layout, inputs=list(nodes.values()), python_kernel_name=_OPERATOR)
        self._names, self._others = tuple(nodes), others
        if "lse" in nodes:
            node = self.inputs[self._names.index("lse")]
            written: Any = ir.MutationOutput(ir.NoneLayout(device=self.get_device()), node, self)
            self.mutation_outputs = [written]

    def codegen(self, wrapper: Any) -> None:
        """Write the call."""
        packaged.include_blocks(wrapper)
        graph: Any = V.graph
        unread = self.get_name() in graph.removed_buffers  # only lse is used
        if unread:
            wrapper.writeline(wrapper.make_buffer_allocation(self))
        wrapper.writeline(f"{packaged.BLOCKS}({self._operands(wrapper)}, {self._scores(wrapper)});")
        if unread:
            wrapper.writeline(wrapper.make_buffer_free(self))

    def _operands(self, wrapper: Any) -> str:
        """Return an ``AttentionOperands``."""
        written = [wrapper.val_to_arg_str(node) for node in self.inputs]
        handles = dict(zip(self._names, written, strict=True))
        tensors = [handles.get(name, "nullptr") for name in (*_TENSORS, "lse")]
        longest = [wrapper.val_to_arg_str(self._others[name] or 0) for name in _LONGEST]
        return f"{{{', '.join((*tensors, self.get_name(), *longest))}}}"

    def _scores(self, wrapper: Any) -> str:
        """Return an ``AttentionScores``."""
        others = self._others
        scale = others["scale"]
        if scale is None:
            columns = wrapper.val_to_arg_str(self.inputs[0].get_size()[-1])
            scale = f"1.0 / std::sqrt(double({columns}))"
        numbers = (others["softcap"], others["window_left"], others["window_right"])
        written = [wrapper.val_to_arg_str(number) for number in numbers]
        at_end = "true" if others["bottom_right"] else "false"
        return f"{{{', '.join((str(scale), *written, at_end))}}}"
