"""Makes every attention operator a call with choices; Inductor only ever calls the one that was traced.

    aten._scaled_dot_product_*, torch_attn._varlen_attn, and their gradients
        │ read (lowering_attention_traced)                  Unsupported ─► Inductor's own, and why
        ▼
    operands by their names ─► choices: the traced operator, the library's others, templates
        │ selected
        ▼
    what the traced operator gives back, from whichever won

A forward pass and its gradient share q, k, v, out and lse in the form of the traced operator, so they
are decided apart. Where ``efficient`` was traced and Sq is no multiple of 32, its lse is padded: library
kernels and Triton gradients are measured with what that costs them, a copy; the templates' forward
passes and CUTLASS gradients are not: their figures leave that copy out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor import lowering as inductor_lowering
from torch._inductor.virtualized import V

from inductor_plugin.attention.library import reformed
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.attention.choices import (
    AttentionChoice,
    other_choices,
    prepare,
    stock_choice,
)
from inductor_plugin.inductor.attention.nodes import (
    NodeTools,
    Provisional,
    boxed,
    empty,
    example,
    extents,
    four_dims,
    number,
    realized,
)
from inductor_plugin.inductor.attention.operators import (
    Traced,
    Unsupported,
    operators,
    placed,
    read,
    unread,
)
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.inductor.graph.selector import reason_to_step_aside
from inductor_plugin.inductor.graph.session import session_of
from inductor_plugin.problem.attention import BACKWARD, FORWARD

logger = logging.getLogger(__name__)

_ATEN: Any = torch.ops.aten
_UNTYPED: Any = inductor_lowering
_TOOLS = NodeTools()
_INSTALLED: list[Callable[[], None]] = []


def install() -> None:
    """Let the plugin see attention first; harmless outside the plugin's scope."""
    if _INSTALLED:
        return
    prepare()
    _INSTALLED.extend(compat.replace_lowering(op, _lowering(op)) for op in operators())


def uninstall() -> None:
    """Leave attention to Inductor again."""
    while _INSTALLED:
        _INSTALLED.pop()()


def installed() -> bool:
    """Return True if the plugin's lowerings are in place."""
    return bool(_INSTALLED)


def _lowering(op: Any) -> Callable[..., Any]:
    def lower(*args: Any, **kwargs: Any) -> Any:
        config = active_config()
        if config is None:
            return None
        made = Provisional()
        try:
            traced = read(op, args, kwargs)
            if isinstance(traced, Unsupported):
                _note(op, args, kwargs, config, traced.reason)
                return None
            return _tuned(traced, config)
        except OptionError:
            raise
        except Exception:  # the border where Inductor calls us: its own call stands
            logger.exception("the plugin could not tune %s; Inductor calls it", op)
            made.drop()
            return None

    return lower


def _tuned(traced: Traced, config: Config) -> Any:
    """Return what the traced operator gives, by whichever kernel wins; None to leave it alone."""
    device = traced.given["q"].get_device()
    reason = reason_to_step_aside(device)
    if reason:
        # Without max_autotune nobody asked for another kernel.
        if inductor_config.max_autotune or inductor_config.max_autotune_gemm:
            _note(traced.op, traced.args, dict(traced.kwargs), config, reason)
        return None
    traced = _with_four_dims(placed(traced))
    given_back = _given_back(traced)
    made = Provisional()
    operands = _operands(traced, given_back)
    names, nodes = list(operands), [realized(one) for one in operands.values()]
    layout = _layout(given_back[1 if traced.gradient else 0], device)
    stock = stock_choice(traced, names, nodes, layout, made)
    op = BACKWARD if traced.gradient else FORWARD
    problem = session_of(V.graph, config).call(op, [stock], nodes, layout).problem
    finish = _finish(given_back, device)
    wanted = tuple(filter(None, config.attention_backends.split(",")))
    others, stock.rejected = other_choices(
        traced, names, nodes, layout, problem, given_back, finish, made, wanted
    )
    generated = {
        names.index(cu): lengths(traced.given[side].get_size()[0], longest)
        for cu, side, longest in (
            ("cu_q", "q", traced.facts.max_q),
            ("cu_k", "k", traced.facts.max_k),
        )
        if cu in names
    }
    node, winner = compat.select(op, [stock, *others], nodes, layout, generated)
    if isinstance(winner, AttentionChoice):
        return node
    if traced.gradient:
        return finish(operands["dq"], node, operands["dv"])
    lse = operands.get("lse")
    if lse is not None:
        rows = traced.given["q"].get_size()[0 if traced.varlen else 2]
        lse = reformed(_TOOLS, lse, _common(traced), traced.form, lambda: rows)
    return finish(node, lse)


