"""The attention operators a graph may hold: what their arguments say, and what they have to give back."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from inductor_plugin.attention.library import FORMS, Facts
from inductor_plugin.attention.tools import overload
from inductor_plugin.inductor.attention.nodes import boxed, equal, number, realized
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.problem.attention import Mask

OPERATORS: dict[str, tuple[str, bool]] = {
    "aten._scaled_dot_product_flash_attention": ("flash", False),
    "aten._scaled_dot_product_flash_attention_backward": ("flash", True),
    "aten._scaled_dot_product_efficient_attention": ("efficient", False),
    "aten._scaled_dot_product_efficient_attention_backward": ("efficient", True),
    "aten._scaled_dot_product_cudnn_attention": ("cudnn", False),
    "aten._scaled_dot_product_cudnn_attention_backward": ("cudnn", True),
    "torch_attn._varlen_attn": ("varlen", False),
    "torch_attn._varlen_attn_backward": ("varlen", True),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("cpu", False),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": ("cpu", True),
    "inductor_plugin.fmha": ("fmha", False),
    "inductor_plugin.fmha_backward": ("fmha", True),
}
"""Operators that can be traced: the library kernel each is, and whether it is the gradient."""

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

_DIAGONAL_AT_END = ("flash", "varlen")
_REFUSED = ("dropout_p", "return_debug_mask", "bias_grad")
"""Values for which a call is left alone, unless they are 0 or false."""
_REFUSED_IF_GIVEN = ("seqused_k", "block_table", "num_splits", "grad_lse")
_ALL_BUT_BIAS = (True, True, True, False)
_FMHA_MASK = ("window_left", "window_right", "bottom_right")


@dataclass(frozen=True)
class Traced:
    """One call of an attention operator.

    Attributes:
        op: The operator.
        name: The library kernel it is.
        gradient: Whether it is the gradient.
        args: Its arguments as they are in the graph.
        kwargs: Its keyword arguments.
        given: Its tensors by their names in `inductor_plugin.problem.attention`; lse in its own form.
        facts: What else its arguments say.
        square: Whether Sq == Sk whenever it runs.
    """

    op: Any
    name: str
    gradient: bool
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    given: Mapping[str, Any]
    facts: Facts
    square: bool = False

    @property
    def form(self) -> str:
        """The form of its statistics."""
        return FORMS.get(self.name, "rows")

    @property
    def varlen(self) -> bool:
        """Whether sequences of different lengths lie behind one another."""
        return "cu_q" in self.given


@dataclass(frozen=True)
class Unsupported:
    """A call that is left to Inductor.

    Attributes:
        reason: Why.
    """

    reason: str


def operators() -> list[Any]:
    """Return all operators that this torch has."""
    return [overload(name) for name in OPERATORS]


def read(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced | Unsupported:
    """Return what a call says, or why nothing else could be in its place."""
    told = bound(op, args, kwargs)
    traced = _tensors(op, args, kwargs)
    reason = next(filter(None, _reasons(traced.name, told, traced.given)), None)
    if reason:
        return Unsupported(reason)
    q, k = traced.given["q"], traced.given["k"]
    square = _square(traced)
    scale = told["scale"]
    facts = Facts(
        scale=float(scale) if scale is not None else 1 / math.sqrt(pinned(q.get_size()[-1]) or 1),
        mask=_mask(traced, told, square),
        softcap=float(told.get("softcap", 0.0)),
        lse=not traced.gradient and _gives_lse(told) and is_read(1),
        form=traced.form,
        max_q=_longest(told, "q", q),
        max_k=_longest(told, "k", k),
        implementation=flash_implementation() if q.get_device().type == "cuda" else None,
        backend=told.get("backend"),
    )
    return replace(traced, facts=facts, square=square)


def unread(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Traced, dict[str, Any]]:
    """Return a call that is left alone, and what else tells it from others of the same shapes.

    It adds no guard: what is known at run time only is None, or for the scale what the hint says.
    """
    told = bound(op, args, kwargs)
    traced = _tensors(op, args, kwargs)
    more: dict[str, Any] = {one: told[one] for one in _REFUSED if told.get(one)}
    more |= {one: True for one in _REFUSED_IF_GIVEN if told.get(one) is not None}
    wanted = tuple(told.get("grad_input_mask") or _ALL_BUT_BIAS)
    if wanted != _ALL_BUT_BIAS:
        more["grad_input_mask"] = wanted
    if not traced.gradient and _gives_lse(told) and is_read(1):
        more["wants_lse"] = True  # of a call that is tuned, the operands say so
    scale = told["scale"]
    if scale is None:
        scale = 1 / math.sqrt(compat.hints([traced.given["q"].get_size()[-1]])[0] or 1)
    mask = Mask()
    if any(not isinstance(told.get(one, 0), int) for one in _FMHA_MASK[:2]):
        more["window"] = None
    else:
        mask = _mask(traced, told, _square(traced))
    facts = Facts(scale=float(scale), mask=mask, softcap=float(told.get("softcap", 0.0)))
    if traced.varlen:
        longest = (_longest(told, side, traced.given[side]) for side in "qk")
        facts = replace(facts, **dict(zip(("max_q", "max_k"), longest, strict=True)))
    return replace(traced, facts=facts), more


def _square(traced: Traced) -> bool:
    q, k = traced.given["q"].get_size(), traced.given["k"].get_size()
    row = 0 if traced.varlen else 2
    if min(len(q), len(k)) <= row:
        return False
    return equal(q[row], k[row]) and (
        not traced.varlen or traced.given["cu_q"] is traced.given.get("cu_k")
    )


def _tensors(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
    """Return a call with its tensors alone."""
    name, gradient = OPERATORS[f"{op.namespace}.{op._schema.name.split('::')[1]}"]
    told = bound(op, args, kwargs)
    given = {_NAMES[key]: value for key, value in told.items() if key in _NAMES}
    given = {key: value for key, value in given.items() if isinstance(value, ir.IRNode)}
    return Traced(op, name, gradient, args, kwargs, given, Facts(scale=1.0, mask=Mask()))


def bound(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names in the operator's schema."""
    placed = {one.name: value for one, value in zip(op._schema.arguments, args, strict=False)}
    placed |= kwargs
    return {one.name: placed.get(one.name, one.default_value) for one in op._schema.arguments}


