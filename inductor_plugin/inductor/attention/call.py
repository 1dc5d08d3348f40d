"""One attention call as it is tuned: its operands, its choices, and what it has to give back."""

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
from inductor_plugin.inductor.attention.nodes import (
    NodeTools,
    Provisional,
    boxed,
    empty,
    equal,
    example,
    extents,
    fallback,
    four_dims,
    number,
    realized,
)
from inductor_plugin.inductor.attention.operators import Traced, placed
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
        results: What the traced operator gives, as fake tensors.
        operands: Its operands by name, in the order of `inductor_plugin.problem.attention`.
        nodes: The same with memory and strides.
        layout: What the first candidate's kernel writes: out, or dk.
        provisional: Buffers that only some candidates use.
    """

    traced: Traced
    results: Sequence[Any]
    operands: Mapping[str, Any]
    nodes: Sequence[Any]
    layout: ir.Layout
    provisional: Provisional

    @property
    def op(self) -> str:
        """The operator of the problem."""
        return BACKWARD if self.traced.gradient else FORWARD

    def stock(self, more: Mapping[str, Any] | None = None) -> AttentionChoice:
        """Return the operator that was traced, as a choice; ``more`` are arguments that only a record needs."""
        traced = self.traced

        def emit() -> Any:
            self.provisional.drop()
            return fallback(traced.op, traced.args, dict(traced.kwargs))

        function = library.extern_name(traced.name, gradient=traced.gradient)
        keywords = self._keywords(traced.arguments) | dict(more or {})
        return AttentionChoice(function, self.nodes, self.layout, keywords, emit, stock=True)

    def others(
        self, problem: Problem, backends: tuple[str, ...]
    ) -> tuple[list[AttentionChoice], dict[str, str]]:
        """Return the library's other kernels for the call, and why the rest cannot compute it.

        Args:
            problem: The call's facts.
            backends: What the option ``attention_backends`` names; empty for all.
        """
        choices: list[AttentionChoice] = []
        rejected: dict[str, str] = {}
        if problem.output.device == "cpu":
            return choices, rejected
        traced = self.traced
        attention = attention_of(problem)
        context = dispatch_context(traced, problem, backends)
        # The varlen operator calls the same kernel, where it does not call cuDNN.
        same = {traced.name, "flash_varlen"} if traced.name == "varlen" else {traced.name}
        for kernel in library.rivals(attention):
            if kernel.name in same:
                continue
            function = library.extern_name(kernel.name, gradient=traced.gradient)
            found = kernel.refusal(attention, context) or adapted(kernel, traced, self.results)
            if isinstance(found, str):
                rejected[function] = found
            else:
                choices.append(self._other(kernel, function, found))
        return choices, rejected

    def _other(
        self, kernel: library.LibraryKernel, function: str, adjusted: library.KernelArguments
    ) -> AttentionChoice:
        def emit() -> Any:
            self.provisional.drop()
            run = library.backward if self.traced.gradient else library.forward
            return self._completed(*run(kernel, _TOOLS, self.traced.tensors, adjusted))

        keywords = self._keywords(adjusted)
        return AttentionChoice(function, self.nodes, self.layout, keywords, emit, stock=False)

    def returned(self, node: Any) -> tuple[Any, ...]:
        """Return what the traced operator gives, where a template's kernel has written ``node``."""
        traced, operands = self.traced, self.operands
        if traced.gradient:
            return self._completed(operands["dq"], node, operands["dv"])
        lse = operands.get("lse")
        if lse is not None:
            rows = traced.tensors["q"].get_size()[0 if traced.varlen else 2]
            lse = library.reformed(_TOOLS, lse, _template_form(traced), traced.form, lambda: rows)
        return self._completed(node, lse)

    def _completed(self, *computed: Any) -> tuple[Any, ...]:
        """Return the first results with the rest of what the traced operator gives.

        That are states of random numbers, which are not read without dropout.
        """
        given = [*computed, *[None] * (len(self.results) - len(computed))]
        pairs = zip(given, self.results, strict=False)
        return tuple(self._unread(fake) if x is None else x for x, fake in pairs)

    def _unread(self, fake: Any) -> Any:
        if isinstance(fake, torch.Tensor):
            return _like(fake, self.traced.device)
        return None if fake is None else number(fake)

    def _keywords(self, told: library.KernelArguments) -> dict[str, Any]:
        """Return the keyword arguments of a measured call: a problem's, and of the others what is not usual."""
        traced = self.traced
        keywords = arguments(
            scale=told.scale, mask=told.mask, softcap=told.softcap, operands=tuple(self.operands)
        )
        if not traced.gradient and told.lse and told.form != traced.form:
            keywords["form"] = told.form
        if traced.gradient and _is_padded(traced):
            keywords["form"] = "padded"
        for name in ("order", "implementation", "backend"):
            if getattr(told, name):
                keywords[name] = getattr(told, name)
        if traced.varlen:
            keywords["max_q"] = longest_measured(told.max_q)
            keywords["max_k"] = longest_measured(told.max_k)
        return keywords


