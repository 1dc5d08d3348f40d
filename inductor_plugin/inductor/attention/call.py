"""One attention call that is tuned: its operands, its choices and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor_lowering

from inductor_plugin.attention import library
from inductor_plugin.inductor.attention.choices import (
    AttentionChoice,
    adapted,
    dispatch_context,
    longest_measured,
)
from inductor_plugin.inductor.attention.node_tools import NodeTools, called
from inductor_plugin.inductor.attention.nodes import (
    GraphSavepoint,
    empty,
    equal,
    example,
    extents,
    four_dims,
    number,
    realized,
)
from inductor_plugin.inductor.attention.operators import Traced, placed
from inductor_plugin.inductor.facts.compat import boxed
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import BACKWARD, FORWARD, arguments, attention_of

_ATEN: Any = torch.ops.aten
_UNTYPED: Any = inductor_lowering
_TOOLS = NodeTools()


@dataclass(frozen=True)
class AttentionCall:
    """A traced call with the buffers of its candidates.

    Attributes:
        traced: The call.
        results: The results of the traced operator, as fake tensors.
        operands: Its operands by name, in the order of `inductor_plugin.problem.attention`.
        nodes: The operands, realized.
        layout: Layout of the output that candidates write: out, or dk.
        savepoint: Buffers that only some candidates use.
    """

    traced: Traced
    results: Sequence[Any]
    operands: Mapping[str, Any]
    nodes: Sequence[Any]
    layout: ir.Layout
    savepoint: GraphSavepoint

    @property
    def op(self) -> str:
        """The operator of the problem."""
        return BACKWARD if self.traced.gradient else FORWARD

    def stock(self, more: Mapping[str, Any] | None = None) -> AttentionChoice:
        """Return the traced operator as a choice; ``more`` are arguments that only the record needs."""
        traced = self.traced

        def emit() -> Any:
            self.savepoint.drop()
            return called(traced.op, traced.args, dict(traced.kwargs))

        function = library.extern_name(traced.name, gradient=traced.gradient)
        keywords = self._keywords(traced.arguments) | dict(more or {})
        return AttentionChoice(function, self.nodes, self.layout, keywords, emit, stock=True)

    def others(
        self, problem: Problem, backends: tuple[str, ...]
    ) -> tuple[list[AttentionChoice], dict[str, str]]:
        """Return the library's other kernels for the call, and why the remaining ones cannot compute it.

        Args:
            problem: The call's facts.
            backends: Backends of the option ``attention_backends``; empty for all.
        """
        choices: list[AttentionChoice] = []
        rejected: dict[str, str] = {}
        if problem.output.device == "cpu":
            return choices, rejected
        traced = self.traced
        attention = attention_of(problem)
        context = dispatch_context(traced, problem, backends)
        for kernel in library.rivals(attention, traced.name):
            function = library.extern_name(kernel.name, gradient=traced.gradient)
            adjusted = kernel.why_not(attention, context) or adapted(kernel, traced, self.results)
            if isinstance(adjusted, str):
                rejected[function] = adjusted
            else:
                choices.append(self._other(kernel, function, adjusted))
        return choices, rejected

    def _other(
        self, kernel: library.LibraryKernel, function: str, adjusted: library.KernelArguments
    ) -> AttentionChoice:
        def emit() -> Any:
            self.savepoint.drop()
            run = library.backward if self.traced.gradient else library.forward
            return self._completed(*run(kernel, _TOOLS, self.traced.tensors, adjusted))

        keywords = self._keywords(adjusted)
        return AttentionChoice(function, self.nodes, self.layout, keywords, emit, stock=False)

    def returned(self, node: Any) -> tuple[Any, ...]:
        """Return the results of the traced operator, where a template's kernel wrote ``node``."""
        traced, operands = self.traced, self.operands
        if traced.gradient:
            return self._completed(operands["dq"], node, operands["dv"])
        lse = operands.get("lse")
        if lse is not None:
            rows = traced.tensors["q"].get_size()[0 if traced.varlen else 2]
            lse = library.reformed(_TOOLS, lse, _template_form(traced), traced.form, lambda: rows)
        return self._completed(node, lse)

    def _completed(self, *computed: Any) -> tuple[Any, ...]:
        """Return the computed results, completed with the traced operator's other results.

        Those are states of random numbers, which are not read without dropout.
        """
        padded = [*computed, *[None] * (len(self.results) - len(computed))]
        pairs = zip(padded, self.results, strict=False)
        return tuple(self._unread(fake) if x is None else x for x, fake in pairs)

    def _unread(self, fake: Any) -> Any:
        if isinstance(fake, torch.Tensor):
            return _like(fake, self.traced.device)
        return None if fake is None else number(fake)

    def _keywords(self, call_arguments: library.KernelArguments) -> dict[str, Any]:
        """Return the keyword arguments of a measured call: the problem's, and others that are not defaults."""
        traced = self.traced
        keywords = arguments(
            scale=call_arguments.scale,
            mask=call_arguments.mask,
            softcap=call_arguments.softcap,
            operands=tuple(self.operands),
        )
        if not traced.gradient and call_arguments.lse and call_arguments.form != traced.form:
            keywords["form"] = call_arguments.form
        if traced.gradient and _is_padded(traced):
            keywords["form"] = "padded"
        for name in ("order", "implementation", "backend"):
            if getattr(call_arguments, name):
                keywords[name] = getattr(call_arguments, name)
        if traced.varlen:
            keywords["max_q"] = longest_measured(call_arguments.max_q)
            keywords["max_k"] = longest_measured(call_arguments.max_k)
        return keywords


