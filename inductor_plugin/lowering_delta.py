"""Has the Triton gradients of an attention measured with the computation of delta before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._inductor import select_algorithm

from inductor_plugin import compat
from inductor_plugin.attention import attention_of
from inductor_plugin.lowering_request import DeltaRequest, View
from inductor_plugin.problem import Problem


def measured_with_delta(choice: Any, problem: Problem, nodes: Sequence[Any]) -> Any:
    """Return a choice for a gradient; if it is Inductor's Triton choice, its benchmark computes delta.

    Args:
        choice: The choice, or what says that there is none.
        problem: The call.
        nodes: Its operands.
    """
    triton: Any = select_algorithm.TritonTemplateCaller
    attention = attention_of(problem)
    places = [attention.index(name) for name in ("do", "out", "delta")]
    if not isinstance(choice, triton) or None in places:
        return choice
    # A kernel takes each buffer once, however many of its operands are views of it.
    buffers = list(dict.fromkeys(node.get_name() for node in nodes))
    request: Any = choice.bmreq
    request.__class__ = DeltaRequest
    request.delta_views = tuple(_view(nodes[i], buffers) for i in places if i is not None)
    lse = attention.index("lse")
    if lse is not None and dict(problem.arguments).get("form") == repr("padded"):
        request.padded_rows = compat.hints(nodes[lse].get_size())
    return choice


def _view(node: Any, buffers: Sequence[str]) -> View:
    return View(
        index=buffers.index(node.get_name()),
        size=compat.hints(node.get_size()),
        stride=compat.hints(compat.strides(node)),
        offset=compat.hints([node.get_layout().offset])[0],
    )
