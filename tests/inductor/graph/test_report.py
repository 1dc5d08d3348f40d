"""What the compile of a graph says at its end: in the cache, which function the graph is of."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import nn
from torch._dynamo.utils import counters

import inductor_plugin
from inductor_plugin.cache import Store, open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import report
from inductor_plugin.inductor.graph.report import keep_graph
from inductor_plugin.tuning.task import Task
from tests.support.candidates.providers import offered
from tests.support.lowering import Lab, library_first


class Products(nn.Module):
    """A model."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b)


def entries(
    cache_dir: Path, *, gradients: bool, dtype: torch.dtype = torch.float32, **options: Any
) -> Store:
    """Compile a model with a new cache, and return the cache."""
    options = {"cache_dir": str(cache_dir), "table": "off", "progress": "off", **options}
    with (
        offered("good"),
        Lab(library_first, cache_dir).open(),
        inductor_config.patch(fx_graph_cache=False),
    ):
        torch._dynamo.reset()
        compiled: Any = torch.compile(Products(), options=inductor_plugin.options(**options))
        a = torch.randn(32, 32, requires_grad=gradients, dtype=dtype)
        b = torch.randn(32, 32, dtype=dtype)
        result = compiled(a, b)
        if gradients:
            result.backward(torch.randn(32, 32))
    torch._dynamo.reset()
    return open_store(cache_dir, create=False)


@pytest.mark.compat
@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize("builds", [(3, 2), (3, 0), (0, 0)])
def test_what_was_compiled_is_counted_where_stock_inductor_counts_it(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, builds: tuple[int, int]
) -> None:
    monkeypatch.setattr(Task, "builds", property(lambda _: builds))
    counters.clear()
    entries(cache_dir, gradients=False)
    counted = {n: count for n, count in counters["inductor"].items() if "algorithm" in n}
    built, failed = builds
    expected = {
        "select_algorithm_autotune": 1,
        "select_algorithm_precompile": int(built > 0),
        "select_algorithm_num_precompiles": built,
        "select_algorithm_num_precompilation_exceptions": failed,
    }
    assert counted == {name: count for name, count in expected.items() if count}
    entries(cache_dir, gradients=False)  # a hit compiles and measures nothing
    assert counters["inductor"]["select_algorithm_precompile"] == int(built > 0)


@pytest.mark.compat
@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize(
    ("gradients", "kinds"), [(False, {"inference"}), (True, {"forward", "backward"})]
)
def test_each_graph_of_a_compile_is_in_the_cache_with_its_model(
    cache_dir: Path, kinds: set[str], *, gradients: bool
) -> None:
    store = entries(cache_dir, gradients=gradients)
    graphs = store.graphs.everything()
    assert {graph.kind for graph in graphs} == kinds
    for graph in graphs:
        assert graph.function == "Products.forward"
        assert graph.program == sys.argv[0][-300:]
        assert graph.problems
        for place in graph.problems:
            environment, op, digest = place.split("/")
            assert store.record(environment, op, digest) is not None


@pytest.mark.usefixtures("inductor_cache")
def test_a_product_with_a_single_candidate_is_in_its_graph(cache_dir: Path) -> None:
    """The template takes float32 alone."""
    store = entries(cache_dir, gradients=False, dtype=torch.float64)
    (graph,) = store.graphs.everything()
    (place,) = graph.problems
    record = store.record(*place.split("/"))
    assert record is not None
    assert not record.candidates
    assert record.rejected


@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize("cause", ["cache=off", "error"])
def test_a_compile_does_without(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def raising(*_: Any) -> str:
        raise RecursionError

    monkeypatch.setattr(report, "function_of", raising)
    options: dict[str, Any] = {"cache": "off"} if cause == "cache=off" else {}
    store = entries(cache_dir, gradients=False, **options)
    assert store.graphs.everything() == []


def test_what_is_compiled_for_a_pack_is_no_model_of_the_cache(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    selection: Any = object()
    context: Any = SimpleNamespace(store=store, environment="e")
    ticket: Any = SimpleNamespace(
        selection=selection, problem=SimpleNamespace(op="mm"), digest="d" * 64
    )
    graph: Any = SimpleNamespace(
        module=SimpleNamespace(graph=SimpleNamespace(nodes=[])),
        is_backward=False,
        is_inference=False,
    )
    keep_graph(Config(policy="build"), graph, [(context, selection)], [ticket, ticket], [])
    assert store.graphs.everything() == []
    keep_graph(Config(), graph, [(context, selection)], [ticket, ticket], [])
    (entry,) = store.graphs.everything()
    assert (entry.function, entry.kind, entry.problems) == ("", "forward", (f"e/mm/{'d' * 64}",))
