"""The library's attention kernels as choices: which are offered for a call, and what is written where one wins."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir, select_algorithm
from torch._inductor.virtualized import V

from inductor_plugin.attention import library
from inductor_plugin.attention.flash_wheel import PACKAGES
from inductor_plugin.attention.gates import Setting, offered, refusal
from inductor_plugin.attention.library import Facts
from inductor_plugin.attention.tools import TorchTools
from inductor_plugin.inductor.attention.nodes import (
    NodeTools,
    Provisional,
    equal,
    example,
    fallback,
    same_order,
)
from inductor_plugin.inductor.attention.operators import Traced
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import arguments, attention_of
from inductor_plugin.problem.definition import size_class

_UNTYPED: Any = select_algorithm
_Base: Any = select_algorithm.ExternKernelCaller
_HALF_ROW = 8


class AttentionChoice(_Base):
    """One of the library's kernels; a worker calls it as a function of tensors.

    Attributes:
        stock: Whether it is the operator that was traced: what Inductor alone would call.
    """

    def __init__(
        self,
        function: str,
        nodes: Sequence[Any],
        layout: ir.Layout,
        told: dict[str, Any],
        emit: Callable[[], Any],
        *,
        stock: bool,
    ) -> None:
        """Offer a function of `attention_library.FUNCTIONS`; ``emit`` makes the nodes of its call."""
        made: Any = super()
        made.__init__(_kernel(function), list(nodes), layout, told, has_out_variant=False)
        self.stock = stock
        self._emit = emit

    def output_node(self) -> Any:
        """Return all that the call gives, as the operator that was traced would give it."""
        return self._emit()


@functools.cache
def _kernel(function: str) -> Any:
    """Return Inductor's record of a function; its names are global, so there is one."""
    return _UNTYPED.ExternKernelChoice(
        library.FUNCTIONS[function], name=function, has_out_variant=False
    )


def prepare() -> None:
    """Make all functions known to Inductor by their names."""
    for function in library.FUNCTIONS:
        _kernel(function)


def stock_choice(
    traced: Traced,
    names: Sequence[str],
    nodes: Sequence[Any],
    layout: ir.Layout,
    made: Provisional,
    more: Mapping[str, Any] | None = None,
) -> AttentionChoice:
    """Return the operator that was traced, as a choice; ``more`` are arguments that only a record needs."""

    def emit() -> Any:
        made.drop()
        return fallback(traced.op, traced.args, dict(traced.kwargs))

    function = library.extern_name(traced.name, gradient=traced.gradient)
    told = _told(traced.facts, traced, names) | dict(more or {})
    return AttentionChoice(function, nodes, layout, told, emit, stock=True)


def other_choices(
    traced: Traced,
    names: Sequence[str],
    nodes: Sequence[Any],
    layout: ir.Layout,
    problem: Problem,
    given_back: Sequence[Any],
    finish: Callable[..., Any],
    made: Provisional,
    backends: tuple[str, ...],
) -> tuple[list[Any], dict[str, str]]:
    """Return the library's other kernels for a call, and why the rest are none.

    Args:
        traced: The call.
        names: Names of the operands.
        nodes: The operands.
        layout: What is written.
        problem: The call's facts.
        given_back: What the traced operator gives, as fake tensors.
        finish: Makes of (out, lse) or (dq, dk, dv) what the traced operator gives.
        made: Buffers of the other candidates.
        backends: What the option ``attention_backends`` names; empty for all.
    """
    if problem.output.device == "cpu":
        return [], {}
    attention = attention_of(problem)
    setting = replace(_setting(traced, problem), backends=backends)
    choices: list[Any] = []
    rejected: dict[str, str] = {}
    for name in offered(attention):
        function = library.extern_name(name, gradient=traced.gradient)
        if name in (traced.name, _twin(traced)) or function not in library.FUNCTIONS:
            continue
        reason = refusal(name, attention, setting)
        found = reason or _adapted(name, traced, given_back)
        if isinstance(found, str):
            rejected[function] = found
            continue
        choices.append(_other(name, function, traced, found, names, nodes, layout, finish, made))
    return choices, rejected


def _other(
    name: str,
    function: str,
    traced: Traced,
    facts: Facts,
    names: Sequence[str],
    nodes: Sequence[Any],
    layout: ir.Layout,
    finish: Callable[..., Any],
    made: Provisional,
) -> AttentionChoice:
    def emit() -> Any:
        made.drop()
        run = library.backward if traced.gradient else library.forward
        return finish(*run(name, NodeTools(), traced.given, facts))

    return AttentionChoice(function, nodes, layout, _told(facts, traced, names), emit, stock=False)


