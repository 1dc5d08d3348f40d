"""Makes every attention operator a call with choices, where Inductor would call the traced operator.

    aten._scaled_dot_product_*, torch_attn._varlen_attn, and their gradients
        │ read (`operators`)                                a reason ─► Inductor's call
        ▼
    AttentionCall (`call`) ─► choices: the traced operator, the library's others, templates
        │ selected
        ▼
    the results of the traced operator, computed by the kernel that won

A forward pass and its gradient share q, k, v, out and lse in the form of the traced operator, so they
are decided separately. Where ``efficient`` was traced and Sq is not a multiple of 32, its lse is padded:
the times of library kernels and Triton gradients include the copy this costs; those of the templates'
forward passes and of CUTLASS gradients do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.config.backends import backends_of
from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.attention import blocks
from inductor_plugin.inductor.attention.call import AttentionCall, plain_call, tuned_call
from inductor_plugin.inductor.attention.choices import AttentionChoice, prepare
from inductor_plugin.inductor.attention.nodes import GraphSavepoint
from inductor_plugin.inductor.attention.operators import Traced, operators, read, unread
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.inductor.graph.selector import why_not_taken
from inductor_plugin.inductor.graph.session import session_of

logger = logging.getLogger(__name__)

_INSTALLED: list[Callable[[], None]] = []


def install() -> None:
    """Install the plugin's lowerings of attention; they do nothing outside the plugin's scope."""
    if _INSTALLED:
        return
    prepare()
    _INSTALLED.extend(compat.replace_lowering(op, _lowering(op)) for op in operators())


def uninstall() -> None:
    """Restore Inductor's lowerings."""
    while _INSTALLED:
        _INSTALLED.pop()()


def _lowering(op: Any) -> Callable[..., Any]:
    def lower(*args: Any, **kwargs: Any) -> Any:
        config = active_config()
        if config is None:
            return None
        result = _tuned_or_none(op, args, kwargs, config)
        if result is None and blocks.replaces(op, args):
            return blocks.fmha(op, args, kwargs)
        return result

    return lower


def _tuned_or_none(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], config: Config) -> Any:
    savepoint = GraphSavepoint()
    try:
        traced = read(op, args, kwargs)
        if isinstance(traced, str):
            _record_reason(op, args, kwargs, config, traced)
            return None
        return _tuned(traced, config)
    except OptionError:
        raise
    except Exception:  # the border where Inductor calls us: Inductor's call is used
        logger.exception("inductor-plugin: could not tune %s; Inductor calls it", op)
        savepoint.drop()
        return None


def _tuned(traced: Traced, config: Config) -> Any:
    """Return the traced operator's results from the kernel that wins; None to leave it to Inductor."""
    reason = why_not_taken(traced.device)
    if reason is not None:
        # Without max_autotune no other kernel was requested.
        if inductor_config.max_autotune or inductor_config.max_autotune_gemm:
            _record_reason(traced.op, traced.args, traced.kwargs, config, reason)
        return None
    call = tuned_call(traced)
    stock = call.stock()
    problem = session_of(V.graph, config).call(call.op, [stock], call.nodes, call.layout).problem
    others, stock.rejected = call.others(problem, backends_of(config.attention_backends))
    choices = [stock, *others]
    node, winner = compat.select(call.op, choices, call.nodes, call.layout, _generated(call))
    return node if isinstance(winner, AttentionChoice) else call.returned(node)


def _record_reason(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], config: Config, reason: str
) -> None:
    """Record why a call is left to Inductor, for `explain`."""
    logger.debug("stock Inductor calls %s: %s", op, reason)
    try:
        traced, more = unread(op, args, kwargs)
        call = plain_call(traced)
        stock, session = call.stock(more), session_of(V.graph, config)
        autotune_call = session.call(call.op, [stock], call.nodes, call.layout)
        session.record_only_choice(autotune_call, [stock], {"attention": reason})
    except Exception:  # the border, as above: a reason that is not recorded costs no compile
        logger.debug("%s could not be described", op, exc_info=True)


def _generated(call: AttentionCall) -> dict[int, Callable[[Any], torch.Tensor]]:
    """Return generators of the operands whose values matter to a kernel, by index."""
    names, arguments = list(call.operands), call.traced.arguments
    longest = {"q": arguments.max_q, "k": arguments.max_k}
    return {
        names.index(f"cu_{side}"): lengths(call.traced.tensors[side].get_size()[0], most_tokens)
        for side, most_tokens in longest.items()
        if f"cu_{side}" in names
    }


def lengths(tokens: Any, longest: Any) -> Callable[[Any], torch.Tensor]:
    """Return a generator of ``cu_seqlens``: one sequence of the longest length, the others of equal length.

    Random values would make kernels access memory out of bounds. If ``longest`` is only the number of all
    tokens, all sequences have equal lengths: a single sequence with every token would be unrepresentative.

    Args:
        tokens: Number of tokens of all sequences.
        longest: Tokens of the longest sequence, or an upper bound.
    """

    def generate(node: Any) -> torch.Tensor:
        count, total, most = compat.hints([node.get_size()[0] - 1, tokens, longest])
        ends = torch.tensor([0, *_ends(count, total, most)], dtype=torch.int32)
        return ends.to(node.get_device())

    return generate


def _ends(count: int, total: int, most: int) -> list[int]:
    """Return the ends of ``count`` sequences of ``total`` tokens, the first of length ``most``.

    If ``most`` is at least ``total``, all have the same length.
    """
    if most >= total:
        return [total * (i + 1) // count for i in range(count)]
    first, others, remainder = most, count - 1, total - most
    return [
        min(first + (remainder * i // others if others else 0), first + most * i)
        for i in range(count)
    ]