def placed(traced: Traced) -> Traced:
    """Return a call whose tensors have memory and strides, in the order a library call makes them so."""
    known: dict[int, Any] = {}

    def place(value: Any) -> Any:
        if not isinstance(value, ir.IRNode):
            return value
        return known.setdefault(id(value), boxed(realized(value)))

    args = [place(value) for value in traced.args]
    kwargs = {name: place(value) for name, value in traced.kwargs.items()}
    given = {name: place(value) for name, value in traced.given.items()}
    return replace(traced, args=args, kwargs=kwargs, given=given)


def pinned(extent: Any) -> int | None:
    """Return an extent that kernels are made for, as a number from here on; None if it must stay open.

    A forward graph is compiled anew for another one. A backward graph has no guards of its own, and
    AOTInductor's code none at all.
    """
    graph: Any = V.graph
    known = graph.sizevars.simplify(extent)
    if getattr(known, "is_number", True):
        return int(known)
    return None if graph.is_backward or graph.aot_mode else int(graph.sizevars.guard_int(known))


def is_read(index: int) -> bool:
    """Return whether anyone reads a result of the call that is being lowered."""
    node: Any = V.graph.current_node
    return any(
        one.target is not operator.getitem or (one.args[1] == index and one.users)
        for one in node.users
    )


def flash_implementation() -> str | None:
    """Return what was activated in the place of FlashAttention 2, if anything."""
    return torch.nn.attention.current_flash_attention_impl()


def _gives_lse(told: Mapping[str, Any]) -> bool:
    return bool(told.get("compute_log_sumexp", True) and told.get("return_lse", True))


