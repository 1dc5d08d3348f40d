"""Which graphs a benchmark worker may run: those that do nothing but compute."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import fx, nn
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from inductor_plugin.inductor.guard.fx_graph import (
    copied,
    problem_of,
    uncounted,
    why_not_run,
)

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
        (lambda g, x: g.call_function(ATEN.copy_.default, (x, x)), None),
        (lambda g, x: g.call_function(operator.getitem, (x, 0)), None),
        (lambda g, x: g.call_function(ATEN.relu.default, (x,)), None),
    ],
)
def test_only_a_graph_that_does_nothing_but_compute_is_run(call: Any, why: str | None) -> None:
    assert why_not_run(graph_of(call)) == why


def sums_of(size: int = 2, dtype: torch.dtype = torch.float32) -> Any:
    """Return a graph that adds a constant of a size."""
    graph = fx.Graph()
    graph.output(
        graph.call_function(ATEN.add.Tensor, (graph.placeholder("x"), graph.get_attr("kept")))
    )
    return fx.GraphModule({"kept": torch.ones(size, dtype=dtype)}, graph)


def test_a_copy_of_a_graph_shares_its_tensors_and_what_freezing_has_noted() -> None:
    graph = sums_of()
    graph._has_frozen_params, graph.note = True, ["of others"]
    again: Any = copied(graph)
    assert again.kept is graph.kept
    assert again._has_frozen_params is True
    again.graph.erase_node([*again.graph.nodes][-1])
    assert len(graph.graph.nodes) == len(again.graph.nodes) + 1


def test_graphs_of_other_operators_inputs_or_constants_are_others() -> None:
    x = torch.ones(2)
    problem = problem_of(sums_of(), [x, 3])
    assert problem == problem_of(sums_of(), [torch.zeros(2), 3])
    assert problem["nodes"] == 4
    others = [
        problem_of(sums_of(), [x, 4]),
        problem_of(sums_of(), [torch.ones(4)[::2], 3]),
        problem_of(sums_of(), [x.double(), 3]),
        problem_of(sums_of(1), [x, 3]),
        problem_of(sums_of(dtype=torch.float64), [x, 3]),
        problem_of(graph_of(lambda g, x: g.call_function(ATEN.relu.default, (x,))), [x, 3]),
    ]
    assert problem not in others
    assert len({str(other) for other in others}) == len(others)


def test_a_graph_of_dynamic_sizes_is_another_in_each_class_of_sizes() -> None:
    problems: list[dict[str, Any]] = []
    for size in (8, 9, 100, 120, 4096):
        mode = FakeTensorMode(shape_env=ShapeEnv())
        context = cast("Any", StatelessSymbolicContext([DimDynamic.DYNAMIC]))
        example = mode.from_tensor(torch.ones(size), symbolic_context=context)
        problems.append(problem_of(sums_of(), [example.size(0), example]))
    eight, nine, hundred, more, thousands = problems
    assert eight["inputs"] == thousands["inputs"]  # which name no size
    assert hundred == more
    assert len({str(problem) for problem in problems}) == 4
    assert [*hundred["classes"].values()] == [[65, 128]]
    assert nine not in (eight, hundred, thousands)
    assert "classes" not in problem_of(sums_of(), [torch.ones(8)])


def test_all_that_inductor_counts_is_as_before() -> None:
    names = [name for name in metrics.reset.__code__.co_names if hasattr(metrics, name)]
    assert {"parallel_reduction_count", "nodes_num_elem"} <= set(names)
    own: dict[str, Any] = {name: getattr(metrics, name) for name in names}
    before = copy.deepcopy(own)
    with uncounted():
        for name, value in own.items():
            if isinstance(value, list):
                value.append(name)
            else:
                setattr(metrics, name, value + 1)
    after = {name: getattr(metrics, name) for name in names}
    assert after == before
    assert all(after[name] is own[name] for name in names)


def test_what_users_count_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "generated_kernel_count", 5)
    counters["uncounted"]["seen"] = 2
    try:
        with uncounted():
            counters["uncounted"]["seen"] += 3
            counters["uncounted"]["new"] = counters["uncounted, too"]["new"] = 1
            metrics.generated_kernel_count += 1
        assert dict(counters["uncounted"]) == {"seen": 2}
        assert not counters["uncounted, too"]
        assert metrics.generated_kernel_count == 5
    finally:
        for name in ("uncounted", "uncounted, too"):
            counters.pop(name, None)