def tuned_call(traced: Traced) -> AttentionCall:
    """Return a call that is tuned, with the buffers that its candidates write."""
    traced = _with_kernels_layouts(placed(traced))
    results = _results(traced)
    savepoint = GraphSavepoint()
    operands = _operands(traced, results)
    written = results[1 if traced.gradient else 0]
    return _call(traced, results, operands, written, savepoint)


def plain_call(traced: Traced) -> AttentionCall:
    """Return a call that is not tuned: its operands are only its tensors."""
    traced = placed(traced)
    results = _results(traced)
    return _call(traced, results, traced.tensors, results[0], GraphSavepoint())


def _call(
    traced: Traced,
    results: Sequence[Any],
    operands: Mapping[str, Any],
    written: Any,
    savepoint: GraphSavepoint,
) -> AttentionCall:
    nodes = [realized(operand) for operand in operands.values()]
    fixed: Any = ir.FixedLayout
    layout = fixed(traced.device, written.dtype, extents(written.size()), extents(written.stride()))
    return AttentionCall(traced, results, operands, nodes, layout, savepoint)


def _results(traced: Traced) -> list[Any]:
    """Return the traced operator's results for fake tensors of its operands."""

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return traced.op(*args, **kwargs)

    return list(example(traced.op, run, list(traced.args), dict(traced.kwargs)))


def _with_kernels_layouts(traced: Traced) -> Traced:
    """Return a call whose bias has four dimensions and whose cu_seqlens are dense, as GPU kernels require.

    `fmha` accepts fewer dimensions and any stride.
    """
    tensors = dict(traced.tensors)
    if traced.device.type != "cpu":
        if "bias" in tensors:
            tensors["bias"] = four_dims(tensors["bias"])
        for name in ("cu_q", "cu_k"):
            if name in tensors:
                tensors[name] = _TOOLS.dense(tensors[name], (0,))
    return replace(traced, tensors=tensors)


def _is_padded(traced: Traced) -> bool:
    """Return whether the statistics that a gradient reads may be longer than the queries."""
    if traced.form != "padded":
        return False
    return not equal(traced.tensors["lse"].get_size()[-1], traced.tensors["q"].get_size()[2])


def _template_form(traced: Traced) -> str:
    """Return the form of statistics that templates read and write; on a CPU they accept any strides."""
    return "cpu" if traced.name == "cpu" else "rows"


def _operands(traced: Traced, results: Sequence[Any]) -> dict[str, Any]:
    """Return the operands of a call by name, in the order of `inductor_plugin.problem.attention`."""
    x, device = traced.tensors, traced.device
    packed = {name: x[name] for name in ("bias", "cu_q", "cu_k") if name in x}
    if not traced.gradient:
        operands = {**{name: x[name] for name in ("q", "k", "v")}, **packed}
        if traced.arguments.lse:
            operands["lse"] = _statistics(traced, results[1])
        return operands
    lse = library.reformed(
        _TOOLS, x["lse"], traced.form, _template_form(traced), lambda: x["q"].get_size()[2]
    )
    operands = {name: x[name] for name in ("do", "q", "k", "v", "out")} | {"lse": lse}
    if device.type != "cpu":  # the template for CPUs computes it itself
        operands["delta"] = _delta(x["do"], x["out"], varlen=traced.varlen)
    return {
        **operands,
        **packed,
        "dq": _like(results[0], device),
        "dv": _like(results[2], device),
    }


def _statistics(traced: Traced, lse: Any) -> Any:
    """Return memory for lse, in the dtype of the traced operator's lse."""
    if traced.name == "cpu":
        return _like(lse, traced.device)
    size = traced.tensors["q"].get_size()
    rows = [size[1], size[0]] if traced.varlen else list(size[:3])
    return empty(rows, None, lse.dtype, traced.device)


def _delta(do: Any, out: Any, *, varlen: bool) -> Any:
    """Return sum(out * do) over the head dim in float32, with the layout of lse."""
    product = inductor_lowering.lowerings[_ATEN.mul.Tensor](
        _UNTYPED.to_dtype(boxed(do), torch.float32), _UNTYPED.to_dtype(boxed(out), torch.float32)
    )
    summed = inductor_lowering.lowerings[_ATEN.sum.dim_IntList](product, [-1])
    rows = _TOOLS.transpose(summed, 0, 1) if varlen else summed
    return _TOOLS.dense(rows, tuple(range(len(rows.get_size()))))


def _like(fake: Any, device: torch.device) -> Any:
    return empty(extents(fake.size()), extents(fake.stride()), fake.dtype, device)