def _twin(traced: Traced) -> str:
    """Return which kernel the varlen operator calls itself, where it does not call cuDNN."""
    return "flash_varlen" if traced.name == "varlen" else ""


def _adapted(name: str, traced: Traced, given_back: Sequence[Any]) -> Facts | str:
    """Return the facts of another kernel's call, adapted to what the traced one gives, or why not."""
    facts = replace(traced.facts, form=traced.form, order=())
    kernels = library.BACKWARD_KERNELS if traced.gradient else library.FORWARD_KERNELS
    count = 3 if traced.gradient else 1

    def run(given: dict[str, Any], max_q: Any, max_k: Any) -> Any:
        # Without what is done to lse: sizes would be compared, and the answers become guards.
        told = replace(facts, max_q=max_q, max_k=max_k)
        return kernels[name](TorchTools(), given, told)[:count]

    try:
        theirs = example(run, dict(traced.given), facts.max_q, facts.max_k)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"it takes no such operands: {str(error).splitlines()[0][:120]}"
    ours = given_back[:count]
    pairs = list(zip(theirs, ours, strict=True))
    if any(len(a.size()) != len(b.size()) or a.dtype != b.dtype for a, b in pairs):
        return "its result is of another kind"
    if all(same_order(b.size(), a.stride(), b.stride()) for a, b in pairs):
        return facts
    return replace(facts, order=tuple(order_of(one) for one in ours))


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a fake tensor in their order in memory, the outermost first."""
    strides = compat.hints([getattr(getattr(s, "node", None), "expr", s) for s in tensor.stride()])
    sizes = compat.hints([getattr(getattr(s, "node", None), "expr", s) for s in tensor.size()])
    dims = range(len(strides))
    return tuple(sorted(dims, key=lambda dim: (-strides[dim], sizes[dim] == 1, dim)))


def _told(facts: Facts, traced: Traced, names: Sequence[str]) -> dict[str, Any]:
    """Return the keyword arguments of a measured call: a problem's, and of the others what is not usual."""
    told = arguments(
        scale=facts.scale, mask=facts.mask, softcap=facts.softcap, operands=tuple(names)
    )
    own = library.FORMS.get(traced.name, "rows")
    if not traced.gradient and facts.lse and facts.form != own:
        told["form"] = facts.form
    if traced.gradient and _is_padded(traced):
        told["form"] = "padded"
    for name in ("order", "implementation", "backend"):
        if getattr(facts, name):
            told[name] = getattr(facts, name)
    if traced.varlen:
        told |= {"max_q": _longest(facts.max_q), "max_k": _longest(facts.max_k)}
    return told


def _is_padded(traced: Traced) -> bool:
    """Return whether statistics that are given may be longer than the queries."""
    if traced.form != "padded":
        return False
    return not equal(traced.given["lse"].get_size()[-1], traced.given["q"].get_size()[2])


def _longest(length: Any) -> int:
    """Return the longest sequence of a measured call; for a symbol, the end of its size class."""
    if not getattr(length, "free_symbols", None):
        return int(length)
    return size_class(compat.hints([length])[0])[1]


def _setting(traced: Traced, problem: Problem) -> Setting:
    q = traced.given["q"]
    known = target_of(q.get_device())
    bias = traced.given.get("bias")
    return Setting(
        capability=None if known is None else known.capability,
        square=traced.square,
        dynamic=bool(problem.dynamic),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        aligned_bias=bias is None or _is_aligned(bias),
        bias_dtype="" if bias is None else str(bias.get_dtype()).removeprefix("torch."),
        wide_bias=bias is None
        or equal(bias.get_size()[-1], traced.given["k"].get_size()[0 if traced.varlen else 2]),
        cudnn=torch.backends.cudnn.version() or 0,
        packages=frozenset(filter(_is_installed, PACKAGES.values())),
    )


def _is_aligned(bias: Any) -> bool:
    proven = V.graph.sizevars.statically_known_multiple_of
    *rows, last = bias.get_stride()
    return all(proven(one, _HALF_ROW) for one in rows) and bool(last == 1)


def _is_installed(package: str) -> bool:
    parent = package.partition(".")[0]
    if importlib.util.find_spec(parent) is None:
        return False
    return parent == package or importlib.util.find_spec(package) is not None