def tuned_call(traced: Traced) -> AttentionCall:
    """Return a call with the buffers that its candidates write."""
    traced = _with_four_dims(placed(traced))
    results = _results(traced)
    provisional = Provisional()
    operands = _operands(traced, results)
    written = results[1 if traced.gradient else 0]
    return _call(traced, results, operands, written, provisional)


def plain_call(traced: Traced) -> AttentionCall:
    """Return a call that is not tuned: its operands are its tensors alone."""
    traced = placed(traced)
    results = _results(traced)
    return _call(traced, results, traced.tensors, results[0], Provisional())


def _call(
    traced: Traced,
    results: Sequence[Any],
    operands: Mapping[str, Any],
    written: Any,
    provisional: Provisional,
) -> AttentionCall:
    nodes = [realized(operand) for operand in operands.values()]
    fixed: Any = ir.FixedLayout
    layout = fixed(traced.device, written.dtype, extents(written.size()), extents(written.stride()))
    return AttentionCall(traced, results, operands, nodes, layout, provisional)


def _results(traced: Traced) -> list[Any]:
    """Return what the traced operator gives for fake tensors of its operands."""

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return traced.op(*args, **kwargs)

    return list(example(traced.op, run, list(traced.args), dict(traced.kwargs)))


def _with_four_dims(traced: Traced) -> Traced:
    """Return a call whose bias has as many dimensions as kernels for GPUs take; `fmha` takes fewer."""
    tensors = dict(traced.tensors)
    if "bias" in tensors and traced.device.type != "cpu":
        tensors["bias"] = four_dims(tensors["bias"])
    return replace(traced, tensors=tensors)


def _is_padded(traced: Traced) -> bool:
    """Return whether statistics that are given may be longer than the queries."""
    if traced.form != "padded":
        return False
    return not equal(traced.tensors["lse"].get_size()[-1], traced.tensors["q"].get_size()[2])


def _template_form(traced: Traced) -> str:
    """Return the form of statistics that templates read and write: on a CPU they take any strides."""
    return "cpu" if traced.name == "cpu" else "rows"


def _operands(traced: Traced, results: Sequence[Any]) -> dict[str, Any]:
    """Return the operands of a call by their names, in the order of `inductor_plugin.problem.attention`."""
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


def _statistics(traced: Traced, own: Any) -> Any:
    """Return memory for lse, in the type of the traced operator's."""
    if traced.name == "cpu":
        return _like(own, traced.device)
    size = traced.tensors["q"].get_size()
    rows = [size[1], size[0]] if traced.varlen else list(size[:3])
    return empty(rows, None, own.dtype, traced.device)


def _delta(do: Any, out: Any, *, varlen: bool) -> Any:
    """Return sum(out * do) over the head dim in float32, laid out as lse is."""
    product = inductor_lowering.lowerings[_ATEN.mul.Tensor](
        _UNTYPED.to_dtype(boxed(do), torch.float32), _UNTYPED.to_dtype(boxed(out), torch.float32)
    )
    summed = inductor_lowering.lowerings[_ATEN.sum.dim_IntList](product, [-1])
    rows = _TOOLS.transpose(summed, 0, 1) if varlen else summed
    return _TOOLS.dense(rows, tuple(range(len(rows.get_size()))))


def _like(fake: Any, device: torch.device) -> Any:
    return empty(extents(fake.size()), extents(fake.stride()), fake.dtype, device)
