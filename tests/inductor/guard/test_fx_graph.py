"""Which graphs a benchmark worker may run: those that do nothing but compute."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from inductor_plugin.inductor.guard.fx_graph import why_not_run

ATEN: Any = torch.ops.aten
SENDS: Any = torch.ops._c10d_functional  # pyright: ignore[reportPrivateUsage]


def graph_of(call: Callable[[fx.Graph, fx.Node], fx.Node]) -> fx.GraphModule:
    """Return a graph with one input and one call."""
    graph = fx.Graph()
    graph.output((call(graph, graph.placeholder("x")),))
    return fx.GraphModule({"layer": nn.ReLU(), "kept": torch.ones(2)}, graph)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda g, x: g.call_module("layer", (x,)), "it calls layer"),
        (lambda g, x: g.call_method("add_", (x, 1)), "it calls add_"),
        (
            lambda g, x: g.call_function(print, (x,)),
            "it calls <built-in function print>, which may do more than compute",
        ),
        (
            lambda g, x: g.call_function(SENDS.all_reduce.default, (x, "sum", "0")),
            "it calls _c10d_functional.all_reduce.default, which may do more than compute",
        ),
        (
            lambda g, x: g.call_function(ATEN.copy_.default, (g.get_attr("kept"), x)),
            "it changes constant kept, which calls in turns would see",
        ),
        (lambda g, x: g.call_function(ATEN.copy_.default, (x, x)), ""),
        (lambda g, x: g.call_function(operator.getitem, (x, 0)), ""),
        (lambda g, x: g.call_function(ATEN.relu.default, (x,)), ""),
    ],
)
def test_only_a_graph_that_does_nothing_but_compute_is_run(call: Any, why: str) -> None:
    assert why_not_run(graph_of(call)) == why
