"""The attention operators of a graph, and their calls as data."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from inductor_plugin.attention.kernel_calls import KernelArguments
from inductor_plugin.attention.library import KERNELS, LibraryKernel
from inductor_plugin.attention.tools import overload
from inductor_plugin.inductor.attention.nodes import equal, number, realized
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.compat import boxed
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.problem.attention import Mask

OPERATORS: dict[str, tuple[LibraryKernel, bool]] = {
    kernel.operator + suffix: (kernel, gradient)
    for kernel in KERNELS.values()
    if kernel.operator
    for suffix, gradient in (("", False), ("_backward", True))
}
"""Operators that can be traced, with their library kernel and whether they are its gradient."""

_NAMES = {
    "query": "q",
    "key": "k",
    "value": "v",
    "q": "q",
    "k": "k",
    "v": "v",
    "bias": "bias",
    "attn_bias": "bias",
    "attn_mask": "bias",
    "grad_out": "do",
    "grad_out_": "do",
    "out": "out",
    "logsumexp": "lse",
    "lse": "lse",
    "cu_seq_q": "cu_q",
    "cu_seq_k": "cu_k",
    "cu_seqlens_q": "cu_q",
    "cu_seqlens_k": "cu_k",
}
"""Names of operands in the schemas of torch 2.11 to 2.15, and in `inductor_plugin.problem.attention`."""

_REFUSED = ("dropout_p", "return_debug_mask", "bias_grad")
"""Arguments for which a call is left to Inductor, unless they are 0 or false."""
_REFUSED_UNLESS_NONE = ("seqused_k", "block_table", "num_splits", "grad_lse")
_ALL_BUT_BIAS = (True, True, True, False)
_FMHA_MASK = ("window_left", "window_right", "bottom_right")


@dataclass(frozen=True)
class Traced:
    """One call of an attention operator.

    Attributes:
        op: The operator.
        kernel: The library kernel of the operator.
        gradient: Whether it is the gradient.
        args: Its arguments as they are in the graph.
        kwargs: Its keyword arguments.
        tensors: Its tensors by their names in `inductor_plugin.problem.attention`; lse in the operator's form.
        arguments: Its other arguments.
        square: Whether Sq == Sk in every run.
    """

    op: Any
    kernel: LibraryKernel
    gradient: bool
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: Mapping[str, Any]
    arguments: KernelArguments
    square: bool = False

    @property
    def name(self) -> str:
        """The name of the library kernel."""
        return self.kernel.name

    @property
    def form(self) -> str:
        """The form of its statistics."""
        return self.kernel.lse_form

    @property
    def varlen(self) -> bool:
        """Whether sequences of different lengths are concatenated."""
        return "cu_q" in self.tensors

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.tensors["q"].get_device()


def operators() -> list[Any]:
    """Return the operators of all library kernels that can be traced."""
    for kernel in KERNELS.values():
        if kernel.operator:
            kernel.load()
    return [overload(name) for name in OPERATORS]


def read(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced | str:
    """Return a call as data, or why no other kernel can replace it."""
    kernel, gradient = _kernel(op)
    values = bound(op, args, kwargs)
    tensors = _tensors(values)
    reason = next(filter(None, _reasons(kernel.name, values, tensors)), None)
    if reason:
        return reason
    q, k = tensors["q"], tensors["k"]
    square = _square(tensors)
    scale = values["scale"]
    arguments = KernelArguments(
        scale=float(scale) if scale is not None else 1 / math.sqrt(pinned(q.get_size()[-1]) or 1),
        mask=_mask(kernel, values, tensors, square),
        softcap=float(values.get("softcap", 0.0)),
        lse=not gradient and _gives_lse(values) and is_read(1),
        form=kernel.lse_form,
        max_q=_longest(values, "q", q),
        max_k=_longest(values, "k", k),
        implementation=flash_implementation() if q.get_device().type == "cuda" else None,
        backend=values.get("backend"),
    )
    return Traced(op, kernel, gradient, args, kwargs, tensors, arguments, square)


def unread(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Traced, dict[str, Any]]:
    """Return a call that is left to Inductor, and more arguments that identify it.

    No guard is added: values known only at run time are None, the scale is that of the hint.
    """
    kernel, gradient = _kernel(op)
    values = bound(op, args, kwargs)
    tensors = _tensors(values)
    more: dict[str, Any] = {name: values[name] for name in _REFUSED if values.get(name)}
    more |= {name: True for name in _REFUSED_UNLESS_NONE if values.get(name) is not None}
    grad_mask = tuple(values.get("grad_input_mask") or _ALL_BUT_BIAS)
    if grad_mask != _ALL_BUT_BIAS:
        more["grad_input_mask"] = grad_mask
    if not gradient and _gives_lse(values) and is_read(1):
        more["wants_lse"] = True  # in a tuned call, lse is among the operands
    scale = values["scale"]
    if scale is None:
        scale = 1 / math.sqrt(compat.hints([tensors["q"].get_size()[-1]])[0] or 1)
    mask = Mask()
    if _window_at_run_time(values):
        more["window"] = None
    else:
        mask = _mask(kernel, values, tensors, _square(tensors))
    longest = [_longest(values, side, tensors[side]) for side in "qk" if "cu_q" in tensors]
    max_q, max_k = longest or (0, 0)
    softcap = float(values.get("softcap", 0.0))
    arguments = KernelArguments(float(scale), mask, softcap, max_q=max_q, max_k=max_k)
    return Traced(op, kernel, gradient, args, kwargs, tensors, arguments), more


def _kernel(op: Any) -> tuple[LibraryKernel, bool]:
    return OPERATORS[f"{op.namespace}.{op._schema.name.split('::')[1]}"]


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors among a call's arguments."""
    return {
        _NAMES[key]: value
        for key, value in values.items()
        if key in _NAMES and isinstance(value, ir.IRNode)
    }