def _with_four_dims(traced: Traced) -> Traced:
    """Return a call whose bias has as many dimensions as kernels for GPUs take; `fmha` takes fewer."""
    given = dict(traced.given)
    if "bias" in given and given["q"].get_device().type != "cpu":
        given["bias"] = four_dims(given["bias"])
    return replace(traced, given=given)


def _given_back(traced: Traced) -> list[Any]:
    """Return what the traced operator gives for fake tensors of its operands."""

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return traced.op(*args, **kwargs)

    return list(example(run, traced.args, dict(traced.kwargs)))


def _common(traced: Traced) -> str:
    """Return the form of statistics that templates read and write: what a CPU's take has any strides."""
    return "cpu" if traced.name == "cpu" else "rows"


def _operands(traced: Traced, given_back: Sequence[Any]) -> dict[str, Any]:
    """Return the operands of a call by their names, in the order of `inductor_plugin.problem.attention`."""
    x = traced.given
    q = x["q"]
    packed = {name: x[name] for name in ("bias", "cu_q", "cu_k") if name in x}
    if not traced.gradient:
        operands = {**{name: x[name] for name in ("q", "k", "v")}, **packed}
        if traced.facts.lse:
            operands["lse"] = _statistics(traced, given_back[1])
        return operands
    lse = reformed(_TOOLS, x["lse"], traced.form, _common(traced), lambda: q.get_size()[2])
    operands = {name: x[name] for name in ("do", "q", "k", "v", "out")} | {"lse": lse}
    if q.get_device().type != "cpu":  # the template for CPUs computes it itself
        operands["delta"] = _delta(x["do"], x["out"], varlen=traced.varlen)
    return {
        **operands,
        **packed,
        "dq": _like(given_back[0], q.get_device()),
        "dv": _like(given_back[2], q.get_device()),
    }


def _statistics(traced: Traced, own: Any) -> Any:
    """Return memory for lse, in the type of the traced operator's."""
    q = traced.given["q"]
    if traced.name == "cpu":
        return _like(own, q.get_device())
    size = q.get_size()
    rows = [size[1], size[0]] if traced.varlen else list(size[:3])
    return empty(rows, None, own.dtype, q.get_device())


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


def _layout(fake: Any, device: torch.device) -> ir.Layout:
    fixed: Any = ir.FixedLayout
    return fixed(device, fake.dtype, extents(fake.size()), extents(fake.stride()))


def _finish(given_back: Sequence[Any], device: torch.device) -> Callable[..., Any]:
    """Return what completes results to all that the traced operator gives.

    What is missing are states of random numbers, which nobody reads without dropout.
    """

    def finish(*results: Any) -> tuple[Any, ...]:
        return tuple(
            results[i] if i < len(results) and results[i] is not None else rest(one)
            for i, one in enumerate(given_back)
        )

    def rest(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return _like(one, device)
        return None if one is None else number(one)

    return finish


def _note(op: Any, args: Any, kwargs: Any, config: Config, reason: str) -> None:
    """Remember why a call is left to Inductor, for `explain`."""
    logger.debug("stock Inductor calls %s: %s", op, reason)
    try:
        left, more = unread(op, args, kwargs)
        traced = placed(left)
        nodes = [realized(one) for one in traced.given.values()]
        layout = _layout(_given_back(traced)[0], nodes[0].get_device())
        stock = stock_choice(traced, list(traced.given), nodes, layout, Provisional(), more)
        session = session_of(V.graph, config)
        op_name = BACKWARD if traced.gradient else FORWARD
        call = session.call(op_name, [stock], nodes, layout)
        session.note(call, [stock], {"attention": reason})
    except Exception:
        logger.debug("%s could not be described", op, exc_info=True)


def lengths(tokens: Any, longest: Any) -> Callable[[Any], torch.Tensor]:
    """Return what makes the ends of sequences for a node: one as long as the call says, the rest alike.

    A call that says no more than that none is longer than all together is measured with sequences of
    one length: one that has all tokens, and the rest none, is what nobody packs sequences for.

    Args:
        tokens: Tokens of all sequences together.
        longest: Tokens of the longest one, or what it cannot be longer than.
    """

    def generate(node: Any) -> torch.Tensor:
        count, total, most = compat.hints([node.get_size()[0] - 1, tokens, longest])
        ends = torch.tensor([0, *_ends(count, total, most)], dtype=torch.int32)
        return ends.to(node.get_device())

    return generate


def _ends(count: int, total: int, most: int) -> list[int]:
    """Return the ends of ``count`` sequences of ``total`` tokens, the first of them ``most`` long.

    Where ``most`` is no less than ``total``, they are alike.
    """
    if most >= total:
        return [total * (i + 1) // count for i in range(count)]
    first, others, left = most, count - 1, total - most
    return [
        min(first + (left * i // others if others else 0), first + most * i) for i in range(count)
    ]
