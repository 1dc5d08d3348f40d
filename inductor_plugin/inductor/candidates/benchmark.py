"""Choices of Triton gradients whose benchmark computes delta, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._inductor import select_algorithm

from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.candidates.request import DeltaRequest, View
from inductor_plugin.inductor.facts import compat
from inductor_plugin.problem.attention import attention_of


def measured_with_delta(choice: Any, call: AutotuneCall) -> Any:
    """Return a choice for a gradient; the benchmark of a Triton choice computes delta in each call."""
    triton: Any = select_algorithm.TritonTemplateCaller
    attention, nodes = attention_of(call.problem), call.nodes
    places = [attention.index(name) for name in ("do", "out", "delta")]
    if not isinstance(choice, triton) or None in places:
        return choice
    # A kernel takes each buffer once, even if several of its operands are views of it.
    buffers = list(dict.fromkeys(node.get_name() for node in nodes))
    request: Any = choice.bmreq
    request.__class__ = DeltaRequest
    request.delta_views = tuple(_view(nodes[i], buffers) for i in places if i is not None)
    lse = attention.index("lse")
    if lse is not None and dict(call.problem.arguments).get("form") == repr("padded"):
        request.padded_rows = compat.hints(nodes[lse].get_size())
    return choice


def _view(node: Any, buffers: Sequence[str]) -> View:
    return View(
        index=buffers.index(node.get_name()),
        size=compat.hints(node.get_size()),
        stride=compat.hints(compat.strides(node)),
        offset=compat.hints([node.get_layout().offset])[0],
    )
