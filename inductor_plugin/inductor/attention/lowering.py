"""Makes every attention operator a call with choices; Inductor only ever calls the one that was traced.

    aten._scaled_dot_product_*, torch_attn._varlen_attn, and their gradients
        │ read (`operators`)                                a reason ─► Inductor's own call
        ▼
    AttentionCall (`call`) ─► choices: the traced operator, the library's others, templates
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.attention.call import AttentionCall, plain_call, tuned_call
from inductor_plugin.inductor.attention.choices import AttentionChoice, prepare
from inductor_plugin.inductor.attention.nodes import Provisional
from inductor_plugin.inductor.attention.operators import Traced, operators, read, unread
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.inductor.graph.selector import reason_to_step_aside
from inductor_plugin.inductor.graph.session import session_of

logger = logging.getLogger(__name__)

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
        provisional = Provisional()
        try:
            traced = read(op, args, kwargs)
            if isinstance(traced, str):
                _note(op, args, kwargs, config, traced)
                return None
            return _tuned(traced, config)
        except OptionError:
            raise
        except Exception:  # the border where Inductor calls us: its own call stands
            logger.exception("the plugin could not tune %s; Inductor calls it", op)
            provisional.drop()
            return None

    return lower


def _tuned(traced: Traced, config: Config) -> Any:
    """Return what the traced operator gives, by whichever kernel wins; None to leave it alone."""
    reason = reason_to_step_aside(traced.device)
    if reason:
        # Without max_autotune nobody asked for another kernel.
        if inductor_config.max_autotune or inductor_config.max_autotune_gemm:
            _note(traced.op, traced.args, traced.kwargs, config, reason)
        return None
    call = tuned_call(traced)
    stock = call.stock()
    problem = session_of(V.graph, config).call(call.op, [stock], call.nodes, call.layout).problem
    backends = tuple(filter(None, config.attention_backends.split(",")))
    others, stock.rejected = call.others(problem, backends)
    choices = [stock, *others]
    node, winner = compat.select(call.op, choices, call.nodes, call.layout, _generated(call))
    return node if isinstance(winner, AttentionChoice) else call.returned(node)


def _note(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], config: Config, reason: str
) -> None:
    """Remember why a call is left to Inductor, for `explain`."""
    logger.debug("stock Inductor calls %s: %s", op, reason)
    try:
        traced, more = unread(op, args, kwargs)
        call = plain_call(traced)
        stock, session = call.stock(more), session_of(V.graph, config)
        asked = session.call(call.op, [stock], call.nodes, call.layout)
        session.note(asked, [stock], {"attention": reason})
    except Exception:
        logger.debug("%s could not be described", op, exc_info=True)


def _generated(call: AttentionCall) -> dict[int, Callable[[Any], torch.Tensor]]:
    """Return what generates the operands whose values a kernel follows, by their index."""
    names, told = list(call.operands), call.traced.arguments
    longest = {"q": told.max_q, "k": told.max_k}
    return {
        names.index(f"cu_{side}"): lengths(call.traced.tensors[side].get_size()[0], most)
        for side, most in longest.items()
        if f"cu_{side}" in names
    }


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