def _square(tensors: Mapping[str, Any]) -> bool:
    q, k = tensors["q"].get_size(), tensors["k"].get_size()
    varlen = "cu_q" in tensors
    row = 0 if varlen else 2
    if min(len(q), len(k)) <= row:
        return False
    return equal(q[row], k[row]) and (not varlen or tensors["cu_q"] is tensors.get("cu_k"))


def _window_at_run_time(values: Mapping[str, Any]) -> bool:
    return any(not isinstance(values.get(name, 0), int) for name in _FMHA_MASK[:2])


def bound(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name in the operator's schema, defaults included."""
    schema = op._schema.arguments
    values = {argument.name: value for argument, value in zip(schema, args, strict=False)}
    values |= kwargs
    return {argument.name: values.get(argument.name, argument.default_value) for argument in schema}


def placed(traced: Traced) -> Traced:
    """Return a call whose tensors are realized, in the order in which a library call realizes them."""
    nodes: dict[int, Any] = {}

    def place(value: Any) -> Any:
        if not isinstance(value, ir.IRNode):
            return value
        return nodes.setdefault(id(value), boxed(realized(value)))

    return replace(
        traced,
        args=[place(value) for value in traced.args],
        kwargs={name: place(value) for name, value in traced.kwargs.items()},
        tensors={name: place(value) for name, value in traced.tensors.items()},
    )


def pinned(extent: Any) -> int | None:
    """Return an extent that kernels are specialized for, as an int; None if it must stay symbolic.

    A guard recompiles a forward graph for another extent. A backward graph has no guards of its own, AOTInductor's code has none
    at all, and the user may have forbidden it.
    """
    graph: Any = V.graph
    simplified = graph.sizevars.simplify(extent)
    if getattr(simplified, "is_number", True):
        return int(simplified)
    if graph.is_backward or graph.aot_mode or compat.is_marked_dynamic(simplified):
        return None
    return int(graph.sizevars.guard_int(simplified))


def is_read(index: int) -> bool:
    """Return whether a result of the call that is being lowered is read."""
    node: Any = V.graph.current_node
    return any(
        user.target is not operator.getitem or (user.args[1] == index and user.users)
        for user in node.users
    )


def flash_implementation() -> str | None:
    """Return the implementation that replaces FlashAttention 2, if one is activated."""
    return torch.nn.attention.current_flash_attention_impl()


def _gives_lse(values: Mapping[str, Any]) -> bool:
    return bool(values.get("compute_log_sumexp", True) and values.get("return_lse", True))


def _longest(values: Mapping[str, Any], side: str, tokens: Any) -> Any:
    """Return the length of the longest sequence of a varlen call, or an upper bound."""
    longest = values.get(f"max_{side}", values.get(f"max_seqlen_{side}"))
    return number(tokens.get_size()[0]) if longest is None else longest


def _mask(
    kernel: LibraryKernel,
    values: Mapping[str, Any],
    tensors: Mapping[str, Any],
    square: bool,  # noqa: FBT001
) -> Mask:
    if kernel.name == "fmha":
        left, right, at_end = (values[name] for name in _FMHA_MASK)
    else:
        left, right = values.get("window_size") or (-1, -1)
        right = 0 if values["is_causal"] else right
        at_end = kernel.diagonal_at_end
    mask = Mask(max(int(left), -1), max(int(right), -1))
    # Where the alignment makes no difference, both are the same problem.
    at_end = at_end and mask.limited and ("cu_q" in tensors or not square)
    return replace(mask, bottom_right=at_end)


def _reasons(
    name: str, values: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Iterator[str | None]:
    """Yield reasons why only the operator itself can compute the call; None is no reason."""
    if values.get("dropout_p"):
        yield f"dropout of {values['dropout_p']}: its random numbers are the operator's own"
    if values.get("return_debug_mask"):
        yield "the debug mask is wanted"
    for key in _REFUSED_UNLESS_NONE:
        if values.get(key) is not None:
            yield f"{key} is given"
    if _window_at_run_time(values):
        yield "a window that is known at run time only"
    grad_mask = values.get("grad_input_mask") or _ALL_BUT_BIAS
    if not all(grad_mask[:3]):
        yield "not all of dq, dk and dv are wanted"
    if values.get("bias_grad") or (grad_mask[3] and "bias" in tensors):
        yield "the gradient of the bias is wanted"
    yield from _operand_reasons(name, tensors)
    if name == "varlen":
        yield _cudnn_varlen(values, tensors)
    yield _elsewhere(tensors["q"])


def _operand_reasons(name: str, tensors: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield reasons why only the operator itself accepts the operands."""
    needed = {"q", "k", "v"} | ({"cu_q", "cu_k"} if name == "varlen" else set[str]())
    if not needed <= set(tensors):
        yield f"{', '.join(sorted(needed - set(tensors)))} not given"
    dims = 3 if "cu_q" in tensors else 4
    if any(len(tensors[name].get_size()) != dims for name in ("q", "k", "v")):
        yield f"q, k and v do not have {dims} dimensions"
    bias = tensors.get("bias")
    if bias is not None and not bias.get_dtype().is_floating_point:
        yield f"a bias of {bias.get_dtype()}"
    sizes = [size for tensor in tensors.values() for size in tensor.get_size()]
    if any(map(compat.is_unbacked, sizes)):
        yield "an extent that depends on data"
    if any(equal(size, 0) for size in sizes):
        yield "an extent of 0"
    heads_and_dims = [tensors[name].get_size()[dim] for name in ("q", "k", "v") for dim in (1, -1)]
    if None in map(pinned, heads_and_dims):
        yield "heads or a head dim that are known at run time only"


def _elsewhere(q: Any) -> str | None:
    device = q.get_device()
    if device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        return f"a device of type {device.type}, which no other attention here is for"
    return None


def _cudnn_varlen(values: Mapping[str, Any], tensors: Mapping[str, Any]) -> str | None:
    """Return why a call that may run cuDNN is left to Inductor: no other kernel has its statistics.

    They are [Tq, H, 1] in memory (aten/src/ATen/native/cudnn/MHA.cpp), though the operator's fake
    implementation returns [H, Tq]. A forward pass without gradient needs none.
    """
    if "lse" not in tensors and not is_read(1):
        return None
    calls_cudnn = compat.varlen_calls_cudnn(values)
    q, k = tensors["q"], tensors["k"]
    if calls_cudnn is None:
        # torch/nn/attention/varlen.py of torch 2.13 and 2.14: _can_use_cudnn.
        target = target_of(q.get_device())
        longest = values["max_q"]
        calls_cudnn = (
            (target is None or target.capability[0] in (9, 10))
            and tuple(values["window_size"] or (-1, -1)) == (-1, -1)
            and equal(q.get_size()[1], k.get_size()[1])
            and not (isinstance(longest, int) and longest <= 128)
        )
    return (
        "cuDNN's statistics of packed sequences are in a form of their own" if calls_cudnn else None
    )