def _longest(told: Mapping[str, Any], side: str, tokens: Any) -> Any:
    """Return the longest sequence of a varlen call, or what it cannot be longer than."""
    longest = told.get(f"max_{side}", told.get(f"max_seqlen_{side}"))
    return number(tokens.get_size()[0]) if longest is None else longest


def _mask(traced: Traced, told: Mapping[str, Any], square: bool) -> Mask:  # noqa: FBT001
    if traced.name == "fmha":
        left, right, at_end = (told[one] for one in _FMHA_MASK)
    else:
        left, right = told.get("window_size") or (-1, -1)
        right = 0 if told["is_causal"] else right
        at_end = traced.name in _DIAGONAL_AT_END
    mask = Mask(max(int(left), -1), max(int(right), -1))
    # Where it makes no difference, the same attention is one problem.
    return replace(mask, bottom_right=at_end and mask.limited and (traced.varlen or not square))


def _reasons(name: str, told: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield why nothing but the operator itself could be called; what is None is no reason."""
    if told.get("dropout_p"):
        yield f"dropout of {told['dropout_p']}: its random numbers are the operator's own"
    if told.get("return_debug_mask"):
        yield "the debug mask is wanted"
    for key in _REFUSED_IF_GIVEN:
        if told.get(key) is not None:
            yield f"{key} is given"
    if any(not isinstance(told.get(one, 0), int) for one in _FMHA_MASK[:2]):
        yield "a window that is known at run time only"
    wanted = told.get("grad_input_mask") or _ALL_BUT_BIAS
    if not all(wanted[:3]):
        yield "not all of dq, dk and dv are wanted"
    if told.get("bias_grad") or (wanted[3] and "bias" in given):
        yield "the gradient of the bias is wanted"
    yield from _unfit(name, given)
    if name == "varlen":
        yield _cudnn_varlen(told, given)
    yield _elsewhere(given["q"])


def _unfit(name: str, given: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield what of the operands nobody but the operator itself takes."""
    needed = {"q", "k", "v"} | ({"cu_q", "cu_k"} if name == "varlen" else set[str]())
    if not needed <= set(given):
        yield f"{', '.join(sorted(needed - set(given)))} not given"
    dims = 3 if "cu_q" in given else 4
    if any(len(given[one].get_size()) != dims for one in ("q", "k", "v")):
        yield f"q, k and v do not have {dims} dimensions"
    bias = given.get("bias")
    if bias is not None and not bias.get_dtype().is_floating_point:
        yield f"a bias of {bias.get_dtype()}"
    sizes = [size for one in given.values() for size in one.get_size()]
    if any(map(compat.is_unbacked, sizes)):
        yield "an extent that depends on data"
    if any(equal(size, 0) for size in sizes):
        yield "an extent of 0"
    heads_and_dims = [given[one].get_size()[dim] for one in ("q", "k", "v") for dim in (1, -1)]
    if None in map(pinned, heads_and_dims):
        yield "heads or a head dim that are known at run time only"


def _elsewhere(q: Any) -> str | None:
    device = q.get_device()
    if device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        return f"a device of type {device.type}, which no other attention here is for"
    return None


def _cudnn_varlen(told: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Return why a call that may end in cuDNN is left alone: nobody else knows its statistics.

    They are [Tq, H, 1] in memory (aten/src/ATen/native/cudnn/MHA.cpp), though the operator's fake
    says [H, Tq]. A forward pass without gradient needs none.
    """
    if "lse" not in given and not is_read(1):
        return None
    decided = compat.varlen_calls_cudnn(told)
    q, k = given["q"], given["k"]
    if decided is None:
        # torch/nn/attention/varlen.py of torch 2.13 and 2.14: _can_use_cudnn.
        known = target_of(q.get_device())
        longest = told["max_q"]
        decided = (
            (known is None or known.capability[0] in (9, 10))
            and tuple(told["window_size"] or (-1, -1)) == (-1, -1)
            and equal(q.get_size()[1], k.get_size()[1])
            and not (isinstance(longest, int) and longest <= 128)
        )
    return "cuDNN's statistics of packed sequences are in a form of their own" if decided else None
